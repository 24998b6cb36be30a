"""Frames that a learner draws its rows from: those of a dataset, and those of scenes in which nobody acted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError
from robotrl.learners.augmentation import Symmetric
from robotrl.spec import HasGroundingTargets, HasStateIds, HasTextFeatures, VecSim

MOTION_STEPS = 8
"""Control steps that a scene's random action lasts."""
MakeSymmetric = Callable[[Mapping[str, Tensor]], Symmetric]
"""What changes frames, of all their observations."""


class Frames(NamedTuple):
    """What rows are drawn from."""

    arrays: dict[str, Tensor]
    """(F, ...) each."""
    drawn: int
    """So many of the F, the first ones, are drawn."""
    symmetric: Symmetric | None
    """What changes them, None for nothing."""

    @classmethod
    def of(cls, arrays: dict[str, Tensor], symmetric: MakeSymmetric | None, drawn: int | None = None) -> Frames:
        """Frames whose observations are "obs/KEY"; all of them are drawn where it is not said how many."""
        count = len(next(iter(arrays.values()))) if drawn is None else drawn
        return cls(arrays, count, None if symmetric is None else symmetric(part(arrays, "obs/")))

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """(count, ...) rows, drawn and changed at random."""
        rows = torch.randint(self.drawn, (count,), generator=generator)
        data = {name: values[rows] for name, values in self.arrays.items()}
        if self.symmetric is not None:
            self.symmetric.change(data, rows, generator)
        return data


class Scenes:
    """Frames of a sim in which nobody has demonstrated anything.

    Args:
        sim: where they are drawn.
        count: scenes at a time, 1 or more; rounded up to whole batches of its envs.
        keys: of the observation, by the name that its frames get.
        symmetric: what changes them, None for nothing.
    """

    def __init__(self, sim: VecSim, count: int, keys: Mapping[str, str], symmetric: MakeSymmetric | None) -> None:
        if not isinstance(sim, HasStateIds):
            raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: algo.scenes is {count}")
        self._sim, self._keys, self._symmetric = sim, keys, symmetric
        self._rounds = math.ceil(count / sim.num_envs)
        self._ids = sim.state_ids("train")

    def draw(self, generator: torch.Generator) -> Frames:
        """Two frames of each of S new scenes: at the start, and after a random action has lasted."""
        sim: Any = self._sim
        spec = sim.action_spec
        low, high = (torch.tensor(bound, dtype=torch.float32) for bound in (spec.low, spec.high))
        frames: dict[str, list[Tensor]] = {name: [] for name in self._keys}
        for _ in range(self._rounds):
            ids = torch.randint(len(self._ids), (sim.num_envs,), generator=generator) + self._ids.start
            obs = sim.reset(options={"state_ids": ids.numpy()})
            self._keep(frames, obs)
            share = torch.rand(sim.num_envs, len(spec.low), generator=generator)
            actions = (low + (high - low) * share).to(sim.device)
            for _ in range(MOTION_STEPS):
                obs = sim.step(actions).obs
            self._keep(frames, obs)
        return Frames.of({name: torch.cat(parts) for name, parts in frames.items()}, self._symmetric)

    def _keep(self, frames: dict[str, list[Tensor]], obs: Mapping[str, Tensor]) -> None:
        for name, key in self._keys.items():
            # a sim may write the next observation over this one
            frames[name].append(obs[key].to("cpu", copy=True))

    def close(self) -> None:
        """Free the sim."""
        self._sim.close()


def check_reads(policy: object, sim: object, field: str, value: float) -> None:
    """Refuse to tell what words mean where nothing is read, or where nobody says what they mean.

    Args:
        policy: what is to learn it.
        sim: what is to say it.
        field: that asks for it, and its ...
        value: ... both for the error.

    Raises:
        CapabilityError: the policy lacks `HasTextFeatures`, or the sim `HasGroundingTargets`.
    """
    for what, thing, capability in (("policy", policy, HasTextFeatures), ("sim", sim, HasGroundingTargets)):
        if not isinstance(thing, capability):
            raise CapabilityError(f"{what} {type(thing).__name__} lacks {capability.__name__}: {field} is {value}")
