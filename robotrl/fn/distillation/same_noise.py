"""Distillation at equal noise: a student gives, in one evaluation, the chunk that its teacher denoises from that noise.

Student and teacher read the same noise, so the student keeps the teacher's different ways of doing a task apart; a
regression to chunks of other noise would give their mean. It is the distillation of FQL (Park, Li & Levine 2025,
2502.02538) and L_CD of RL-100 (2510.14830); ConRFT's consistency loss (2502.05450) has the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from robotrl.errors import CapabilityError


@runtime_checkable
class DecodesNoise(Protocol):
    """A policy that denoises: flow, shortcut, diffusion, flow VLA."""

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A) of the noise, and of the chunk that is made of it."""
        ...

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from observations in the sim's units (normalization inside)."""
        ...

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Normalized chunk (B, H, A) from contexts (B, D) and noise (B, H, A), deterministic."""
        ...


@runtime_checkable
class SteersNoise(Protocol):
    """A steered policy: an actor chooses the noise of a policy that denoises, from noise of its own."""

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A) of the actor's noise; None if its mean is deployed."""
        ...

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from observations in the sim's units (normalization inside)."""
        ...

    def chosen_noise(self, ctx: Tensor, noise: Tensor | None) -> Tensor:
        """Noise (B, H, A) that the actor chooses, from standard normal noise (B, H, A)."""
        ...

    def steer(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Normalized chunk (B, H, A) from contexts (B, D) and chosen noise (B, H, A), deterministic."""
        ...


class NoiseDecoder(NamedTuple):
    """Chunks of a policy as a function of observations and standard normal noise."""

    noise_shape: tuple[int, int]
    """(H, A) of the noise, and of the chunk."""
    decode: Callable[[dict[str, Tensor], Tensor], Tensor]
    """Function from observations (B, ...) and noise (B, H, A) to normalized chunks (B, H, A), before any clipping."""


def decoder_of(policy: object) -> NoiseDecoder:
    """Return the decoder of a policy.

    Raises:
        CapabilityError: its chunks are no function of observations and noise.
    """
    if isinstance(policy, DecodesNoise) and policy.noise_shape is not None:
        return NoiseDecoder(policy.noise_shape, lambda obs, noise: policy.decode(policy.encode(obs), noise))
    if isinstance(policy, SteersNoise) and policy.noise_shape is not None:

        def steered(obs: dict[str, Tensor], noise: Tensor) -> Tensor:
            ctx = policy.encode(obs)
            return policy.steer(ctx, policy.chosen_noise(ctx, noise))

        return NoiseDecoder(policy.noise_shape, steered)
    raise CapabilityError(
        f"policy {type(policy).__name__} makes no chunk of noise in steps that one step could replace: expected a flow,"
        " shortcut, diffusion or flow VLA policy, or one of these steered by sampled noise"
    )


def same_noise(chunk: Tensor, teacher_chunk: Tensor) -> Tensor:
    """Mean squared distance of a student's chunks to its teacher's, |f(c, w) - D(c, w)|^2; a scalar.

    Args:
        chunk: (B, H, A) of the student in contexts c from noise w.
        teacher_chunk: (B, H, A) of the teacher in the same contexts from the same noise; no gradient flows into it.
    """
    return (chunk - teacher_chunk.detach()).square().mean()


@torch.no_grad()
def teacher_chunks(teacher: NoiseDecoder, obs: dict[str, Tensor], noise: Tensor, block: int) -> Tensor:
    """Chunks (B, H, A) of a teacher, in bounded memory.

    Args:
        teacher: its decoder.
        obs: (B, ...) by key.
        noise: (B, H, A) standard normal, on the same device.
        block: rows that are denoised at once.
    """
    parts = [
        teacher.decode({key: x[rows] for key, x in obs.items()}, noise[rows])
        for rows in torch.arange(len(noise), device=noise.device).split(block)
    ]
    return torch.cat(parts)
