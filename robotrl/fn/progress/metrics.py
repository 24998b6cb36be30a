"""Figures by which a learned progress is judged: does it rise with time, does it part failures, can it be believed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]


def ranks(values: Real) -> Real:
    """(n,) ranks from 1; equal values share the mean of theirs."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[inverse]


def rank_correlation(one: Real, other: Real) -> float:
    """Spearman's coefficient of two (n,), -1 to 1; 0 where either is the same throughout, so that it says nothing."""
    a, b = (x - x.mean() for x in (ranks(one), ranks(other)))
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def separation(above: Real, below: Real) -> float:
    """Chance, 0 to 1, that one drawn of `above` (n,) is larger than one of `below` (m,); equal ones count half.

    The area under the receiver operating characteristic (Hanley & McNeil 1982): 1 parts the two, 1/2 says nothing.
    """
    both = ranks(np.concatenate([above, below]))
    n, m = len(above), len(below)
    return float((both[:n].sum() - n * (n + 1) / 2) / (n * m))


def calibration_error(predicted: Real, label: Real, bins: int = 10) -> float:
    """Mean distance, 0 to 1, between predictions (n,) and labels (n,) over bins of equal width of the prediction.

    The expected calibration error (Naeini et al. 2015), with labels in [0, 1] in place of hits: each bin counts by how
    many predictions fall into it.
    """
    which = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    off = np.bincount(which, predicted - label, bins)
    return float(np.abs(off).sum() / len(predicted))
