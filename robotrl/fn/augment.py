"""Augmentation of pictures, as pure functions: what is random is drawn by the caller."""

from __future__ import annotations

import torch
from torch import Tensor

PAD = 4
"""Pixels by which a picture is shifted at most (DrQ, Kostrikov et al. 2020)."""


def draw_shifts(batch: int, generator: torch.Generator | None, pad: int = PAD) -> Tensor:
    """(B, 2) int64 shifts down and right, each from 0 to 2 `pad`; `pad` leaves a picture where it is."""
    return torch.randint(2 * pad + 1, (batch, 2), generator=generator)


def random_shift(pictures: Tensor, shifts: Tensor, pad: int = PAD) -> Tensor:
    """Random shifts of DrQ (Kostrikov et al. 2020): padded by its own edge, then cut to the old size somewhere.

    Args:
        pictures: (B, h, w, channels) of any dtype.
        shifts: (B, 2) int64, the corner of the cut, 0 to 2 `pad` each: from `draw_shifts`.
        pad: pixels of padding.

    Returns:
        Pictures of the same shape and dtype.
    """
    batch, height, width = pictures.shape[:3]
    device = pictures.device
    rows = (torch.arange(height, device=device) + shifts[:, :1] - pad).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) + shifts[:, 1:] - pad).clamp(0, width - 1)
    return pictures[torch.arange(batch, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]
