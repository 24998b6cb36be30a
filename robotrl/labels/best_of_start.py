"""Labels by the best trial of each start, as in RM-RL (2510.15189): it is what all trials of that start are to do.

Trials are grouped by their start state. The action that begins the best trial of a group labels the start of each trial
of the group; what comes later is cloned from the best trial alone, because the others went elsewhere. For tasks of one
decision, e.g. a placement, that is regression to the best action of each group.

If rewards are noisy, the best trial is the luckiest one: the largest of m normal errors of deviation sigma is sigma
sqrt(2 ln m) on average, or a little less. `overestimates` computes that bound from the spread within each group. The
spread holds real differences between actions, too, so it is an upper bound of the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.datasets.layout import observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, check_positive

REWARD = "next.reward"
"""Column of rewards."""
STATE_ID = "state_id"
"""Column of the episodes table: number of the start state, of sims with `HasStateIds`."""
Numbers = NDArray[np.int64]


class Trials(NamedTuple):
    """Trials of a dataset by their start."""

    group: Numbers
    """(E,) number of each trial's group, from 0, in the order of the groups' first trials."""
    returns: NDArray[np.float64]
    """(E,) sum of each trial's rewards."""

    @property
    def best(self) -> Numbers:
        """Number (E,) of the best trial of each trial's group; of equal ones the first."""
        out = np.empty(len(self.group), np.int64)
        for number in range(int(self.group.max()) + 1):
            members = np.flatnonzero(self.group == number)
            out[members] = members[np.argmax(self.returns[members])]
        return out

    @property
    def overestimates(self) -> NDArray[np.float64]:
        """Bound (G,) on how far the best return of each group lies above what its action earns on average.

        s sqrt(2 ln m), with the standard deviation s of the m returns of a group; 0 for a group of one trial.
        """
        out = np.zeros(int(self.group.max()) + 1)
        for number in range(len(out)):
            returns = self.returns[self.group == number]
            if len(returns) > 1:
                out[number] = returns.std(ddof=1) * math.sqrt(2 * math.log(len(returns)))
        return out

    @property
    def scalars(self) -> dict[str, float]:
        """Scalars to log: number of groups, trials of a group, and `overestimates`, means over the groups."""
        groups = int(self.group.max()) + 1
        return {
            "labels/groups": float(groups),
            "labels/trials_per_group": len(self.group) / groups,
            "labels/overestimate": float(self.overestimates.mean()),
        }


class BestTrialFrames(NamedTuple):
    """Frames to clone, each with the frame whose chunk is its label."""

    frame: Numbers
    """(K,) frames, in order."""
    source: Numbers
    """(K,) frames at which the chunks to clone begin."""


def grouped_by_id(ids: NDArray[Any]) -> Numbers:
    """Groups (E,) of equal start numbers (E,)."""
    found: dict[int, int] = {}
    return np.array([found.setdefault(int(one), len(found)) for one in ids], np.int64)


def grouped_within(starts: NDArray[Any], distance: float) -> Numbers:
    """Groups (E,) of close starts: each joins the first group whose first start is within the Euclidean distance.

    Args:
        starts: (E, D) observations of the starts.
        distance: largest distance, in the units of the observations.
    """
    first: list[NDArray[Any]] = []
    out = np.empty(len(starts), np.int64)
    for index, start in enumerate(starts):
        near = [number for number, one in enumerate(first) if np.linalg.norm(start - one) <= distance]
        out[index] = near[0] if near else len(first)
        if not near:
            first.append(start)
    return out


def best_frames(offsets: NDArray[Any], best: Numbers) -> BestTrialFrames:
    """Frames to clone: the first one of each trial with the chunk of its group's best, and all those of the best.

    Args:
        offsets: (E + 1,) first frame of each trial, and the number of frames.
        best: (E,) see `Trials.best`.
    """
    source = np.arange(int(offsets[-1]))
    source[offsets[:-1]] = offsets[:-1][best]
    cloned = np.repeat(best == np.arange(len(best)), np.diff(offsets))
    cloned[offsets[:-1]] = True
    frame = np.flatnonzero(cloned)
    return BestTrialFrames(frame, source[frame])


def trials_of(dataset: Dataset, keys: Sequence[str], distance: float | None) -> Trials:
    """Group the trials of a dataset: its episodes.

    Args:
        dataset: a dataset with rewards.
        keys: observations, by the sim's keys, that tell starts apart; vectors.
        distance: see `grouped_within`; None groups by the number of the start state.

    Raises:
        ConfigError: there are no rewards, no numbers of starts, no vectors, or no start has two trials.
    """
    if REWARD not in dataset.features:
        raise ConfigError(f"dataset {dataset.root} has no column {REWARD!r}: expected rewards, to find the best trials")
    returns = np.add.reduceat(dataset.frames(REWARD).astype(np.float64), dataset.offsets[:-1])
    if distance is None:
        ids = dataset.episodes.get(STATE_ID)
        if ids is None or (np.asarray(ids) < 0).any():
            raise ConfigError(
                f"algo.start_distance is None and dataset {dataset.root} does not number all its starts ({STATE_ID}):"
                " expected a distance, in the units of the observations"
            )
        group = grouped_by_id(np.asarray(ids))
    else:
        check_positive("algo.start_distance", distance)
        if not keys:
            raise ConfigError(f"algo.start_distance is {distance} and dataset {dataset.root} has no vectors to compare")
        first = [dataset.frames(observation_key(key))[dataset.offsets[:-1]] for key in keys]
        group = grouped_within(np.concatenate([x.reshape(len(x), -1) for x in first], axis=1), distance)
    if len(np.unique(group)) == len(group):
        raise ConfigError(
            f"dataset {dataset.root} has {len(group)} trials, none of which share a start: expected several of a start,"
            " or a larger algo.start_distance"
        )
    return Trials(group, returns)
