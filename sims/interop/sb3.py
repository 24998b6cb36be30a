"""Adapter from `VecSim` to the `VecEnv` of Stable-Baselines3."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from robotrl.errors import CapabilityError
from robotrl.sims.interop.views import space_of
from robotrl.spec import HasCamera, HasFinalObs, HasPrivileged, VecSim

Obs = NDArray[Any] | dict[str, NDArray[Any]]


class SimVecEnv(VecEnv):
    """Stable-Baselines3 `VecEnv` around a sim.

    When an episode ends, its `infos` hold `terminal_observation`, `TimeLimit.truncated` (so that SB3 bootstraps
    time-outs), `is_success`, and `episode` with return `r`, length `l` and elapsed seconds `t`, as `Monitor` writes
    them. A sim with one observation array has a `Box` space ("MlpPolicy"), a sim with several a `Dict` space
    ("MultiInputPolicy"). Returned arrays are copies.

    Args:
        sim: the sim; it must fill `Step.final_obs`.
        privileged: include the privileged (critic-only) observation arrays; by default they are left out.

    Raises:
        CapabilityError: the sim does not fill `final_obs`.
    """

    def __init__(self, sim: VecSim, privileged: bool = False) -> None:
        if not isinstance(sim, HasFinalObs):
            raise CapabilityError("terminal_observation needs the last observation: this sim lacks it (HasFinalObs)")
        self.sim: VecSim = sim
        hidden = sim.privileged if isinstance(sim, HasPrivileged) and not privileged else ()
        spaces: dict[str, gym.Space[Any]] = {
            key: space_of(spec) for key, spec in sim.observation_spec.items() if key not in hidden
        }
        self._only = next(iter(spaces)) if len(spaces) == 1 else None
        self._keys = tuple(spaces)
        space = gym.spaces.Dict(spaces) if self._only is None else spaces[self._only]
        self.render_mode = "rgb_array" if isinstance(sim, HasCamera) else None
        self._actions: NDArray[Any] = np.zeros((sim.num_envs, *sim.action_spec.shape), sim.action_spec.dtype)
        self._returns, self._lengths = np.zeros(sim.num_envs), np.zeros(sim.num_envs, np.int64)
        self._began_s = time.monotonic()
        super().__init__(sim.num_envs, space, space_of(sim.action_spec))

    def reset(self) -> Obs:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start new episodes in all envs with the seed set by `seed` and the options set by `set_options`."""
        obs = self.sim.reset(seed=self._seeds[0], options=self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._lengths[:] = 0, 0
        return self._copied(obs)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Store the actions (N, A) for `step_wait`."""
        self._actions = np.ascontiguousarray(actions, self.sim.action_spec.dtype)

    def step_wait(self) -> tuple[Obs, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Advance all envs; see `stable_baselines3.common.vec_env.VecEnv.step`."""
        out = self.sim.step(torch.from_numpy(self._actions).to(self.sim.device))
        rewards = _array(out.reward).astype(np.float32)
        terminated, truncated = _array(out.terminated), _array(out.truncated)
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        success, state_id = _array(out.info["success"]), _array(out.info["state_id"])
        final = {key: _array(out.final_obs[key]) for key in self._keys}
        for row, env in enumerate(_array(out.final_ids)):
            last: Obs = {key: value[row] for key, value in final.items()}
            infos[env] = {
                "terminal_observation": last if self._only is None else last[self._only],
                "TimeLimit.truncated": bool(truncated[env] and not terminated[env]),
                "is_success": bool(success[env]),
                "state_id": int(state_id[env]),
                "episode": {
                    "r": round(float(self._returns[env]), 6),
                    "l": int(self._lengths[env]),
                    "t": round(time.monotonic() - self._began_s, 6),
                },
            }
            self._returns[env], self._lengths[env] = 0, 0
        return self._copied(out.obs), rewards, terminated | truncated, infos

    def _copied(self, obs: dict[str, torch.Tensor]) -> Obs:
        if self._only is not None:
            return _array(obs[self._only])
        return {key: _array(obs[key]) for key in self._keys}

    def close(self) -> None:
        """Close the sim."""
        self.sim.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Image (240, 320, 3) of each env from the sim's first camera; None if the sim has no camera."""
        if not isinstance(self.sim, HasCamera):
            return [None] * self.num_envs
        return list(self.sim.render(range(self.num_envs), self.sim.cameras[0], 320, 240))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Attribute of this object, or else of the sim, repeated for each of the envs `indices`."""
        value = getattr(self, attr_name) if hasattr(self, attr_name) else getattr(self.sim, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Unsupported: a batched sim has no object for each env.

        Raises:
            CapabilityError: always.
        """
        raise CapabilityError(f"set_attr({attr_name!r}): a batched sim has no object for each env; use its options")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Unsupported: a batched sim has no object for each env.

        Raises:
            CapabilityError: always.
        """
        raise CapabilityError(f"env_method({method_name!r}): a batched sim has no object for each env; use `.sim`")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None) -> list[bool]:
        """True for `Monitor`, whose statistics are in `infos`; False for all other wrappers."""
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().cpu().numpy())
