"""Where networks act and learn, and sims on that device.

Learners, collectors and evaluations keep everything on `sim.device`. A sim that steps elsewhere is wrapped in a
`PlacedSim`, which moves actions to it and what it says back: the one place where a run's data crosses devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from robotrl.rollout.wrapper import WrappedSim, declared
from robotrl.spec import Expert, Step, VecSim

if TYPE_CHECKING:
    import gymnasium


def placed(sim: VecSim, device: torch.device) -> Any:
    """A sim as `PlacedSim` on a device; the sim itself where it is there already."""
    if sim.device == device:
        return sim
    return declared(PlacedSim, sim)(sim, device)


class PlacedSim(WrappedSim):
    """A sim that steps on one device and is seen on another; made by `placed`.

    Args:
        sim: the sim.
        device: where its observations are wanted, and where actions come from.
    """

    def __init__(self, sim: Any, device: torch.device) -> None:
        super().__init__(sim)
        self.device = device
        self.buffers_are_reused = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """See the sim's own `reset`."""
        return self.from_sim(self.sim.reset(seed=seed, options=options))

    def step(self, actions: Tensor) -> Step:
        """See the sim's own `step`."""
        return Step(*(self.from_sim(part) for part in self.sim.step(self.to_sim(actions))))

    def to_sim(self, x: Tensor) -> Tensor:
        """A tensor where the sim is."""
        return x.to(self.sim.device)

    def from_sim(self, found: Any) -> Any:
        """A tensor, or tensors by name, of the sim's, where they are wanted."""
        if isinstance(found, Tensor):
            return found.to(self.device)
        return {name: x.to(self.device) for name, x in found.items()}

    def expert_of(self, expert: Expert) -> Expert:
        """An expert whose actions are where everybody's are."""
        return _PlacedExpert(expert, self)

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The sim itself as Gymnasium's: numpy lies on the CPU."""
        return self.sim.as_gymnasium()


class _PlacedExpert:
    def __init__(self, expert: Expert, sim: PlacedSim) -> None:
        self._expert, self._sim = expert, sim
        self.modes = expert.modes
        self.mode: Tensor = sim.from_sim(expert.mode)

    def act(self, started: Tensor) -> Tensor:
        actions = self._expert.act(self._sim.to_sim(started))
        self.mode = self._sim.from_sim(self._expert.mode)
        return self._sim.from_sim(actions)
