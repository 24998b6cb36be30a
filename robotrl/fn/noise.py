"""Random numbers that are the same on every device: drawn where their generator is, and moved to where they are used.

Learners and actors draw from generators of the CPU, whatever the device of their networks. So a run on a GPU sees the
noise that the same run on a CPU sees, and a checkpoint's streams can be taken up on either.
"""

from __future__ import annotations

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
