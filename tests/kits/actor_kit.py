"""Sims and watchers for an actor's process: everything here is imported by that process, under its name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

import tests.kits.off_policy_kit as off
from robotrl.errors import ConfigError, NumericsError
from robotrl.interventions.base import Intervention
from robotrl.replay.corrections import Correction
from robotrl.rewards.trust.returns import LoggedSim, RewardLog
from robotrl.sims.wrapper import declared
from robotrl.spec import VecSim
from tests.kits.late_kit import NumberCfg, late_sim
from tests.kits.walk_sim import Walk


class Told(Walk):
    """A walk that writes a line for each of its steps, and may fail at one.

    Args:
        log: where to.
        fail: what happens before step `at`: "hang", "die", "numbers" (an error of ours), "bug" (any other).
        at: the step, counted from 1 in this process.
    """

    def __init__(self, log: Path, fail: str = "", at: int = 0) -> None:
        super().__init__(off.ENVS)
        self._log, self._fail, self._at, self._count = log, fail, at, 0

    def step(self, actions: torch.Tensor) -> Any:
        self._count += 1
        if self._count == self._at:
            if self._fail == "hang":
                time.sleep(1000)
            if self._fail == "die":
                os._exit(7)
            if self._fail == "numbers":
                raise NumericsError("reward of env 1 is nan")
            if self._fail == "bug":
                raise ZeroDivisionError("by nothing")
        with self._log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return super().step(actions)


def corrected(sim: VecSim) -> Intervention:
    """Takes over the first and the last env and does 0.25."""
    taken = torch.tensor([True, False, False, True])
    return off.Watcher(lambda obs, action, started: Correction(torch.full_like(action, 0.25), taken))


def refused(sim: VecSim) -> Intervention:
    raise ConfigError("device is not there")


def unreadable() -> None:
    raise LookupError("the recipe is of another time")


class Unreadable:
    """A watcher's maker that cannot be made again in another process."""

    def __reduce__(self) -> Any:
        return unreadable, ()

    def __call__(self, sim: VecSim) -> Intervention:
        raise AssertionError


def scored() -> Any:
    """The walk with scores of a service that come late, and what is logged of them."""
    log = RewardLog()
    sim = late_sim(Walk(4), NumberCfg(scorer={"delay_s": 0.01}), log.means)
    return declared(LoggedSim, sim)(sim, log)
