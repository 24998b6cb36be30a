"""`MujocoSim`: the numpy core as a `VecSim` of torch tensors that share its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.sims.mujoco.cameras import Cameras, Renderer
from robotrl.sims.mujoco.core import Core
from robotrl.sims.mujoco.images import Images
from robotrl.sims.mujoco.task import ScriptedExpert
from robotrl.spec import Spec, Split, Step

if TYPE_CHECKING:
    import gymnasium


ExpertFactory = Callable[[Core, float, float, str | None, int], ScriptedExpert]
"""(core, noise, clumsiness, mode, seed) to an expert on that core."""


class MeasuredTask(Protocol):
    """A task that knows how far it is from success; every task with an expert is one."""

    def distance(self) -> NDArray[np.float64]:
        """(N,) m."""
        ...


class TensorExpert:
    """A numpy expert in torch clothes; satisfies `robotrl.spec.Expert`."""

    def __init__(self, expert: ScriptedExpert) -> None:
        self._expert = expert
        self.modes = expert.modes
        self.mode: Tensor = torch.from_numpy(expert.mode)

    def act(self, started: Tensor) -> Tensor:
        """Actions (N, A); `started` (N,) bool marks envs at the first step of an episode."""
        return torch.from_numpy(self._expert.act(started.numpy()))


class MujocoSim:
    """A batch of envs of one MuJoCo task; satisfies `VecSim` with every capability of `robotrl.spec`.

    Tensors are views of the core's memory: nothing is copied, and `Step` is overwritten by the next step
    (`buffers_are_reused`).
    """

    device = torch.device("cpu")
    buffers_are_reused = True
    has_final_obs: Literal[True] = True

    def __init__(self, core: Core) -> None:
        self.core = core
        self.num_envs = core.num_envs
        self.threads = core.physics.threads
        """Physics threads."""
        self.control_dt_s = core.task.control_dt_s
        self.observation_spec: dict[str, Spec] = core.observation_spec
        self.action_spec: Spec = core.task.action_spec
        self.params = tuple(core.get_params())
        self.cameras = tuple(core.task.views)
        self._cameras = Cameras(core.physics, core.task.views)
        self._obs = _tensors(core.obs)
        # what a step returns in which no episode ends
        self._no_obs, self._no_ids = _no_rows(self._obs), torch.zeros(0, dtype=torch.int64)
        self._reward = torch.from_numpy(core.reward)
        self._terminated, self._truncated = torch.from_numpy(core.terminated), torch.from_numpy(core.truncated)
        self._info = {"success": torch.from_numpy(core.success), "state_id": torch.from_numpy(core.state_id)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes; see `Core.reset` for the options."""
        self.core.reset(seed, options)
        return dict(self._obs)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see `Core.step`."""
        out = self.core.step(actions.detach().numpy())
        ended = len(out.final_ids) > 0
        return Step(
            obs=dict(self._obs),
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_obs=_tensors(out.final_obs) if ended else dict(self._no_obs),
            final_ids=torch.from_numpy(out.final_ids) if ended else self._no_ids,
            info=dict(self._info),
        )

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) between two steps; gives the observation of all."""
        self.core.restart(envs.numpy())
        return dict(self._obs)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Exact state; see `Core.get_state`."""
        return self.core.get_state()

    def set_state(self, state: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Restore exact state; see `Core.set_state`."""
        self.core.set_state(state)
        return dict(self._obs)

    def state_ids(self, split: Split) -> range:
        """Start ids of a split."""
        return self.core.split(split)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Ids that the next restarts draw from; see `Core.queue_states`."""
        self.core.queue_states(ids)

    def get_params(self) -> dict[str, NDArray[np.float64]]:
        """(N,) multipliers in force."""
        return self.core.get_params()

    def set_params(self, ids: Sequence[int] | NDArray[np.int64], values: dict[str, NDArray[np.float64]]) -> None:
        """Set multipliers of some envs; see `Core.set_params`."""
        self.core.set_params(np.asarray(ids, np.int64), values)

    def see(self, image: Sequence[str], image_size: int = 64, image_renderer: Renderer = "auto") -> Self:
        """Make pictures part of the observation from the next reset on; see `Images` for arguments and errors."""
        self.core.see(Images(self._cameras, self.core.physics, image, image_size, image_renderer))
        self.observation_spec = self.core.observation_spec
        self._obs = _tensors(self.core.obs)
        self._no_obs = _no_rows(self._obs)
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

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The same sim as a numpy `gymnasium.vector.VectorEnv`; `robotrl.sims.interop` has more options."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """Nothing to free: the simulations go with the object."""


class ExpertSim(MujocoSim):
    """A `MujocoSim` whose task brings a scripted expert (`robotrl.spec.HasExpert`)."""

    def __init__(self, core: Core, expert: ExpertFactory) -> None:
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


def _tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value) for key, value in arrays.items()}


def _no_rows(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value[:0] for key, value in tensors.items()}
