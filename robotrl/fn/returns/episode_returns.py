"""Returns of episodes that count their steps, and N-step advantages on them (RECAP, arXiv 2511.14759).

A step costs 1, so that the return is the time to success. The last step of a success costs nothing; that of a failed
end costs `fail_cost`. An open end is neither: a time limit cut the episode, and nobody knows how it would have gone on.

Arrays hold the frames of all episodes, one episode after the other; `offsets` (E + 1,) are the first frame of each, and
the number of frames.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]
Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]


def step_rewards(offsets: Offsets, success: Flags, failed: Flags, fail_cost: Real) -> Real:
    """Rewards (F,): -1 a step; in an episode's last step 0 for a success and -fail_cost for a failed end.

    Args:
        offsets: see the module.
        success: (E,) True for episodes that succeeded.
        failed: (E,) True for episodes with a failed end; the others without success have open ends.
        fail_cost: (E,) cost of a failed end, in steps.
    """
    rewards = np.full(offsets[-1], -1.0)
    rewards[offsets[1:] - 1] = np.where(success, 0.0, np.where(failed, -fail_cost, -1.0))
    return rewards


def returns_to_go(rewards: Real, offsets: Offsets, tail: Real) -> Real:
    """Returns (F,) from each frame on, undiscounted.

    Args:
        rewards: (F,).
        offsets: see the module.
        tail: (E,) value of what follows an episode's last step: 0 after a success or a failed end.
    """
    sums = np.concatenate([[0.0], np.cumsum(rewards)])
    lengths = np.diff(offsets)
    return np.repeat(sums[offsets[1:]] + tail, lengths) - sums[:-1]


def step_advantages(rewards: Real, values: Real, offsets: Offsets, open_end: Flags, steps: int) -> Real:
    """N-step advantages (F,): rewards of the next N steps, plus the value after them, minus the value now.

    Where the episode ends within N steps, the rewards up to its end count, and no value after them. An open end has
    the value of its last frame instead, N or fewer steps on; so its last frame has the advantage 0.

    Args:
        rewards: (F,).
        values: (F,) value of each frame's state.
        offsets: see the module.
        open_end: (E,) True for episodes with an open end.
        steps: N, 1 or more.
    """
    lengths = np.diff(offsets)
    frame = np.arange(offsets[-1])
    end = np.repeat(offsets[1:], lengths)
    opened = np.repeat(open_end, lengths)
    then = np.minimum(frame + steps, np.where(opened, end - 1, end))
    sums = np.concatenate([[0.0], np.cumsum(rewards)])
    later = np.where(then < end, values[np.minimum(then, offsets[-1] - 1)], 0.0)
    return sums[then] - sums[frame] + later - values


def return_scale(returns: Real, offsets: Offsets, tasks: NDArray[np.int64]) -> Real:
    """Scale (E,) by which the returns of each task lie in [-1, 0]: its largest cost of an episode, 1 or more.

    Args:
        returns: (F,) unscaled, 0 or less.
        offsets: see the module.
        tasks: (E,) number of each episode's task.
    """
    cost = np.maximum(-returns[offsets[:-1]], 1.0)
    most = np.zeros(int(tasks.max()) + 1)
    np.maximum.at(most, tasks, cost)
    return most[tasks]
