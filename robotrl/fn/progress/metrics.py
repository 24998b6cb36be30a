"""Metrics of a learned progress: correlation with time, separation of failures, calibration error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]


def ranks(values: Real) -> Real:
    """Ranks (n,) from 1; equal values get the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[inverse]


def rank_correlation(one: Real, other: Real) -> float:
    """Spearman's rank correlation of two (n,), -1 to 1; 0 if either is constant."""
    a, b = (x - x.mean() for x in (ranks(one), ranks(other)))
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def separation(above: Real, below: Real) -> float:
    """Probability, 0 to 1, that a random one of `above` (n,) is larger than one of `below` (m,); ties count half.

    The area under the ROC curve (Hanley & McNeil 1982): 1 separates the two, 1/2 is chance.
    """
    both = ranks(np.concatenate([above, below]))
    n, m = len(above), len(below)
    return float((both[:n].sum() - n * (n + 1) / 2) / (n * m))


def calibration_error(predicted: Real, label: Real, bins: int = 10) -> float:
    """Expected calibration error, 0 to 1, of predictions (n,) and labels (n,), over bins of equal width.

    After Naeini et al. 2015, with labels in [0, 1] instead of hits: mean distance of prediction and label in a bin,
    weighted by the bin's number of predictions.
    """
    which = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    off = np.bincount(which, predicted - label, bins)
    return float(np.abs(off).sum() / len(predicted))
