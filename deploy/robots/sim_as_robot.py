"""Any batched sim as a simulated robot: one env, one control step at a time, without automatic new episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import build_sim, sim_options
from robotrl.spec import HasFinalObs, HasStateIds, Spec, Split, VecSim, is_picture, visible


@runtime_checkable
class HasStepLimit(Protocol):
    """A sim that knows its time limit, such as that of a Gymnasium environment."""

    limit_steps: int | None
    """Control steps of an episode; None for no limit."""


class SimAsRobot:
    """A sim that the driver steps in real time; implements `RobotSim`.

    An inner step is a whole control step, because a batched sim has no shorter ones. Where the sim ends an episode, the
    robot stays at its last observation until the next reset. Images are frames of its cameras.

    Args:
        sim: a sim with one env.
        name: its name, for errors.
        limit_s: length of an episode, seconds; None if the sim states none.

    Raises:
        ConfigError: it has several envs, or states no control period.
        CapabilityError: its starts have no numbers.
    """

    simulated: Literal[True] = True

    def __init__(self, sim: VecSim, name: str, limit_s: float | None = None) -> None:
        if sim.num_envs != 1:
            raise ConfigError(f"num_envs is {sim.num_envs}: expected 1 for a simulated robot")
        if sim.control_dt_s is None:
            raise ConfigError(
                f"sim {name!r} lacks control_dt_s, the seconds of a control step: expected a sim that states them (of"
                " gym/ environments: render_fps in their metadata)"
            )
        if not isinstance(sim, HasStateIds):
            raise CapabilityError(
                f"sim {name!r} lacks HasStateIds, numbered starts, from which a robot's episodes begin"
            )
        self._sim, self._starts = sim, sim
        self.observation_spec: dict[str, Spec] = visible(sim)
        self.action_spec = sim.action_spec
        self.control_dt_s = self.inner_dt_s = float(sim.control_dt_s)
        self.limit_s = limit_s
        self._rest = np.clip(np.zeros(self.action_spec.shape), self.action_spec.low, self.action_spec.high)
        self._action = np.zeros((1, *self.action_spec.shape), np.float32)
        self._obs: dict[str, NDArray[Any]] = {}
        self._over, self._success = False, False

    def state_ids(self, split: Split) -> range:
        """Start ids of a split."""
        return self._starts.state_ids(split)

    def reset(self, state_id: int) -> dict[str, NDArray[Any]]:
        """Start at a numbered state, under the action 0 or the bound nearest to it; returns its observation."""
        self._starts.queue_states([state_id])
        self._keep(self._sim.reset())
        # the last action of the episode before must not act on the new one until its first command
        self._action[0] = self._rest
        self._over, self._success = False, False
        return self.observe()

    def command(self, action: NDArray[np.float32]) -> None:
        """Set the action (A,), clipped to its bounds, which applies until the next one.

        Raises:
            ConfigError: wrong shape.
        """
        if np.shape(action) != self.action_spec.shape:
            raise ConfigError(f"action has shape {np.shape(action)}: expected {self.action_spec.shape}")
        self._action[0] = np.clip(action, self.action_spec.low, self.action_spec.high)

    def advance(self, inner_steps: int) -> None:
        """Take control steps under the present action, until the episode ends."""
        import torch

        for _ in range(inner_steps):
            if self._over:
                return
            out = self._sim.step(torch.from_numpy(self._action.copy()).to(self._sim.device))
            self._success = bool(out.info["success"][0])
            self._over = bool(out.terminated[0] | out.truncated[0])
            if not self._over:
                self._keep(out.obs)
            elif isinstance(self._sim, HasFinalObs):
                self._keep(out.final_obs)

    def observe(self) -> dict[str, NDArray[Any]]:
        """Copy of the observation, without the env axis."""
        return {key: value.copy() for key, value in self._obs.items()}

    def over(self) -> bool:
        """True once the sim has ended the episode."""
        return self._over

    def success(self) -> bool:
        """True if the last step was a success; it stays so once the episode is over."""
        return self._success

    def _keep(self, obs: dict[str, Any]) -> None:
        self._obs = {
            key: obs[key][0].cpu().numpy().astype(np.uint8 if is_picture(spec) else np.float32)
            for key, spec in self.observation_spec.items()
        }


def robot_of_sim(name: str, seed: int, options: Mapping[str, Any] | None = None) -> SimAsRobot:
    """The sim of the registry named `name`.

    Args:
        name: a row of `robotrl list sims`.
        seed: seed of the sim.
        options: its options by name; those left out have their defaults.

    Raises:
        ConfigError: there is no such sim or option, or it cannot be a robot.
        CapabilityError: it lacks numbered starts.
    """
    cfg = sim_options(name, options or {})
    sim, found = build_sim(cfg, 1, seed), vars(cfg)
    steps = _limit_steps(sim)
    steps = found.get("limit_steps") if steps is None else steps
    limit_s = found.get("limit_s")
    if steps is not None and sim.control_dt_s is not None:
        limit_s = steps * sim.control_dt_s
    return SimAsRobot(sim, name, limit_s)


def _limit_steps(sim: object) -> int | None:
    return sim.limit_steps if isinstance(sim, HasStepLimit) else None
