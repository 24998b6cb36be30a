"""Samples of a policy as a function of standard normal noise, chosen by the policy's capabilities."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from robotrl.errors import CapabilityError
from robotrl.spec import HasChain, HasDecode, Spec


@runtime_checkable
class HasDrawWith(Protocol):
    """A policy whose samples are drawn with given noise: a Gaussian or tanh-Gaussian one."""

    horizon: int
    action_spec: Spec

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from observations in the sim's units (normalization inside)."""
        ...

    def draw_with(self, ctx: Tensor, noise: Tensor) -> Any:
        """`normalized_action` (B, H, A) from contexts (B, D) and standard normal noise (B, H, A)."""
        ...


class NoiseSampler(NamedTuple):
    """Samples of a policy, as trained: a policy that is deployed with less noise or by its mean still varies here."""

    noise_shape: tuple[int, int]
    """(H, A) of the noise of a sample, and of the sample: a pretrained policy's can be longer and wider than what is
    executed."""
    sample: Callable[[Tensor, Tensor], Tensor]
    """Function from contexts (R, D) and noise (R, H, A) to normalized chunks (R, H, A), before any clipping."""


def sampler_of(policy: Any) -> NoiseSampler:
    """Return the sampler of a policy.

    Raises:
        CapabilityError: its samples are no function of its context and normal noise.
    """
    if isinstance(policy, HasDecode) and isinstance(policy, HasChain) and policy.noise_shape is not None:
        return NoiseSampler(policy.noise_shape, policy.decode)
    if isinstance(policy, HasDrawWith):
        shape = policy.horizon, policy.action_spec.shape[0]
        # a copy of whoever holds the sampler then draws with its own copy of the policy, as with a method
        return NoiseSampler(shape, partial(_drawn, policy))
    raise CapabilityError(
        f"policy {type(policy).__name__} has no samples from normal noise, of which the best could be chosen: expected"
        " HasDecode (flow, shortcut, diffusion, flow VLA), or a Gaussian or tanh-Gaussian policy"
    )


def _drawn(policy: HasDrawWith, ctx: Tensor, noise: Tensor) -> Tensor:
    """Normalized chunks (R, H, A) that a policy draws with noise."""
    return policy.draw_with(ctx, noise).normalized_action
