"""Device wrapper: a sim that steps on one device with actions and observations on another.

Learners, collectors and evaluations keep all tensors on `sim.device`. A sim that steps elsewhere is wrapped in a
`DeviceSim`, which moves actions to the sim and its results back: the only place where a run's data changes device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from robotrl.sims.wrapper import WrappedSim, declared
from robotrl.spec import Expert, Step, VecSim

if TYPE_CHECKING:
    import gymnasium

    from robotrl.spec.actuation import Reflex, ServoTick


def on_device(sim: VecSim, device: torch.device) -> Any:
    """Wrap a sim in `DeviceSim` for a device; returns the sim itself if it is already there."""
    if sim.device == device:
        return sim
    return declared(DeviceSim, sim)(sim, device)


class DeviceSim(WrappedSim):
    """A sim that steps on one device, with actions and observations on another; made by `on_device`.

    Args:
        sim: the sim.
        device: device of observations and actions.
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

    def set_reflex(self, reflex: Reflex | None) -> None:
        """Have a reflex on this device act in the sim (`robotrl.spec.actuation.HasServoClock`)."""
        self.sim.set_reflex(None if reflex is None else _PlacedReflex(reflex, self))

    def to_sim(self, x: Tensor) -> Tensor:
        """Move a tensor to the sim's device."""
        return x.to(self.sim.device)

    def from_sim(self, found: Any) -> Any:
        """Move a tensor, or tensors by name, from the sim's device to this one's."""
        if isinstance(found, Tensor):
            return found.to(self.device)
        return {name: x.to(self.device) for name, x in found.items()}

    def expert_of(self, expert: Expert) -> Expert:
        """The sim's expert with its actions on this device."""
        return _PlacedExpert(expert, self)

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The sim itself as a Gymnasium vector env: numpy arrays are on the CPU."""
        return self.sim.as_gymnasium()


class _PlacedReflex:
    def __init__(self, reflex: Reflex, sim: DeviceSim) -> None:
        self._reflex, self._sim = reflex, sim

    def act(self, tick: ServoTick) -> Tensor:
        there = tick._replace(
            obs=self._sim.from_sim(tick.obs),
            action=self._sim.from_sim(tick.action),
            started=self._sim.from_sim(tick.started),
        )
        return self._sim.to_sim(self._reflex.act(there))

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        self._reflex.felt(self._sim.from_sim(obs), self._sim.from_sim(hazard))


class _PlacedExpert:
    def __init__(self, expert: Expert, sim: DeviceSim) -> None:
        self._expert, self._sim = expert, sim
        self.modes = expert.modes
        self.mode: Tensor = sim.from_sim(expert.mode)

    def act(self, started: Tensor) -> Tensor:
        actions = self._expert.act(self._sim.to_sim(started))
        self.mode = self._sim.from_sim(self._expert.mode)
        return self._sim.from_sim(actions)
