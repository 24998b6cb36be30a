"""Learning-rate schedules."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosine(progress: Tensor, floor: float = 0.1) -> Tensor:
    """Half-cosine decay from 1 at progress 0 to `floor` at 1."""
    return floor + (1 - floor) * 0.5 * (1 + torch.cos(math.pi * progress.clamp(max=1.0)))


def line(progress: float, end: float) -> float:
    """Linear decay from 1 at progress 0 to `end` at 1."""
    return 1 - (1 - end) * progress


def warmed(done: Tensor, warmup: int) -> Tensor:
    """Linear warmup to 1 over the first `warmup` + 1 updates.

    Adam's first steps are as large for noise as for signal, because its moments cannot distinguish them yet.

    Args:
        done: updates made so far.
        warmup: 0 begins at 1.
    """
    return ((done + 1) / (warmup + 1)).clamp(max=1)


def warmed_cosine(done: Tensor, updates: int, warmup: int, floor: float = 0.1) -> Tensor:
    """Half-cosine decay over `updates`, with a linear warmup over the first `warmup` + 1.

    Args:
        done: updates made so far.
        updates: of the whole run.
        warmup: 0 begins at the peak.
        floor: final value.
    """
    return cosine(done / updates, floor) * warmed(done, warmup)
