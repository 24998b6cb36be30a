"""Behavior-cloning losses on demonstrated chunks, chosen by the policy's capabilities.

Noise and times are sampled separately from the loss (`CloneLoss.draw`), so that compiled and resumed learners use the
same ones. A policy has a capability: tokens, noise levels, step lengths (shortcuts), a velocity, or a mean. The loss of
the first one in this order is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from robotrl.errors import CapabilityError
from robotrl.fn.loss import masked_mse
from robotrl.fn.text import tokens
from robotrl.spec import HasChain, HasTokens

CONSISTENT_SHARE = 4
"""One in this many rows of a shortcut policy's minibatch trains self-consistency (Frans et al. 2024)."""


@runtime_checkable
class HasNoiseLevels(Protocol):
    """A diffusion policy with discrete noise levels."""

    noise_levels: tuple[float, ...]
    """(N,) times of the noise levels that it is trained on, in the order of rising noise."""

    def predict(self, ctx: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Network output (B, H, A) for x (B, H, A) on the straight path at t (B,)."""
        ...

    def wanted(self, chunk: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Target (B, H, A) of the network for a chunk and noise (B, H, A) at t (B,): the noise, or a mixture."""
        ...


@runtime_checkable
class HasShortcuts(Protocol):
    """A shortcut policy: its velocity depends on the length of its step."""

    finest_steps: int
    """Number of steps S of the finest grid, a power of two: steps of length 1, 1/2, ... 1/S are trained, and 0, the
    flow."""

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """Mean velocity (B, H, A) over the next step of length dt (B,)."""
        ...


@runtime_checkable
class HasMean(Protocol):
    """A policy with a mean chunk."""

    def mean(self, ctx: Tensor) -> Tensor:
        """Return the normalized mean chunk (B, H, A)."""
        ...


class DrawShape(NamedTuple):
    """Sizes of the random numbers to sample."""

    updates: int
    """U, updates."""
    batch: int
    """M, rows of an update."""
    horizon: int
    """H, control steps of a chunk."""
    action: int
    """A, width of an action."""

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Shape of all chunks, (U M, H, A)."""
        return self.updates * self.batch, self.horizon, self.action


Drawn = dict[str, Tensor]
"""(U M, ...) each: rows of consecutive updates."""


class CloneLoss(NamedTuple):
    """A cloning loss with the sampling of its random numbers."""

    draw: Callable[[Any, DrawShape, torch.Generator | None], Drawn]
    """Function from (policy, shape, generator) to the loss's random numbers."""
    loss: Callable[..., Tensor]
    """Function from (policy, ctx (M, D), chunk (M, H, A), valid (M, H), **drawn rows (M, ...)) to a scalar."""


def chunk_shape(policy: Any) -> tuple[int, int]:
    """Shape (H, A) of the chunks that a policy learns: those it executes, or a pretrained policy's full output."""
    return getattr(policy, "noise_shape", None) or (policy.horizon, policy.action_spec.shape[0])


def clone_loss_of(policy: object) -> CloneLoss:
    """Return the cloning loss of a policy.

    Raises:
        CapabilityError: no loss fits the policy's capabilities.
    """
    for capability, loss in LOSSES:
        if isinstance(policy, capability):
            return loss
    raise CapabilityError(
        f"policy {type(policy).__name__} has neither HasTokens, HasChain nor HasMean (a method `mean`): cannot be"
        " cloned"
    )


def mean_loss(policy: HasMean, ctx: Tensor, chunk: Tensor, valid: Tensor) -> Tensor:
    """Mean squared error of a Gaussian policy's mean.

    Args:
        policy: the policy in training.
        ctx: (B, D).
        chunk: (B, H, A) normalized actions.
        valid: (B, H) bool, padding excluded.
    """
    return masked_mse(policy.mean(ctx), chunk, valid)


def flow_matching_loss(policy: HasChain, ctx: Tensor, chunk: Tensor, valid: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """Conditional flow matching on straight paths (Lipman et al. 2023, eq. 23): regress the velocity action - noise.

    Args:
        policy: velocity field in training.
        ctx: (B, D).
        chunk: (B, H, A) normalized actions.
        valid: (B, H) bool, padding excluded.
        noise: (B, H, A) standard normal.
        t: (B,) in [0, 1].
    """
    velocity = policy.velocity(ctx, straight_path(noise, chunk, t), t, torch.zeros_like(t))
    return masked_mse(velocity, chunk - noise, valid)


def denoising_loss(
    policy: HasNoiseLevels, ctx: Tensor, chunk: Tensor, valid: Tensor, noise: Tensor, t: Tensor
) -> Tensor:
    """Squared error of the predicted noise (Ho et al. 2020, eq. 14) or v (Salimans & Ho 2022).

    Args:
        policy: prediction in training.
        ctx: (B, D).
        chunk: (B, H, A) normalized actions.
        valid: (B, H) bool, padding excluded.
        noise: (B, H, A) standard normal.
        t: (B,) times of noise levels, out of `policy.noise_levels`.
    """
    said = policy.predict(ctx, straight_path(noise, chunk, t), t)
    return masked_mse(said, policy.wanted(chunk, noise, t), valid)


def shortcut_loss(
    policy: HasShortcuts, ctx: Tensor, chunk: Tensor, valid: Tensor, noise: Tensor, t: Tensor, dt: Tensor
) -> Tensor:
    """Flow matching and self-consistency of a shortcut policy (Frans et al. 2024, eq. 5).

    A quarter of the rows, the first ones, learn that one step of length dt equals two steps of half that length; the
    others match the flow, which is the step of length 0.

    Args:
        policy: velocity in training.
        ctx: (B, D).
        chunk: (B, H, A) normalized actions.
        valid: (B, H) bool, padding excluded.
        noise: (B, H, A) standard normal.
        t: (B,) in [0, 1]; in the first rows, the begin of a step of length dt.
        dt: (B,) length of the step; 0 in all but the first B // 4 rows.
    """
    count = len(t) // CONSISTENT_SHARE
    x = straight_path(noise, chunk, t)
    with torch.no_grad():
        here, half = t[:count], dt[:count] / 2
        first = policy.velocity(ctx[:count], x[:count], here, half)
        between = x[:count] + half[:, None, None] * first
        second = policy.velocity(ctx[:count], between, here + half, half)
    target = torch.cat([(first + second) / 2, (chunk - noise)[count:]])
    return masked_mse(policy.velocity(ctx, x, t, dt), target, valid)


def token_loss(policy: HasTokens, ctx: Any, chunk: Tensor, valid: Tensor) -> Tensor:
    """Cross-entropy of a chunk's tokens, each given the tokens before it.

    Args:
        policy: logits in training.
        ctx: result of `policy.encode`.
        chunk: (B, H, A) normalized actions.
        valid: (B, H) bool, padding excluded.
    """
    wanted = policy.to_tokens(chunk)
    logits = policy.token_logits(ctx, wanted)
    return tokens.cross_entropy(logits, tokens.spread(wanted, policy.bins, policy.label_bins), valid)


def straight_path(noise: Tensor, chunk: Tensor, t: Tensor) -> Tensor:
    """Return the points (B, H, A) at t (B,) on the straight line from noise (t = 0) to a chunk (t = 1)."""
    time = t[:, None, None]
    return (1 - time) * noise + time * chunk


def _draw_nothing(policy: HasMean, shape: DrawShape, generator: torch.Generator | None) -> Drawn:
    del policy, shape, generator
    return {}


def _draw_flow(policy: HasChain, shape: DrawShape, generator: torch.Generator | None) -> Drawn:
    del policy
    noise = torch.randn(shape.chunks, generator=generator)
    return {"noise": noise, "t": torch.rand(len(noise), generator=generator)}


def _draw_level(policy: HasNoiseLevels, shape: DrawShape, generator: torch.Generator | None) -> Drawn:
    noise = torch.randn(shape.chunks, generator=generator)
    levels = torch.tensor(policy.noise_levels)
    return {"noise": noise, "t": levels[torch.randint(len(levels), (len(noise),), generator=generator)]}


def _draw_shortcut(policy: HasShortcuts, shape: DrawShape, generator: torch.Generator | None) -> Drawn:
    noise = torch.randn(shape.chunks, generator=generator)
    t = torch.rand((shape.updates, shape.batch), generator=generator)
    dt = torch.zeros_like(t)
    some = (shape.updates, shape.batch // CONSISTENT_SHARE)
    halvings = torch.randint(policy.finest_steps.bit_length(), some, generator=generator)
    dt[:, : some[1]] = 0.5**halvings
    # a step of length dt begins at a multiple of dt
    steps = 2**halvings
    t[:, : some[1]] = (torch.rand(some, generator=generator) * steps).floor() / steps
    return {"noise": noise, "t": t.flatten(), "dt": dt.flatten()}


LOSSES: tuple[tuple[type, CloneLoss], ...] = (
    (HasTokens, CloneLoss(_draw_nothing, token_loss)),
    (HasNoiseLevels, CloneLoss(_draw_level, denoising_loss)),
    (HasShortcuts, CloneLoss(_draw_shortcut, shortcut_loss)),
    (HasChain, CloneLoss(_draw_flow, flow_matching_loss)),
    (HasMean, CloneLoss(_draw_nothing, mean_loss)),
)
"""Pairs of capability and loss; the first one that fits a policy is used."""
