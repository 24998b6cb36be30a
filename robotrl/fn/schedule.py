"""Learning-rate schedules."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosine(progress: Tensor, floor: float = 0.1) -> Tensor:
    """Half a cosine from 1 at progress 0 to `floor` at 1."""
    return floor + (1 - floor) * 0.5 * (1 + torch.cos(math.pi * progress.clamp(max=1.0)))
