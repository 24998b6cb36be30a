"""Choice of frames: the best share by advantage, and frames before which no progress is lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.returns.episode_returns import Flags, Offsets, Real


def share_threshold(values: Real, share: float) -> float:
    """Number above which the given share, 0 to 1, of values (n,) lies."""
    return float(np.quantile(values, 1 - share))


def kept_frames(progress: Real, offsets: Offsets, horizon: int, delta: float) -> Flags:
    """Frames (F,) whose next chunk loses no more than `delta` of progress (GR-RL, arXiv 2512.01801).

    A frame is dropped if the progress anywhere within the next `horizon` steps of its episode lies more than `delta`
    below the progress at the frame.

    Args:
        progress: (F,) of the frames of all episodes, one episode after the other.
        offsets: (E + 1,) first frame of each episode, and F.
        horizon: H, steps of a chunk, 1 or more.
        delta: largest loss of progress, 0 or more.
    """
    last = np.repeat(offsets[1:] - 1, np.diff(offsets))
    frame = np.arange(offsets[-1])
    lowest = progress.copy()
    for ahead in range(1, horizon + 1):
        lowest = np.minimum(lowest, progress[np.minimum(frame + ahead, last)])
    kept: NDArray[np.bool_] = progress - lowest <= delta
    return kept
