"""Learners on the walk whose envs are divided into shards."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from robotrl.cluster.factory import ClusterCollectors
from robotrl.config import ClusterCfg
from robotrl.learners.learner import Setup
from robotrl.spec import Step
from robotrl.utils.devices import CPU
from tests.kits.learner_kit import setup
from tests.kits.walk_sim import BareWalk, Walk

ENVS = 32
TWO = ClusterCfg("local", workers=2)


def walk(envs: int, number: int, seed: int) -> Walk:
    """The sim of a shard."""
    return Walk(envs, seed + number)


def collectors(cfg: ClusterCfg, make_sim: Any = walk) -> ClusterCollectors:
    return ClusterCollectors(cfg, partial(make_sim, ENVS // cfg.workers), 1, CPU)


def clustered(cfg: ClusterCfg, init_policy: Any = None, policy_cfg: Any = None, make_sim: Any = walk) -> Setup:
    return setup(init_policy, policy_cfg, num_envs=ENVS)._replace(collectors=collectors(cfg, make_sim))


class Dying(Walk):
    """A walk whose process is killed at a step, once for each file that is missing.

    Args:
        envs: N.
        seed: of the draw of training starts.
        at: step of the process at which it is killed.
        marks: files; the first one that is missing is made before the process is killed.
    """

    def __init__(self, envs: int, seed: int, at: int, marks: tuple[Path, ...]) -> None:
        super().__init__(envs, seed)
        self._at, self._marks = at, marks

    def step(self, actions: Tensor) -> Step:
        step = super().step(actions)
        missing = [mark for mark in self._marks if not mark.exists()]
        if missing and len(self.tape) == self._at:
            missing[0].touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step


class Stateless(BareWalk):
    """A walk without a state to restore, with the observations at the ends of episodes."""

    has_final_obs: Literal[True] = True

    def _final(self, final: dict[str, Tensor]) -> dict[str, Tensor]:
        return final


def dying(marks: tuple[Path, ...], at: int, envs: int, number: int, seed: int) -> Walk:
    """The sim of a shard; the second shard dies."""
    return Dying(envs, seed + number, at, marks if number == 1 else ())


def stateless(envs: int, number: int, seed: int) -> Stateless:
    """The sim of a shard that cannot be restored."""
    return Stateless(envs, seed + number)


def poisoned(envs: int, number: int, seed: int) -> Walk:
    """The sim of a shard; the second one gives a reward that is no number."""
    sim = Walk(envs, seed)
    if number == 1:
        sim.poison[3, 5] = "reward"
    return sim
