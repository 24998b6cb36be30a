"""Actions as tokens: 256 bins over [-1, 1], as RT-2 and OpenVLA have them (Kim et al. 2024, 2406.09246).

There are 256 edges, so 255 intervals: an action is encoded as the number of edges at or below it, less 1, and decoded
as the middle of its interval. Bins rise with the action, from 0; the language model's ids fall from the end of its
vocabulary, so that a larger action has a smaller id. The two highest bins decode to the same value.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import check_count

BINS = 256


def edges(bins: int = BINS) -> Tensor:
    """Edges of the bins, (bins,) float64, from -1 to 1.

    Raises:
        ConfigError: fewer than 3 bins.
    """
    check_count("bins", bins, 3, 1 << 16)
    # numpy as published: torch.linspace differs in the last bit, which changes the bin of an action on an edge
    return torch.from_numpy(np.linspace(-1.0, 1.0, bins))


def to_bins(action: Tensor, bins: int = BINS) -> Tensor:
    """Bins (...) int64, 0 to bins - 1, of normalised actions (...), which are clipped to [-1, 1]."""
    inside = action.to(torch.float64).clamp(-1.0, 1.0)
    return torch.bucketize(inside, edges(bins).to(action.device), right=True) - 1


def to_action(token: Tensor, bins: int = BINS) -> Tensor:
    """Normalised actions (...) float32 of bins (...): the middles of their intervals."""
    at = edges(bins).to(token.device)
    middles = ((at[1:] + at[:-1]) / 2).float()
    return middles[token.clamp(0, bins - 2)]


def to_ids(token: Tensor, end: int) -> Tensor:
    """Token ids of bins; `end` is one past the last id in use of the vocabulary (32000 for Llama 2)."""
    return end - 1 - token


def from_ids(ids: Tensor, end: int) -> Tensor:
    """Bins of token ids; inverse of `to_ids`."""
    return end - 1 - ids
