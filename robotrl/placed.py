"""Where networks act and learn, and sims on that device.

Learners, collectors and evaluations keep everything on `sim.device`. A sim that steps elsewhere is wrapped in a
`PlacedSim`, which moves actions to it and what it says back: the one place where a run's data crosses devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.spec import Expert, Step, VecSim
from robotrl.wrapping import WrappedSim, declared

if TYPE_CHECKING:
    import gymnasium

CPU = torch.device("cpu")


def device_of(name: str) -> torch.device:
    """The device that a config names.

    Args:
        name: "cpu", "cuda" (of several processes: each the GPU of its number), "cuda:1", or another kind of torch's.

    Raises:
        ConfigError: there is no such device here; those that are there are named.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}: expected one of {', '.join(_here())}") from None
    if device.type == "cpu":
        return CPU
    try:
        module: Any = torch.get_device_module(device.type)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}: torch {torch.__version__} knows none of that kind") from None
    count: int = module.device_count() if module.is_available() else 0
    index = module.current_device() if count and ":" not in name else device.index
    if not count or index >= count:
        built = f" (torch {torch.__version__} is built for that alone)" if "+cpu" in torch.__version__ else ""
        raise ConfigError(f"device is {name!r}: this machine has {', '.join(_here())}{built}")
    return torch.device(device.type, index)


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


def _here() -> list[str]:
    """The devices of this machine, as a config names them."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *gpus]
