"""Sims of robotrl in a worker: `sim(num_envs, name, options)` gives one the form that `worker.py` serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.errors import CapabilityError
from robotrl.registry import make_sim
from robotrl.sims.core_sim import ObservesInto
from robotrl.spec import (
    Expert,
    HasCamera,
    HasDistance,
    HasExpert,
    HasExpertState,
    HasFinalObs,
    HasGroundingTargets,
    HasInstructions,
    HasParams,
    HasPictureSize,
    HasPrivileged,
    HasReasons,
    HasRestart,
    HasScenarios,
    HasSolvedReturn,
    HasState,
    HasStateIds,
    HasSuccessRule,
    HasSymmetries,
    HasTimeLimit,
    HasTrace,
)
from robotrl.spec.captions import HasActionCaptions, HasCaptions
from robotrl.spec.geometry import HasGeometry
from robotrl.spec.vehicle import (
    HasPlanFrame,
    HasProgressRatio,
    HasTimeToCollision,
    HasTimeToCollisionAhead,
    HasTrajectoryActions,
    HasVehicleObs,
)
from robotrl.utils.devices import CPU

Arrays = dict[str, NDArray[Any]]
STAYS: dict[type[Any], str] = {
    HasTrace: "recordings of drives do not travel between processes",
    HasGeometry: "shapes of bodies do not travel between processes",
    HasSymmetries: "symmetries do not travel between processes",
}
"""Capabilities that are lost on the way, with the reason."""
PASSED: dict[type[Any], tuple[str, ...]] = {
    HasState: ("set_state",),
    HasCamera: ("cameras", "render"),
    HasPictureSize: ("picture_size",),
    HasParams: ("params", "get_params", "set_params"),
    HasPrivileged: ("privileged",),
    HasGroundingTargets: ("grounding_keys",),
    HasScenarios: ("scenarios", "scenario_of"),
    HasInstructions: ("vocabulary", "instructions"),
    HasSuccessRule: ("success_rule",),
    HasSolvedReturn: ("solved_return",),
    HasVehicleObs: ("vehicle_obs",),
    HasCaptions: ("caption_topics", "caption_camera", "caption_classes"),
    HasActionCaptions: ("action_captions", "action_contexts"),
    HasTimeToCollision: ("time_to_collision_s",),
    HasTimeToCollisionAhead: ("time_to_collision_ahead_s",),
    HasTrajectoryActions: ("trajectory_dt_s",),
    HasPlanFrame: ("plan_frame",),
    HasProgressRatio: ("progress_ratio",),
    HasTimeLimit: ("limit_steps",),
}
"""Attributes that are handed on as they are."""


class ServedExpert:
    """An expert of numpy arrays."""

    def __init__(self, expert: Expert) -> None:
        self._expert = expert
        self.modes = expert.modes

    @property
    def mode(self) -> NDArray[np.int64]:
        """(N,) strategies."""
        return self._expert.mode.cpu().numpy()

    def act(self, started: NDArray[np.bool_]) -> NDArray[Any]:
        """Actions (N, A)."""
        return self._expert.act(torch.from_numpy(started)).cpu().numpy()


class ServedSim:
    """A sim of numpy arrays, with the methods and constants of its capabilities.

    Args:
        sim: the sim, on a CPU or another device.
    """

    def __init__(self, sim: Any) -> None:
        self._sim = sim
        self.observation_spec = {key: spec.to_json() for key, spec in sim.observation_spec.items()}
        self.action_spec = sim.action_spec.to_json()
        self.control_dt_s = sim.control_dt_s
        self.final_obs = isinstance(sim, HasFinalObs)
        self.single_start = isinstance(sim, HasRestart)
        sim.reset()
        info = sim.step(torch.zeros((sim.num_envs, *sim.action_spec.shape), device=sim.device)).info
        self.info_spec = {k: str(v.dtype).removeprefix("torch.") for k, v in info.items() if k != "state_id"}
        given = {key: value for kind, keys in PASSED.items() if isinstance(sim, kind) for key, value in self._of(keys)}
        vars(self).update(given)
        self._obs_views, self._flag_views, self._info_views = Views(), Views(), Views()
        stays = {kind.__name__: why for kind, why in STAYS.items() if isinstance(sim, kind)}
        self.reasons = (dict(sim.reasons) if isinstance(sim, HasReasons) else {}) | stays
        self._numbered = isinstance(sim, HasStateIds)
        if self._numbered:
            self.start, self.queue, self.stagger = self._start, self._queue, self._stagger
        else:
            self.reset = self._reset
        if isinstance(sim, HasState):
            self.get_state, self.set_state = self._get_state, self._set_state
        if isinstance(sim, HasDistance):
            self.distance = self._distance
        self._written: Arrays | None = None
        if isinstance(sim, ObservesInto) and sim.device == CPU:
            self.observe_into = self._observe_into
        if isinstance(sim, HasTimeLimit):
            self.elapsed_steps = self._elapsed_steps
        if isinstance(sim, HasExpert):
            self.make_expert = self._make_expert

    def _of(self, keys: tuple[str, ...]) -> list[tuple[str, Any]]:
        return [(key, getattr(self._sim, key)) for key in keys]

    def step(self, actions: NDArray[Any]) -> tuple[Any, ...]:
        """Advance all envs; see `worker.py`."""
        out = self._sim.step(torch.from_numpy(actions))
        flags = {"reward": out.reward, "terminated": out.terminated, "truncated": out.truncated}
        reward, terminated, truncated = self._flag_views.of(flags).values()
        # the trainer knows the starts
        info: dict[str, Any] = self._info_views.of({key: out.info[key] for key in self.info_spec if key in out.info})
        if out.final_ids.shape[0]:
            info["final_obs"] = arrays(out.final_obs)
        obs = self._obs_views.of(out.obs) if self._written is None else self._written
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the sim."""
        self._sim.close()

    def _observe_into(self, obs: Arrays) -> None:
        self._sim.observe_into(obs)
        self._written = obs

    def _start(self, envs: NDArray[np.int64], ids: NDArray[np.int64]) -> Arrays:
        self._started = ids
        self._sim.queue_states(ids.tolist())
        if len(envs) == self._sim.num_envs:
            return arrays(self._sim.reset())
        return arrays(self._sim.restart(torch.from_numpy(envs).to(self._sim.device)))

    def _queue(self, ids: NDArray[np.int64]) -> None:
        self._sim.queue_states(ids.tolist())

    def _stagger(self, share: NDArray[np.float64]) -> Arrays:
        del share  # the sim spreads its envs by itself
        self._sim.queue_states(self._started.tolist())
        return arrays(self._sim.reset(options={"stagger": True}))

    def _reset(self, seed: int | None) -> Arrays:
        return arrays(self._sim.reset(seed=seed))

    def _get_state(self) -> Arrays:
        if self._numbered:
            self._sim.queue_states([])  # the trainer has the queue
        return self._sim.get_state()

    def _set_state(self, state: Arrays) -> Arrays:
        return arrays(self._sim.set_state(state))

    def _distance(self) -> NDArray[Any]:
        return numpy(self._sim.distance())

    def _elapsed_steps(self) -> NDArray[np.int64]:
        return numpy(self._sim.elapsed_steps())

    def _make_expert(self, noise: float, episode_noise: float, mode: str | None, seed: int) -> ServedExpert:
        expert = self._sim.make_expert(noise, episode_noise, mode, seed)
        served = ServedExpert(expert)
        if isinstance(expert, HasExpertState):
            vars(served).update(get_state=expert.get_state, set_state=expert.set_state)
        return served


class Views:
    """Arrays of tensors by name; a tensor that comes again has the array that it had, if that shares its memory."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[torch.Tensor, NDArray[Any]]] = {}

    def of(self, tensors: Mapping[str, torch.Tensor]) -> Arrays:
        """Arrays of some tensors."""
        out: Arrays = {}
        for key, value in tensors.items():
            known = self._known.get(key)
            if known is None or known[0] is not value:
                known = (value, numpy(value))
                if value.device == CPU:
                    self._known[key] = known
            out[key] = known[1]
        return out


def numpy(x: torch.Tensor) -> NDArray[Any]:
    """A tensor as an array, without a copy on a CPU."""
    return x.cpu().numpy()


def arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Tensors by name as arrays."""
    return {key: value.cpu().numpy() for key, value in tensors.items()}


def sim(num_envs: int, name: str, options: Mapping[str, Any]) -> ServedSim:
    """Make a sim of robotrl for `worker.py`.

    Args:
        num_envs: envs of this worker.
        name: a row of `robotrl list sims`.
        options: its options.

    Raises:
        ConfigError: unknown name or option, or a value out of range.
    """
    if name.startswith("remote/"):
        raise CapabilityError(f"sim {name!r} is remote already: expected the name of another sim")
    return ServedSim(make_sim(name, num_envs, 0, **options))
