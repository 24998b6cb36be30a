"""The best of several chunks by their value, and ascent of a chunk on its value: pure functions of tensors.

Noise is drawn outside and comes in as rows, so that compiled, resumed and exported code sees the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Value = Callable[[Tensor, Tensor], Tensor]
"""Function from contexts (R, D) and chunks (R, H, A) to values (R,)."""
Propose = Callable[[Tensor, Tensor], Tensor]
"""Function from contexts (R, D) and standard normal noise (R, H, A) to chunks (R, H, A) as they would be executed."""


class Chosen(NamedTuple):
    """Result of `best_of`."""

    chunk: Tensor
    """(B, H, A) the candidate of the largest value, as it would be executed."""
    value: Tensor
    """(B,) its value."""
    place: Tensor
    """(B,) int64 its place among the candidates; of equal values the first."""
    mean: Tensor
    """(B,) mean value of the candidates: the choice gains `value - mean` over a random one."""


class ValuedCandidates(NamedTuple):
    """Candidates with their values."""

    chunks: Tensor
    """(B, n, H, A)."""
    values: Tensor
    """(B, n)."""


def valued(propose: Propose, q: Value, ctx: Tensor, noise: Tensor) -> ValuedCandidates:
    """Propose n chunks for each context, and value them.

    Args:
        propose: proposes a chunk for a row of context and noise.
        q: values a chunk.
        ctx: (B, D).
        noise: (B, n, H, A) standard normal, fresh for each candidate.
    """
    rows, (batch, count) = ctx.repeat_interleave(noise.shape[1], 0), noise.shape[:2]
    chunks = propose(rows, noise.flatten(0, 1))
    return ValuedCandidates(chunks.unflatten(0, (batch, count)), q(rows, chunks).view(batch, count))


def best_of(propose: Propose, q: Value, ctx: Tensor, noise: Tensor) -> Chosen:
    """Choose the candidate of the largest value; see `valued` for the arguments."""
    chunks, values = valued(propose, q, ctx, noise)
    value, index = values.max(dim=1)
    return Chosen(picked(chunks, index), value, index, values.mean(dim=1))


def picked(chunks: Tensor, index: Tensor) -> Tensor:
    """Return the candidate (B, H, A) at `index` (B,) of candidates (B, n, H, A)."""
    at = index.view(-1, 1, 1, 1).expand(-1, 1, *chunks.shape[2:])
    return chunks.gather(1, at).squeeze(1)


def ascend(
    q: Value,
    ctx: Tensor,
    chunk: Tensor,
    steps: int,
    size: float,
    low: Tensor | float = -1.0,
    high: Tensor | float = 1.0,
) -> Tensor:
    """Move chunks uphill on their value, each element by `size` a step in the direction of its gradient's sign.

    A critic that has seen few states is often wrong beside the data: see the measurements in docs/algorithms/pa-rl.md.

    Args:
        q: values a chunk; differentiable in it.
        ctx: (B, D).
        chunk: (B, H, A) chunks to start from, within the bounds.
        steps: number of steps; 0 returns the chunks.
        size: step of each element, normalized units.
        low: lower bounds of an action, broadcast over (B, H, A).
        high: upper bounds.

    Returns:
        (B, H, A) within the bounds, without gradients.
    """
    ctx, chunk = ctx.detach(), chunk.detach()
    low, high = (torch.as_tensor(bound, dtype=chunk.dtype, device=chunk.device) for bound in (low, high))
    for _ in range(steps):
        with torch.enable_grad():
            at = chunk.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(q(ctx, at).sum(), at)
        chunk = (chunk + size * slope.sign()).clamp(low, high)
    return chunk
