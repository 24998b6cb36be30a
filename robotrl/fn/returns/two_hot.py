"""Values as categories: a number is spread over its two nearest bins, and read back as the mean of the bins.

Cross-entropy on bins learns values of any scale at one learning rate, and keeps two outcomes of one state apart
(Bellemare et al. 2017; two-hot labels as in Schrittwieser et al. 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor


def bin_centers(bins: int, low: float, high: float, like: Tensor) -> Tensor:
    """Centers (K,) of K bins, evenly spaced from `low` to `high`, with the dtype and device of `like`."""
    return torch.linspace(low, high, bins, dtype=like.dtype, device=like.device)


def two_hot(value: Tensor, bins: int, low: float, high: float) -> Tensor:
    """Spread values over their two nearest bins, so that the mean of the bins is the value.

    Args:
        value: (B,); what lies outside of the bins counts as the nearest bin.
        bins: K, 2 or more.
        low: center of the first bin.
        high: center of the last bin, above `low`.

    Returns:
        (B, K) shares that sum to 1.
    """
    place = (value.clamp(low, high) - low) / (high - low) * (bins - 1)
    below = place.floor().clamp(max=bins - 2)
    above = place - below
    index = below.long()[:, None]
    out = value.new_zeros(len(value), bins).scatter(1, index, 1 - above[:, None])
    return out.scatter(1, index + 1, above[:, None])


def expected_value(logits: Tensor, low: float, high: float) -> Tensor:
    """Mean (B,) of the bins under the probabilities of logits (B, K)."""
    return logits.softmax(dim=1) @ bin_centers(logits.shape[1], low, high, logits)


def two_hot_loss(logits: Tensor, value: Tensor, low: float, high: float) -> Tensor:
    """Cross-entropy of logits (B, K) to the two-hot labels of values (B,), mean over rows."""
    label = two_hot(value, logits.shape[1], low, high)
    return -(label * logits.log_softmax(dim=1)).sum(1).mean()
