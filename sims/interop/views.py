"""Adapters from `VecSim` to Gymnasium: vector environments, and single environments for sims with one env.

Both use numpy arrays. `GymnasiumVectorEnv` implements Gymnasium's same-step autoreset: the last observation and info of
an episode are in `infos["final_obs"]` and `infos["final_info"]`, everything else belongs to the next episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from robotrl.errors import CapabilityError, ConfigError, unknown
from robotrl.spec import HasCamera, HasFinalObs, Spec, VecSim

if TYPE_CHECKING:
    from torch import Tensor

Obs = dict[str, NDArray[Any]]


def space_of(spec: Spec) -> gym.spaces.Box | gym.spaces.MultiDiscrete:
    """Gymnasium space of an array spec: MultiDiscrete for categorical actions, else Box."""
    if spec.choices is not None:
        return gym.spaces.MultiDiscrete(list(spec.choices))
    dtype = np.dtype(spec.dtype)
    shape = np.broadcast_to(np.zeros(()), spec.shape).shape
    low = np.broadcast_to(np.asarray(spec.low, dtype), shape)
    high = np.broadcast_to(np.asarray(spec.high, dtype), shape)
    return gym.spaces.Box(low, high, shape, dtype.type)


def spaces_of(specs: Mapping[str, Spec]) -> gym.Space[Any]:
    """Gymnasium space of named arrays: of the array itself if there is one, else a Dict."""
    spaces: dict[str, gym.Space[Any]] = {key: space_of(spec) for key, spec in specs.items()}
    return next(iter(spaces.values())) if len(spaces) == 1 else gym.spaces.Dict(spaces)


class _Pictures:
    """Camera images for `render()`, with checks of the render options."""

    def __init__(self, sim: VecSim, mode: str | None, camera: str | None, width: int, height: int) -> None:
        if mode not in (None, "rgb_array"):
            raise unknown("render_mode", str(mode), ("rgb_array",))
        self._sim: HasCamera | None = None
        self._camera, self._width, self._height = camera or "", width, height
        if mode == "rgb_array":
            if not isinstance(sim, HasCamera):
                raise CapabilityError("render_mode is 'rgb_array': this sim has no camera (HasCamera)")
            self._sim = sim
            self._camera = camera or sim.cameras[0]
            if self._camera not in sim.cameras:
                raise unknown("camera", self._camera, sim.cameras)

    def take(self, count: int) -> tuple[NDArray[np.uint8], ...] | None:
        if self._sim is None:
            return None
        return tuple(self._sim.render(range(count), self._camera, self._width, self._height))


class _View(ABC):
    """Base class of both adapters; subclasses set the spaces in `_adopt`."""

    _what: ClassVar[str]

    def __init__(
        self,
        sim: VecSim,
        render_mode: str | None = None,
        camera: str | None = None,
        width: int = 320,
        height: int = 240,
    ) -> None:
        if not isinstance(sim, HasFinalObs):
            raise CapabilityError(f"{self._what} needs the last observation: this sim lacks it (HasFinalObs)")
        self.sim: VecSim = sim
        modes = ["rgb_array"] if isinstance(sim, HasCamera) else []
        rate = {} if sim.control_dt_s is None else {"render_fps": round(1 / sim.control_dt_s)}
        self.metadata: dict[str, Any] = {"render_modes": modes, **rate}
        self.render_mode = render_mode
        spaces: dict[str, gym.Space[Any]] = {key: space_of(spec) for key, spec in sim.observation_spec.items()}
        self._adopt(gym.spaces.Dict(spaces), space_of(sim.action_spec))
        self._pictures = _Pictures(sim, render_mode, camera, width, height)

    @abstractmethod
    def _adopt(self, observation_space: gym.spaces.Dict, action_space: gym.Space[Any]) -> None:
        """Set the environment's spaces from those of one env.

        Raises:
            ConfigError: the sim's number of envs does not fit.
        """


class GymnasiumVectorEnv(_View, gym.vector.VectorEnv[Obs, NDArray[np.float32], NDArray[Any]]):
    """A `VecSim` as `gymnasium.vector.VectorEnv`, with same-step autoreset.

    Observations are dicts of float32 arrays (N, ...), copied in each step; rewards are float64, as in Gymnasium's
    own vector environments.

    Args:
        sim: the sim; it must fill `Step.final_obs`.
        render_mode: "rgb_array" for images of all envs, or None.
        camera: camera that `render` uses, the sim's first by default.
        width: image width, pixels.
        height: image height, pixels.

    Raises:
        CapabilityError: the sim does not fill `final_obs`, or images are requested and the sim has no camera.
    """

    _what = "same-step autoreset"

    def _adopt(self, observation_space: gym.spaces.Dict, action_space: gym.Space[Any]) -> None:
        self.num_envs = self.sim.num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes in all envs; `options` are the sim's reset options.

        Raises:
            ConfigError: `seed` is a list: one number seeds all envs of a batched sim.
        """
        given: Any = seed  # Gymnasium's own vector environments take a list, too
        if given is not None and not isinstance(given, int | np.integer):
            raise ConfigError(f"seed is {seed!r}: expected one integer for all envs")
        super().reset(seed=seed)
        return _copies(self.sim.reset(seed=seed, options=options)), {}

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[Obs, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Advance all envs; see `gymnasium.vector.VectorEnv.step`."""
        out = self.sim.step(_to_tensor(actions, self.sim))
        terminated, truncated = _copy(out.terminated), _copy(out.truncated)
        done = terminated | truncated
        steps = {key: _as_gymnasium_keeps(value) for key, value in out.info.items()}
        infos: dict[str, Any] = {}
        if not done.all():
            infos = _masked(steps, ~done)
        if done.any():
            final = np.full(self.num_envs, None, dtype=object)
            rows = _copies(out.final_obs)
            for row, env in enumerate(_copy(out.final_ids)):
                final[env] = {key: value[row] for key, value in rows.items()}
            infos["final_obs"], infos["_final_obs"] = final, done.copy()
            infos["final_info"], infos["_final_info"] = _masked(steps, done), done.copy()
        return _copies(out.obs), _copy(out.reward).astype(np.float64), terminated, truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Image (height, width, 3) of each env, or None without a render mode."""
        return self._pictures.take(self.num_envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sim."""
        self.sim.close()


class GymnasiumEnv(_View, gym.Env[Any, Any]):
    """A `VecSim` with one env as `gymnasium.Env`.

    The sim restarts by itself when an episode ends; the next `reset()` returns the first observation of that new
    episode instead of starting another one, so that no start state is skipped.

    Args:
        sim: the sim, with `num_envs` 1.
        render_mode: "rgb_array" or None.
        camera: camera that `render` uses, the sim's first by default.
        width: image width, pixels.
        height: image height, pixels.

    Raises:
        ConfigError: the sim has more than one env.
        CapabilityError: the sim does not fill `final_obs`, or images are requested and the sim has no camera.
    """

    _what = "a single environment"

    def _adopt(self, observation_space: gym.spaces.Dict, action_space: gym.Space[Any]) -> None:
        if self.sim.num_envs != 1:
            raise ConfigError(f"num_envs is {self.sim.num_envs}: expected 1 for a single environment")
        self.observation_space, self.action_space = observation_space, action_space
        self._next: Obs | None = None
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode; `options` are the sim's reset options."""
        super().reset(seed=seed)
        obs, self._next = self._next, None
        if obs is None or seed is not None or options:
            obs = _first(_copies(self.sim.reset(seed=seed, options=options)))
        self._running = True
        return obs, {}

    def step(self, action: NDArray[np.float32]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Advance the env.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
        """
        if not self._running:
            raise gym.error.ResetNeeded("no episode is running: call reset() before step()")
        out = self.sim.step(_to_tensor(np.asarray(action)[None], self.sim))
        terminated, truncated = bool(out.terminated[0]), bool(out.truncated[0])
        obs = _first(_copies(out.obs))
        if terminated or truncated:
            self._next, obs = obs, _first(_copies(out.final_obs))
            self._running = False
        info = {key: value[0].item() for key, value in out.info.items()}
        return obs, float(out.reward[0]), terminated, truncated, info

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Image (height, width, 3), or None without a render mode."""
        pictures = self._pictures.take(1)
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        """Close the sim."""
        self.sim.close()


def _masked(values: Mapping[str, NDArray[Any]], rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Gymnasium's info layout: each array, zero outside `rows`, and under "_KEY" the mask of `rows`."""
    infos: dict[str, Any] = {}
    for key, value in values.items():
        infos[key] = np.where(rows.reshape(-1, *([1] * (value.ndim - 1))), value, np.zeros((), value.dtype))
        infos[f"_{key}"] = rows.copy()
    return infos


def _copy(tensor: Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().cpu().numpy())


def _as_gymnasium_keeps(value: Tensor) -> NDArray[Any]:
    """Array as float64 or int64, the dtypes of infos in Gymnasium's vector envs."""
    array = _copy(value)
    wide = {"f": np.float64, "i": np.int64, "u": np.int64}.get(array.dtype.kind)
    return array if wide is None else array.astype(wide)


def _copies(tensors: Mapping[str, Tensor]) -> Obs:
    return {key: _copy(value) for key, value in tensors.items()}


def _first(arrays: Obs) -> Obs:
    return {key: value[0] for key, value in arrays.items()}


def _to_tensor(actions: NDArray[Any], sim: VecSim) -> Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(actions, sim.action_spec.dtype)).to(sim.device)
