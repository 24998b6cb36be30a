"""Labelled observations for a success classifier: from recorded episodes, and from datasets of demonstrations.

What is labelled is the observation that a step *reached*, since that is what a reward source is shown. A dataset holds
the observations *before* each action, so the one that shows the success, the last of all, is not in it. Where the
dataset came from a sim, `replay` runs its actions again and finds that observation exactly; for a robot's dataset,
`label_dataset` takes the last frames of successful episodes in its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.datasets.agreement.flags import flags
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, DataError, check_at_least, out_of_range, unknown
from robotrl.rollout.evaluate import Episode, Turn, run_episodes
from robotrl.spec import Arrays, VecSim

REPLAY_TOLERANCE = 1e-4
"""Largest difference between an observation of the dataset and the same one replayed, in its own unit."""


class Labelled(NamedTuple):
    """F labelled observations: the frames of an episode in time order, the episodes one after the other."""

    obs: dict[str, NDArray[np.generic]]
    """(F, ...) each."""
    success: NDArray[np.bool_]
    """(F,)."""
    episode: NDArray[np.int64]
    """(F,) which episode: a split must not part the frames of one."""

    def tensors(self) -> Arrays:
        """The observations as tensors."""
        return {key: torch.from_numpy(value) for key, value in self.obs.items()}

    @property
    def num_episodes(self) -> int:
        """How many episodes there are."""
        return len(np.unique(self.episode))


def label_episodes(episodes: Sequence[Episode], keys: Sequence[str]) -> Labelled:
    """Label recorded episodes of sims that end an episode at its success: the last observation of a successful one.

    Args:
        episodes: recorded by `run_episodes`.
        keys: which observation arrays to keep.

    Raises:
        ConfigError: an episode was not recorded, an array is unknown, or a successful one lasted until its time limit.
    """
    parts: list[Labelled] = []
    for number, episode in enumerate(episodes):
        for key in keys:
            if key not in episode.obs:
                raise unknown("observation", key, episode.obs)
        if episode.success and not episode.terminated:
            raise ConfigError(
                f"episode {number} succeeded by lasting until its time limit, or before it and went on: its last"
                " observation does not show that to a success classifier; expected a sim that ends an episode at its"
                " success (of gym/ID the option end_at_success=true)"
            )
        frames = episode.length + 1
        success = np.zeros(frames, bool)
        success[-1] = episode.success
        parts.append(Labelled({key: episode.obs[key] for key in keys}, success, np.full(frames, number)))
    return join(parts)


def label_dataset(dataset: Dataset, keys: Sequence[str], tail: int) -> Labelled:
    """Label a dataset's own frames, for robots, where nothing can be replayed.

    A frame shows a success where the step that led to it had `next.success`, and so do the last `tail` frames of a
    successful episode. The frames of a successful episode before those are failures, which blurs the border: keep
    `tail` small, and record a few frames more after each success.

    Args:
        dataset: with the columns `next.success`.
        keys: which observation arrays to keep.
        tail: how many last frames of a successful episode count as successes, 0 or more.

    Raises:
        ConfigError: an array is unknown, or `tail` is out of range.
        DataError: `next.success` holds something else than flags.
    """
    check_at_least("tail", tail, 0)
    known = [name.removeprefix("observation.") for name in dataset.features if name.startswith("observation.")]
    for key in keys:
        if key not in known:
            raise unknown("observation", key, known)
    led_to = flags(dataset, "next.success")
    success = np.zeros(dataset.num_frames, bool)
    for first, last in zip(dataset.offsets[:-1], dataset.offsets[1:], strict=True):
        success[first + 1 : last] = led_to[first : last - 1]
        if tail and led_to[first:last].any():
            success[max(first, last - tail) : last] = True
    lengths = np.diff(dataset.offsets)
    obs = {key: dataset.frames(observation_key(key)) for key in keys}
    return Labelled(obs, success, np.repeat(np.arange(dataset.num_episodes), lengths))


class _Tape:
    """An actor that repeats recorded actions in the first episode of each env, and is idle afterwards."""

    def __init__(self, actions: Sequence[NDArray[np.float32]], num_envs: int, width: int) -> None:
        longest = max(len(a) for a in actions)
        self._actions = torch.zeros(longest + 1, num_envs, width)
        for env, rows in enumerate(actions):
            self._actions[: len(rows), env] = torch.from_numpy(rows)
        self._step = 0

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A) of the step that comes."""
        del obs, turn
        step = min(self._step, len(self._actions) - 1)
        self._step += 1
        return self._actions[step]


def replay(dataset: Dataset, sim: VecSim) -> list[Episode]:
    """Run a dataset's actions again from its starts, to see what the dataset does not hold: the last observation.

    Args:
        dataset: recorded on this sim, with the column `state_id` in its episodes table.
        sim: with numbered starts.

    Raises:
        DataError: the dataset has no starts, or the sim does not come by the same observations, so that it is another
            sim or has other options.
    """
    if "state_id" not in dataset.episodes:
        raise DataError(f"dataset {dataset.root} has no starts (state_id): it cannot be replayed on a sim")
    starts = dataset.episodes["state_id"].astype(np.int64)
    # a video may differ from what was seen, so the numbers alone have to be the same
    keys = [key for key in sim.observation_spec if dataset.features[observation_key(key)].is_array]
    width = sim.action_spec.shape[0]
    found: list[Episode] = []
    for begin in range(0, dataset.num_episodes, sim.num_envs):
        block = range(begin, min(begin + sim.num_envs, dataset.num_episodes))
        taped = [dataset.episode(index) for index in block]
        actions = [columns[ACTION].reshape(-1, width) for columns in taped]
        episodes = run_episodes(
            _Tape(actions, sim.num_envs, width), sim, starts[list(block)], record=True, description="replay"
        )
        for index, columns, episode in zip(block, taped, episodes, strict=True):
            _compare(dataset, index, {key: columns[observation_key(key)] for key in keys}, episode)
            found.append(episode)
    return found


def _compare(dataset: Dataset, index: int, taped: dict[str, NDArray[Any]], episode: Episode) -> None:
    length = len(next(iter(taped.values())))
    if episode.length != length:
        raise DataError(
            f"dataset {dataset.root}: episode {index} lasts {length} steps, and {episode.length} when it is replayed:"
            " the sim or its options are not those that it was recorded with"
        )
    for key, rows in taped.items():
        error = np.abs(episode.obs[key][:-1].astype(np.float64) - rows.reshape(length, *episode.obs[key].shape[1:]))
        if error.max() > REPLAY_TOLERANCE:
            step = int(np.argmax(error.reshape(length, -1).max(axis=1) > REPLAY_TOLERANCE))
            raise DataError(
                f"dataset {dataset.root}: observation {key!r} of episode {index}, step {step} differs by"
                f" {error[step].max():.2g} when it is replayed: the sim or its options are not those that it was"
                " recorded with"
            )


def join(parts: Sequence[Labelled]) -> Labelled:
    """One labelled set of several; episodes stay apart.

    Raises:
        ConfigError: there is none, or they hold different observation arrays.
    """
    if not parts:
        raise ConfigError("labelled observations: there are none: expected at least one episode")
    keys = list(parts[0].obs)
    if any(list(part.obs) != keys for part in parts):
        raise ConfigError(f"labelled sets hold {[list(part.obs) for part in parts]}: expected the same arrays in each")
    numbered: list[NDArray[np.int64]] = []
    total = 0
    for part in parts:
        ids, rows = np.unique(part.episode, return_inverse=True)
        numbered.append(rows.astype(np.int64) + total)
        total += len(ids)
    return Labelled(
        {key: np.concatenate([part.obs[key] for part in parts]) for key in keys},
        np.concatenate([part.success for part in parts]),
        np.concatenate(numbered),
    )


def split(labelled: Labelled, shares: Sequence[float], seed: int) -> list[Labelled]:
    """Part the episodes, never the frames of one, at random.

    Successful episodes and others are dealt separately, so that every part gets its share of both.

    Args:
        labelled: all.
        shares: of each part; they sum to 1.
        seed: of the draw.

    Raises:
        ConfigError: the shares do not sum to 1, or a part would have no success or no other frame.
    """
    successful = np.unique(labelled.episode[labelled.success])
    others = np.setdiff1d(labelled.episode, successful)
    out: list[Labelled] = []
    for dealt in deal((successful, others), shares, seed):
        rows = np.isin(labelled.episode, dealt)
        part = Labelled({k: v[rows] for k, v in labelled.obs.items()}, labelled.success[rows], labelled.episode[rows])
        if not part.success.any() or part.success.all():
            raise ConfigError(
                f"{len(successful)} successful episodes and {len(others)} others cannot be dealt into parts of"
                f" {tuple(shares)}: expected successes and other frames in each; record more episodes"
            )
        out.append(part)
    return out


def deal(kinds: Sequence[NDArray[np.int64]], shares: Sequence[float], seed: int) -> list[NDArray[np.int64]]:
    """Deal numbered things into parts at random, those of each kind for themselves.

    Args:
        kinds: (n,) the things of each kind.
        shares: of each part, of every kind; they sum to 1.
        seed: of the draw.

    Raises:
        ConfigError: the shares do not sum to 1.
    """
    if not math.isclose(sum(shares), 1.0) or min(shares) <= 0:
        raise out_of_range("shares", tuple(shares), "numbers above 0 that sum to 1")
    rng = np.random.default_rng(seed)
    edges = np.cumsum([0.0, *shares])
    parts: list[list[NDArray[np.int64]]] = [[] for _ in shares]
    for kind in kinds:
        dealt = rng.permutation(kind)
        cuts = np.round(edges * len(dealt)).astype(int)
        for part, first, last in zip(parts, cuts[:-1], cuts[1:], strict=True):
            part.append(dealt[first:last])
    return [np.concatenate(part) for part in parts]
