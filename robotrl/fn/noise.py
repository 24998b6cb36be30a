"""Random numbers that are the same on every device: drawn where their generator is, and moved to where they are used.

Learners and actors draw from generators of the CPU, whatever the device of their networks. So a run on a GPU sees the
noise that the same run on a CPU sees, and a checkpoint's streams can be taken up on either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def randn(
    shape: Sequence[int],
    generator: torch.Generator | None,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Standard normal numbers.

    Args:
        shape: of the numbers.
        generator: where they are drawn; None takes the device's global stream.
        device: where they are wanted.
        dtype: of the numbers.
    """
    drawn_on = device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=dtype, device=drawn_on).to(device)


def choose(share: Tensor, generator: torch.Generator | None) -> Tensor:
    """One column of each row (B, C) of weights, drawn by them, as (B,) int64."""
    weights = share if generator is None else share.to(generator.device)
    return torch.multinomial(weights, 1, generator=generator).squeeze(1).to(share.device)


def choose_at(share: Tensor, at: Tensor) -> Tensor:
    """One column of each row (B, C) of weights, where their running share passes `at` (B,), 0 to 1, as (B,) int64.

    Of `at` that is uniform, columns are drawn by their weights; near ones are columns near to each other.
    """
    running = share.double().cumsum(dim=-1)
    below = at.double().clamp(max=1 - torch.finfo(torch.float64).eps) * running[:, -1]
    return torch.searchsorted(running, below[:, None], right=True)[:, 0]


def lasting(last: Tensor, steps: int, correlation: float, generator: torch.Generator | None) -> Tensor:
    """The next `steps` (n, steps, A) of n standard normal series of width A, of which `last` (n, A) came before.

    Numbers k steps apart correlate by `correlation` to the power of k (autoregressive, of order 1).
    """
    fresh = math.sqrt(1 - correlation**2) * randn((steps, *last.shape), generator, last.device, last.dtype)
    series = [last]
    for new in fresh:
        series.append(correlation * series[-1] + new)
    return torch.stack(series[1:], dim=1)
