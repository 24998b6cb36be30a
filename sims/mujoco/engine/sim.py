"""`MujocoSim`: the numpy core as a `VecSim` of torch tensors that share its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.sims.core_sim import CoreExpert, CoreSim, TensorExpert
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.render.cameras import Cameras, Renderer
from robotrl.sims.mujoco.render.images import Images

ExpertFactory = Callable[[MujocoCore, float, float, str | None, int], CoreExpert]
"""(core, noise, clumsiness, mode, seed) to an expert on that core."""


class MeasuredTask(Protocol):
    """A task that knows how far it is from success; every task with an expert is one."""

    def distance(self) -> NDArray[np.float64]:
        """(N,) m."""
        ...


class MujocoSim(CoreSim[MujocoCore]):
    """A batch of envs of one MuJoCo task; satisfies `VecSim` with every capability of `robotrl.spec`."""

    def __init__(self, core: MujocoCore) -> None:
        super().__init__(core, core.observation_spec, core.task.action_spec, core.task.control_dt_s)
        self.threads = core.physics.threads
        """Physics threads."""
        self.params = tuple(core.get_params())
        self.cameras = tuple(core.task.views)
        self._cameras = Cameras(core.physics, core.task.views)

    def get_params(self) -> dict[str, NDArray[np.float64]]:
        """(N,) multipliers in force."""
        return self.core.get_params()

    def set_params(self, ids: Sequence[int] | NDArray[np.int64], values: dict[str, NDArray[np.float64]]) -> None:
        """Set multipliers of some envs; see `MujocoCore.set_params`."""
        self.core.set_params(np.asarray(ids, np.int64), values)

    def see(self, image: Sequence[str], image_size: int = 64, image_renderer: Renderer = "auto") -> Self:
        """Make pictures part of the observation from the next reset on; see `Images` for arguments and errors."""
        self.core.see(Images(self._cameras, self.core.physics, image, image_size, image_renderer))
        self._observe(self.core.observation_spec)
        return self

    def render(
        self,
        ids: Sequence[int],
        camera: str,
        width: int,
        height: int,
        samples: int = 2,
        renderer: Renderer = "auto",
    ) -> NDArray[np.uint8]:
        """Pictures (n, height, width, 3) of some envs; see `Cameras.render`."""
        return self._cameras.render(ids, camera, width, height, samples, renderer)


class ExpertSim(MujocoSim):
    """A `MujocoSim` whose task brings a scripted expert (`robotrl.spec.HasExpert`)."""

    def __init__(self, core: MujocoCore, expert: ExpertFactory) -> None:
        super().__init__(core)
        self._expert = expert
        self._task = cast(MeasuredTask, core.task)

    def make_expert(
        self, noise: float = 0.0, clumsiness: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> TensorExpert:
        """The task's scripted expert, on this sim; see its class for the arguments."""
        return TensorExpert(self._expert(self.core, noise, clumsiness, mode, seed))

    def distance(self) -> Tensor:
        """(N,) metres from success, as the task measures it; a robot could not know."""
        return torch.from_numpy(self._task.distance())
