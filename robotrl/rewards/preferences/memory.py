"""Steps of a training run that preferences were or can be asked about, with the rewards that the learner was given."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.rewards.preferences.segments import Ints, StepPool
from robotrl.rewards.source import SimTransition
from robotrl.spec import Arrays, Spec
from robotrl.utils.hardware import check_memory

OTHER_BYTES = 11
"""Bytes of a kept step besides its observations and its action."""
LARGE_BYTES = 1 << 30
"""Memory of the kept steps that is worth a warning."""


class KeptSteps(NamedTuple):
    """The kept steps as a pool, with their places in the run."""

    pool: StepPool
    step: Ints
    """(F,) number of each step, counted per env."""
    env: Ints
    """(F,)."""


class StepMemory:
    """The newest steps of N envs, on the CPU.

    Args:
        specs: observations that are kept.
        action: the sim's action.
        num_envs: N.
        rows: steps that are kept of each env.
        where: name of the settings of the reward, for errors.

    Raises:
        ConfigError: the steps would take more than half of the free memory.
    """

    def __init__(self, specs: dict[str, Spec], action: Spec, num_envs: int, rows: int, where: str) -> None:
        check_step_memory(specs, action, num_envs * rows, where)
        self.rows, self.num_envs = rows, num_envs
        self.clock = 0
        """Number of the next step."""
        self._columns: dict[str, Tensor] = {
            **{f"obs/{key}": torch.zeros(rows, num_envs, *x.shape, dtype=_dtype(x)) for key, x in specs.items()},
            "action": torch.zeros(rows, num_envs, *action.shape),
            "reward": torch.zeros(rows, num_envs),
            "given": torch.zeros(rows, num_envs),
            "valid": torch.zeros(rows, num_envs, dtype=torch.bool),
            "terminated": torch.zeros(rows, num_envs, dtype=torch.bool),
            "cut": torch.zeros(rows, num_envs, dtype=torch.bool),
        }
        self._keys = tuple(specs)

    def add(self, transition: SimTransition, given: Tensor, valid: Tensor) -> None:
        """Keep a step of all envs.

        Args:
            transition: the step.
            given: (N,) reward that the learner was given.
            valid: (N,) bool.
        """
        row, step = self.clock % self.rows, transition.step
        values = {
            **{f"obs/{key}": transition.obs[key] for key in self._keys},
            "action": transition.action,
            "reward": step.reward,
            "given": given,
            "valid": valid,
            "terminated": step.terminated,
            "cut": step.truncated & ~step.terminated,
        }
        for name, value in values.items():
            column = self._columns[name]
            column[row] = value.to(column)
        self.clock += 1

    def cut(self, envs: Tensor) -> None:
        """Mark that the next steps of envs (N,) bool do not follow the newest ones."""
        if self.clock:
            row = (self.clock - 1) % self.rows
            over = envs.cpu() & ~self._columns["terminated"][row]
            self._columns["cut"][row] |= over

    @property
    def first(self) -> int:
        """Number of the oldest kept step."""
        return max(0, self.clock - self.rows)

    def kept(self) -> KeptSteps:
        """All kept steps, env by env in the order of time; there is one or more."""
        steps = np.arange(self.first, self.clock)
        rows = torch.from_numpy(steps % self.rows)
        ordered = {name: x[rows].transpose(0, 1).flatten(0, 1) for name, x in self._columns.items()}
        over = (ordered["terminated"] | ordered["cut"]).numpy().copy()
        over[len(steps) - 1 :: len(steps)] = True  # what follows the newest step is not there yet
        last = np.flatnonzero(over)
        end = last[np.searchsorted(last, np.arange(len(over)))] + 1
        pool = StepPool(
            {key: ordered[f"obs/{key}"] for key in self._keys},
            ordered["action"].flatten(1),
            ordered["reward"],
            torch.from_numpy(end),
            ordered["terminated"][torch.from_numpy(end - 1)],
        )
        return KeptSteps(pool, np.tile(steps, self.num_envs), np.repeat(np.arange(self.num_envs), len(steps)))

    def give(self, kept: KeptSteps, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the rewards of kept steps.

        Args:
            kept: the result of `kept`, without a step since.
            rewards: (F,).

        Returns:
            The changes (F,) of what the learner was given, and whether a step had no reward before, (F,) bool.
        """
        row, env = torch.from_numpy(kept.step % self.rows), torch.from_numpy(kept.env)
        given, valid = self._columns["given"], self._columns["valid"]
        change, fresh = rewards - given[row, env], ~valid[row, env]
        given[row, env] = rewards
        valid[row, env] = True
        return change, fresh

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State for an exact resume."""
        used = min(self.clock, self.rows)
        return {"clock": np.array(self.clock), **{name: x[:used].numpy().copy() for name, x in self._columns.items()}}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        self.clock = int(state["clock"])
        used = min(self.clock, self.rows)
        for name, column in self._columns.items():
            column.zero_()
            column[:used] = torch.from_numpy(state[name].copy())

    def given(self, kept: KeptSteps) -> Arrays:
        """Rewards that the learner was given (F,), "given", and whether they were valid, "valid"."""
        row, env = torch.from_numpy(kept.step % self.rows), torch.from_numpy(kept.env)
        return {name: self._columns[name][row, env] for name in ("given", "valid")}


def check_step_memory(specs: dict[str, Spec], action: Spec, steps: int, where: str) -> None:
    """Check what kept steps take, and warn of more than `LARGE_BYTES`.

    Raises:
        ConfigError: they would take more than half of the free memory.
    """
    each = {key: math.prod(spec.shape) * _dtype(spec).itemsize for key, spec in specs.items()}
    step_bytes = sum(each.values()) + 4 * math.prod(action.shape) + OTHER_BYTES
    said = f"{where}.memory is {steps}"
    check_memory(said, step_bytes, steps, f"fewer steps, or fewer observations than {where}.keys {', '.join(specs)}")
    if step_bytes * steps > LARGE_BYTES:
        largest = max(each, key=lambda key: each[key])
        warnings.warn(
            f"{said}, of {step_bytes:,} bytes each: {step_bytes * steps / 1e9:.1f} GB of memory, and as much in each"
            f" checkpoint once they are there, most of it observation {largest!r}; fewer steps, or other {where}.keys,"
            " take less",
            stacklevel=2,
        )


def _dtype(spec: Spec) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, spec.dtype)).dtype
