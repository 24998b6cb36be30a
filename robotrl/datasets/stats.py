"""Statistics of dataset features, with the names and shapes that LeRobot uses.

LeRobot's own quantiles come from a 5000-bin histogram for each episode, averaged over episodes; ours are exact, over
all frames at once. Mean, standard deviation (population), minimum, maximum and count agree.
"""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

COUNTED = 2**18
"""Number of pixels counted at a time."""

Stats = dict[str, np.ndarray]
"""min, max, mean, std and quantiles (D,) each, and count (1,); for an image, per channel over its pixels."""


def describe(values: np.ndarray) -> Stats:
    """Statistics over the first axis of (T,) or (T, D), or per channel of images (T, h, w, D); T is 1 or more."""
    x = rows_of(values)
    if x.dtype == np.uint8 and values.ndim > 2:
        return describe_levels(count_levels(values))
    wide = x.astype(np.float64)
    stats: Stats = {
        "min": x.min(axis=0),
        "max": x.max(axis=0),
        "mean": wide.mean(axis=0),
        "std": wide.std(axis=0),
        "count": np.array([len(x)], np.int64),
    }
    stats.update(zip(QUANTILES, np.quantile(wide, list(QUANTILES.values()), axis=0), strict=True))
    return stats


def rows_of(values: np.ndarray) -> np.ndarray:
    """Rows for statistics: (T, D) from (T,) or (T, D), the pixels (T h w, D) from images (T, h, w, D)."""
    return values.reshape(-1, values.shape[-1]) if values.ndim > 2 else values.reshape(len(values), -1)


def count_levels(pictures: np.ndarray) -> np.ndarray:
    """Histogram of the levels of each channel of uint8 images (T, h, w, D): (D, 256) int64 counts.

    Counts of several parts add up to those of the whole, so statistics over more data than fits into memory are exact.
    """
    rows = rows_of(pictures)
    counts = np.zeros((rows.shape[1], 256), np.int64)
    # counting takes eight bytes for each byte counted
    for start in range(0, len(rows), COUNTED):
        counts += [np.bincount(column, minlength=256) for column in rows[start : start + COUNTED].T]
    return counts


def describe_levels(counts: np.ndarray) -> Stats:
    """Statistics of uint8 data from its histogram, without converting or sorting millions of pixels.

    Args:
        counts: (D, 256) from `count_levels`, the same number of bytes in each row.
    """
    n = int(counts[0].sum())
    level = np.arange(256, dtype=np.float64)
    mean = counts @ level / n
    there = counts > 0
    stats: Stats = {
        "min": there.argmax(axis=1).astype(np.uint8),
        "max": (255 - there[:, ::-1].argmax(axis=1)).astype(np.uint8),
        "mean": mean,
        "std": np.sqrt((counts * (level - mean[:, None]) ** 2).sum(axis=1) / n),
        "count": np.array([n], np.int64),
    }
    upto = counts.cumsum(axis=1)
    for name, q in QUANTILES.items():
        place = q * (n - 1)
        below, above = ((upto <= rank).sum(axis=1) for rank in (np.floor(place), np.ceil(place)))
        stats[name] = below + (place - np.floor(place)) * (above - below)
    return stats
