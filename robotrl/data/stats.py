"""Statistics of dataset features, with the names and shapes that LeRobot uses.

LeRobot's own quantiles come from a 5000-bin histogram for each episode, averaged over episodes; ours are exact, over
all frames at once. Mean, standard deviation (population), minimum, maximum and count agree.
"""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Stats = dict[str, np.ndarray]
"""min, max, mean, std and quantiles (D,) each, and count (1,)."""


def describe(values: np.ndarray) -> Stats:
    """Statistics over the first axis of (T,) or (T, D); T is 1 or more."""
    x = values.reshape(len(values), -1)
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
