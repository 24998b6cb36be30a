"""Labelled observations for a success classifier, from recorded episodes and from datasets of demonstrations.

Labels belong to the observation that a step *reached*, because a reward source gets that one. A dataset holds the
observations *before* each action, so the last one, which shows the success, is missing. For a dataset from a sim,
`replay` runs its actions again and gets that observation exactly; for a robot's dataset, `label_dataset` uses the last
frames of successful episodes instead.
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
"""Largest difference between an observation of the dataset and its replay, in the observation's own unit."""


class Labeled(NamedTuple):
    """F labelled observations: the frames of an episode in time order, the episodes one after the other."""

    obs: dict[str, NDArray[np.generic]]
    """(F, ...) each."""
    success: NDArray[np.bool_]
    """(F,)."""
    episode: NDArray[np.int64]
    """(F,) index of the episode: a split keeps an episode's frames together."""

    def tensors(self) -> Arrays:
        """The observations as tensors."""
        return {key: torch.from_numpy(value) for key, value in self.obs.items()}

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(np.unique(self.episode))


def label_episodes(episodes: Sequence[Episode], keys: Sequence[str]) -> Labeled:
    """Label recorded episodes of a sim that ends them at success: a success's last observation is positive.

    Args:
        episodes: recorded by `run_episodes`.
        keys: observation arrays to keep.

    Raises:
        ConfigError: an episode was not recorded, an array is unknown, or a successful one lasted until its time limit.
    """
    parts: list[Labeled] = []
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
        parts.append(Labeled({key: episode.obs[key] for key in keys}, success, np.full(frames, number)))
    return join(parts)


def label_dataset(dataset: Dataset, keys: Sequence[str], tail: int) -> Labeled:
    """Label a dataset's own frames, for robots, where no replay is possible.

    A frame is a success if the step before it had `next.success`, and so are the last `tail` frames of a successful
    episode. The earlier frames of a successful episode count as failures, which blurs the boundary: keep `tail` small,
    and record a few more frames after each success.

    Args:
        dataset: with the column `next.success`.
        keys: observation arrays to keep.
        tail: number of last frames of a successful episode that count as successes, 0 or more.

    Raises:
        ConfigError: an array is unknown, or `tail` is out of range.
        DataError: `next.success` holds something other than flags.
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
    return Labeled(obs, success, np.repeat(np.arange(dataset.num_episodes), lengths))


class _Tape:
    """Actor that replays recorded actions in the first episode of each env, then zeros."""

    def __init__(self, actions: Sequence[NDArray[np.float32]], num_envs: int, width: int) -> None:
        longest = max(len(a) for a in actions)
        self._actions = torch.zeros(longest + 1, num_envs, width)
        for env, rows in enumerate(actions):
            self._actions[: len(rows), env] = torch.from_numpy(rows)
        self._step = 0

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Return the actions (N, A) of the next step."""
        del obs, turn
        step = min(self._step, len(self._actions) - 1)
        self._step += 1
        return self._actions[step]


def replay(dataset: Dataset, sim: VecSim) -> list[Episode]:
    """Replay a dataset's actions from its start states on the sim, to get the missing last observations.

    Args:
        dataset: recorded on this sim, with the column `state_id` in its episodes table.
        sim: with numbered start states.

    Raises:
        DataError: the dataset has no start states, or the replay gives other observations, so that the sim or its
            options differ.
    """
    if "state_id" not in dataset.episodes:
        raise DataError(f"dataset {dataset.root} has no starts (state_id): it cannot be replayed on a sim")
    starts = dataset.episodes["state_id"].astype(np.int64)
    # videos are compressed with losses, so only numbers are compared
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


def join(parts: Sequence[Labeled]) -> Labeled:
    """Concatenate several labelled sets; episodes stay separate.

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
    return Labeled(
        {key: np.concatenate([part.obs[key] for part in parts]) for key in keys},
        np.concatenate([part.success for part in parts]),
        np.concatenate(numbered),
    )


def split(labeled: Labeled, shares: Sequence[float], seed: int) -> list[Labeled]:
    """Split the episodes at random; an episode's frames stay together.

    Successful and other episodes are split separately, so that every part gets its share of both.

    Args:
        labeled: the whole set.
        shares: fraction of each part; they sum to 1.
        seed: of the split.

    Raises:
        ConfigError: the shares do not sum to 1, or a part would have no success or no other frame.
    """
    successful = np.unique(labeled.episode[labeled.success])
    others = np.setdiff1d(labeled.episode, successful)
    out: list[Labeled] = []
    for dealt in deal((successful, others), shares, seed):
        rows = np.isin(labeled.episode, dealt)
        part = Labeled({k: v[rows] for k, v in labeled.obs.items()}, labeled.success[rows], labeled.episode[rows])
        if not part.success.any() or part.success.all():
            raise ConfigError(
                f"{len(successful)} successful episodes and {len(others)} others cannot be dealt into parts of"
                f" {tuple(shares)}: expected successes and other frames in each; record more episodes"
            )
        out.append(part)
    return out


def deal(kinds: Sequence[NDArray[np.int64]], shares: Sequence[float], seed: int) -> list[NDArray[np.int64]]:
    """Split numbered items into parts at random, each kind separately.

    Args:
        kinds: (n,) the items of each kind.
        shares: fraction of each part, of every kind; they sum to 1.
        seed: of the split.

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
