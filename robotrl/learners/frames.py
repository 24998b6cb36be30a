"""Training frames: those of a dataset, and those of new sim scenes without demonstrations."""

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
"""Control steps for which a scene's random action is held."""
MakeSymmetric = Callable[[Mapping[str, Tensor]], Symmetric]
"""Function from all observations of some frames to their augmentation."""


class Frames(NamedTuple):
    """Frames to sample training rows from."""

    arrays: dict[str, Tensor]
    """(F, ...) each."""
    drawn: int
    """Only the first `drawn` of the F frames are sampled."""
    symmetric: Symmetric | None
    """Symmetry augmentation; None: none."""

    @classmethod
    def of(cls, arrays: dict[str, Tensor], symmetric: MakeSymmetric | None, drawn: int | None = None) -> Frames:
        """Build frames whose observations are "obs/KEY"; by default, all of them are sampled."""
        count = len(next(iter(arrays.values()))) if drawn is None else drawn
        return cls(arrays, count, None if symmetric is None else symmetric(part(arrays, "obs/")))

    def draw(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample (count, ...) rows with replacement, and augment them."""
        rows = torch.randint(self.drawn, (count,), generator=generator)
        data = {name: values[rows] for name, values in self.arrays.items()}
        if self.symmetric is not None:
            self.symmetric.change(data, rows, generator)
        return data


class Scenes:
    """Source of frames from sim scenes without demonstrations.

    Args:
        sim: sim to draw the scenes from.
        count: scenes per draw, 1 or more; rounded up to whole batches of its envs.
        keys: observation keys, by the name that the frames get.
        symmetric: symmetry augmentation; None: none.
    """

    def __init__(self, sim: VecSim, count: int, keys: Mapping[str, str], symmetric: MakeSymmetric | None) -> None:
        if not isinstance(sim, HasStateIds):
            raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: algo.scenes is {count}")
        self._sim, self._keys, self._symmetric = sim, keys, symmetric
        self._rounds = math.ceil(count / sim.num_envs)
        self._ids = sim.state_ids("train")

    def draw(self, generator: torch.Generator) -> Frames:
        """Draw two frames of each of S new scenes: the initial one, and one after a random action was held."""
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
    """Check that the policy has text features and the sim grounding targets.

    Args:
        policy: policy that is to learn the grounding task.
        sim: sim that is to give its targets.
        field: setting that asks for it, for the error.
        value: its value, for the error.

    Raises:
        CapabilityError: the policy lacks `HasTextFeatures`, or the sim `HasGroundingTargets`.
    """
    for what, thing, capability in (("policy", policy, HasTextFeatures), ("sim", sim, HasGroundingTargets)):
        if not isinstance(thing, capability):
            raise CapabilityError(f"{what} {type(thing).__name__} lacks {capability.__name__}: {field} is {value}")
