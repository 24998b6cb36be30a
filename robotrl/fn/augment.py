"""Image augmentation as pure functions; the caller draws the random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

PAD = 4
"""Largest shift of an image, pixels (DrQ, Kostrikov et al. 2020)."""


def draw_shifts(batch: int, generator: torch.Generator | None, pad: int = PAD) -> Tensor:
    """Draw (B, 2) int64 shifts down and right, each from 0 to 2 `pad`; a shift of `pad` leaves an image unchanged."""
    return torch.randint(2 * pad + 1, (batch, 2), generator=generator)


def random_shift(pictures: Tensor, shifts: Tensor, pad: int = PAD) -> Tensor:
    """Random shifts of DrQ (Kostrikov et al. 2020): pad by the edge pixels, then crop to the old size.

    Args:
        pictures: (B, h, w, channels) of any dtype.
        shifts: (B, 2) int64, the corner of the crop, 0 to 2 `pad` each: from `draw_shifts`.
        pad: pixels of padding.

    Returns:
        Images of the same shape and dtype.
    """
    batch, height, width = pictures.shape[:3]
    device = pictures.device
    rows = (torch.arange(height, device=device) + shifts[:, :1] - pad).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) + shifts[:, 1:] - pad).clamp(0, width - 1)
    return pictures[torch.arange(batch, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]
