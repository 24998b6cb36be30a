"""`MujocoSim`: wraps the numpy core as a `VecSim` of torch tensors that share its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import check_at_least
from robotrl.sims.core_sim import CoreExpert, CoreSim, State, TensorExpert
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.render.cameras import Cameras, Renderer
from robotrl.sims.mujoco.render.geometry import SceneGeometry, body_names, tracked_body
from robotrl.sims.mujoco.render.images import Images
from robotrl.spec.geometry import BodyPoses, SceneShape

ExpertFactory = Callable[[MujocoCore, float, float, str | None, int], CoreExpert]
"""Function (core, noise, episode_noise, mode, seed) that creates an expert."""


class MeasuredTask(Protocol):
    """Task with a distance to success; every task with an expert has one."""

    def distance(self) -> NDArray[np.float64]:
        """Distance to success (N,), m."""
        ...


class MujocoSim(CoreSim[MujocoCore]):
    """Batched sim of one MuJoCo task; satisfies `VecSim` with numbered starts, exact state, parameters and cameras."""

    def __init__(self, core: MujocoCore) -> None:
        super().__init__(core, core.observation_spec, core.task.action_spec, core.task.control_dt_s)
        self.threads = core.physics.threads
        """Number of physics threads."""
        self.params = tuple(core.get_params())
        self.places = tuple(core.places())
        self.cameras = tuple(core.task.views)
        self._cameras = Cameras(core.physics, core.task.views)
        self.body_names = body_names(core.physics.model)
        self.tracked_body = tracked_body(core.physics.model)

    @cached_property
    def _scene(self) -> SceneGeometry:
        return SceneGeometry(self.core.physics)

    def geometry(self, env: int) -> list[SceneShape]:
        """Visible shapes of an env (`robotrl.spec.geometry.HasGeometry`)."""
        return self._scene.shapes(env)

    def body_poses(self, env: int) -> BodyPoses:
        """Present world poses of an env's bodies."""
        return self._scene.poses(env)

    @property
    def limit_steps(self) -> int:
        """Time limit of an episode, control steps (`robotrl.spec.HasTimeLimit`)."""
        return self.core.task.limit_steps

    @property
    def success_hold_steps(self) -> int:
        """Number of control steps of an episode after its first success (`robotrl.spec.HasSuccessHold`)."""
        return self.core.success_hold_steps

    @success_hold_steps.setter
    def success_hold_steps(self, steps: int) -> None:
        check_at_least("success_hold_steps", steps, 0)
        self.core.success_hold_steps = steps

    def elapsed_steps(self) -> Tensor:
        """Steps (N,) int64 of each running episode."""
        return torch.from_numpy(self.core.steps.astype(np.int64))

    def get_state(self) -> State:
        """Exact state; see the core's `get_state`."""
        return self.core.get_state()

    def set_state(self, state: State) -> dict[str, Tensor]:
        """Restore exact state; see the core's `set_state`."""
        self.core.set_state(state)
        return dict(self._obs)

    def get_params(self) -> dict[str, NDArray[np.float64]]:
        """Current multipliers (N,) by parameter name."""
        return self.core.get_params()

    def set_params(self, ids: Sequence[int] | NDArray[np.int64], values: dict[str, NDArray[np.float64]]) -> None:
        """Set multipliers of some envs; see `MujocoCore.set_params`."""
        self.core.set_params(np.asarray(ids, np.int64), values)

    def displace(self, envs: Tensor, offsets_m: NDArray[np.float64]) -> dict[str, Tensor]:
        """Move loose things of some envs; see `MujocoCore.displace`."""
        self.core.displace(envs.cpu().numpy(), offsets_m)
        return dict(self._obs)

    def see(self, image: Sequence[str], image_size: int = 64, image_renderer: Renderer = "auto") -> Self:
        """Add images to the observation from the next reset on; see `Images` for arguments and errors."""
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
        """Images (n, height, width, 3) of some envs; see `Cameras.render`."""
        return self._cameras.render(ids, camera, width, height, samples, renderer)


class ExpertSim(MujocoSim):
    """A `MujocoSim` whose task has a scripted expert (`robotrl.spec.HasExpert`)."""

    def __init__(self, core: MujocoCore, expert: ExpertFactory) -> None:
        super().__init__(core)
        self._expert = expert
        self._task = cast(MeasuredTask, core.task)

    def make_expert(
        self, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> TensorExpert:
        """Make the task's scripted expert on this sim; see its class for the arguments."""
        return TensorExpert(self._expert(self.core, noise, episode_noise, mode, seed))

    def distance(self) -> Tensor:
        """Distance to success (N,), m, as defined by the task; privileged information."""
        return torch.from_numpy(self._task.distance())
