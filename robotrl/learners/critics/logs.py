"""Logged episodes in a replay: which frames a critic learns from, and which are held out to judge it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.datasets.agreement.agree import check_reach
from robotrl.datasets.agreement.flags import flags
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError
from robotrl.fn.evidence.critic_quality import held_out
from robotrl.labels.corrections import person_frames
from robotrl.learners.dataset import read_for
from robotrl.learners.learner import Setup
from robotrl.policies.reach import reach_of
from robotrl.replay.buffer import Replay
from robotrl.spec import VecSim

SUCCESS = "next.success"
"""Column of outcomes."""


class Logs(NamedTuple):
    """Episodes in a replay of one stream, of which frame k is step k: first those of the logs, then demonstrations."""

    replay: Replay
    """All frames."""
    offsets: NDArray[np.int64]
    """(E + 1,) first frame of each episode, and the number of frames."""
    success: NDArray[np.bool_] | None
    """(E,) outcomes; None if they are unknown."""
    held_out: NDArray[np.bool_]
    """(E,) True for the episodes that the critic does not learn from; never a demonstration."""
    demonstrated: NDArray[np.bool_]
    """(E,) True for demonstrations."""
    person: NDArray[np.bool_]
    """(F,) True for frames in which a person corrected the policy."""
    tasks: NDArray[np.int64]
    """(E,) number of each episode's task."""

    def frames(self, held: bool) -> torch.Tensor:
        """Frames (M,) int64 of the episodes that are held out, or of the others, in order."""
        return torch.from_numpy(np.flatnonzero(np.repeat(self.held_out == held, np.diff(self.offsets))))

    def reward_successes(self) -> None:
        """Replace the rewards: 1 in the last step of a success, 0 in all others.

        Raises:
            ConfigError: the outcomes are unknown.
        """
        if self.success is None:
            raise ConfigError(
                f"algo.rewards is 'success' and the dataset has no column {SUCCESS!r}: expected 'stored', or a dataset"
                " that says which episodes succeeded"
            )
        rewards = np.zeros(self.offsets[-1], np.float32)
        rewards[self.offsets[1:] - 1] = self.success
        self.replay.set_reward(torch.arange(len(rewards)), torch.from_numpy(rewards))


def read_logs(cfg: Any, setup: Setup, policy: Any, sim: VecSim) -> Logs:
    """Read the logs of a run, and demonstrations beside them.

    Args:
        cfg: settings with `demos`, `rewards`, `held_out` and `dataset_keys`.
        setup: setup with the dataset of logged episodes.
        policy: the policy that they are read for.
        sim: its sim.

    Raises:
        ConfigError: a dataset is missing or contradicts the sim or the policy, or all rewards are alike.
        DataError: a dataset cannot be read, or is doubtful.
    """
    sources = [setup] if cfg.demos is None else [setup, setup._replace(dataset=Path(cfg.demos))]
    specs = policy.observation_spec
    datasets = [read_for(one, cfg.dataset_keys, specs, sim, policy.transforms.inputs) for one in sources]
    for dataset in datasets:
        check_reach(dataset, policy.transforms, sim.action_spec, reach_of(policy))
    frames = sum(dataset.num_frames for dataset in datasets)
    replay = Replay.create(
        None, specs, sim.action_spec, streams=1, capacity=max(2, frames), control_dt_s=sim.control_dt_s
    )
    for dataset in datasets:
        replay.add_demos(dataset, accept=True)
    outcomes = [_outcomes(dataset) for dataset in datasets]
    lengths = np.concatenate([np.diff(dataset.offsets) for dataset in datasets])
    held = np.zeros(len(lengths), np.bool_)
    held[: datasets[0].num_episodes] = held_out(outcomes[0], datasets[0].num_episodes, cfg.held_out, setup.seed)
    success = None
    if outcomes[0] is not None:
        # a demonstration without an outcome counts as a success
        filled = [
            np.ones(dataset.num_episodes, np.bool_) if found is None else found
            for dataset, found in zip(datasets, outcomes, strict=True)
        ]
        success = np.concatenate(filled)
    logs = Logs(
        replay,
        np.concatenate([[0], np.cumsum(lengths)]),
        success,
        held,
        demonstrated=np.arange(len(lengths)) >= datasets[0].num_episodes,
        person=np.concatenate([person_frames(dataset) for dataset in datasets]),
        tasks=_tasks(datasets),
    )
    if cfg.rewards == "success":
        logs.reward_successes()
    rewards = replay.view(replay.indices(), 1, 1.0).reward
    if float(rewards.min()) == float(rewards.max()):
        raise ConfigError(
            f"dataset {setup.dataset} has the reward {float(rewards[0]):g} in all {len(rewards)} steps: expected some"
            " that differ, a critic of these tells nothing apart; of sims and robots without rewards expected"
            " algo.rewards success"
        )
    return logs


def _tasks(datasets: Sequence[Dataset]) -> NDArray[np.int64]:
    """Number (E,) of the task of each episode: equal texts have equal numbers."""
    texts = [
        dataset.tasks[task]
        for dataset in datasets
        for task in dataset.frames("task_index")[dataset.offsets[:-1]].tolist()
    ]
    return np.unique(texts, return_inverse=True)[1].astype(np.int64)


def _outcomes(dataset: Dataset) -> NDArray[np.bool_] | None:
    """Success (E,) of a dataset's episodes; None if it does not state it."""
    if SUCCESS in dataset.features:
        return np.logical_or.reduceat(flags(dataset, SUCCESS), dataset.offsets[:-1])
    if "success" in dataset.episodes:
        return np.asarray(dataset.episodes["success"], np.bool_)
    return None
