"""Adapter of Isaac Lab's `DirectRLEnv` and `ManagerBasedRLEnv`, 2.3 and 3.0, and of mjlab's `ManagerBasedRlEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from robotrl.sims.isaac.base import IsaacSim, Settings, rows
from robotrl.sims.isaac.step_rules import flags, lab_ends
from robotrl.sims.isaac.surface import AutoResets, ComputesFinalObs, FiniteHorizon, LabEnv
from robotrl.spec import Arrays, Step


class LabSim(IsaacSim):
    """A `VecSim` around an Isaac Lab environment that keeps no final observations.

    Envs that ended have been reset when the environment's `step` returns, and are not reset again. A task with
    `cfg.is_finite_horizon` ends at its time limit: there `terminated` is set and `truncated` is not.
    """

    def __init__(self, env: LabEnv, settings: Settings) -> None:
        super().__init__(
            env,
            settings,
            (env.single_observation_space, env.single_action_space),
            torch.device(env.device),
            settings.control_dt_s or float(env.step_dt),
        )
        self._finite = isinstance(env.cfg, FiniteHorizon) and bool(env.cfg.is_finite_horizon)

    def _start(self, seed: int | None) -> Mapping[str, Any]:
        observation, _ = self.env.reset(seed=seed)
        return observation

    def _counters(self) -> Tensor:
        return self.env.episode_length_buf

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step.

        Args:
            actions: (N, A) in the units of `action_spec`, clipped to its bounds.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action is not finite; on another device than a CPU this is noticed after the step.
            IsaacFault: the environment raised, or returned what its spaces do not allow.
        """
        commands = self._commands.raw(actions, self.env.episode_length_buf)
        with self._stepping:
            observation, reward, terminated, time_outs, extras = self.env.step(commands)
            obs = self._reader.read(observation)
            ends = lab_ends(
                flags(self._vector("terminated", terminated)), flags(self._vector("time_outs", time_outs)), self._finite
            )
            ids = self._commands.rows_that_ended(ends.done())
            obs, final = self._parted(obs, ids, extras)
            info = self._info(ends, extras)
            if len(ids) and isinstance(extras.get("log"), Mapping):
                self._log.add(extras["log"], len(ids))
        return Step(obs, self._reward(reward), ends.terminated, ends.truncated, final, ids, info)

    def _parted(self, obs: dict[str, Tensor], ids: Tensor, extras: dict[str, Any]) -> tuple[Arrays, Arrays]:
        """Observations to act on, (N, ...), and the last ones of the episodes that ended, (n, ...).

        Args:
            obs: (N, ...) as the environment's step returned them.
            ids: (n,) envs whose episode ended.
            extras: as the environment's step returned them.
        """
        del extras
        # what there is belongs to the new episodes; `HasFinalObs` is not declared, so nobody reads these rows
        return obs, rows(obs, ids)


class LabSimWithFinalObs(LabSim):
    """A `VecSim` around an Isaac Lab environment with `cfg.compute_final_obs`."""

    has_final_obs: Literal[True] = True

    def _parted(self, obs: dict[str, Tensor], ids: Tensor, extras: dict[str, Any]) -> tuple[Arrays, Arrays]:
        if not len(ids):
            return obs, rows(obs, ids)
        # taken out, so that an old one cannot pass for the next episode's
        kept = extras.pop("final_obs", None)
        # a reset that was asked for in the viewer keeps none: Isaac Lab calls it terminated, so its value is not used
        return obs, rows(obs if kept is None else self._reader.read(kept), ids)


class LabSimThatResets(LabSim):
    """A `VecSim` around an environment that leaves resets to its user: mjlab's with `cfg.auto_reset` off.

    Its step shows the last observation of an episode; the adapter copies it and then resets these envs, in the same
    step.
    """

    has_final_obs: Literal[True] = True

    def _parted(self, obs: dict[str, Tensor], ids: Tensor, extras: dict[str, Any]) -> tuple[Arrays, Arrays]:
        del extras
        final = rows(obs, ids)
        if len(ids):
            with self._resetting:
                observation, _ = self.env.reset(env_ids=ids)
            obs = self._reader.read(observation)
        return obs, final


def lab_sim(env: LabEnv, settings: Settings) -> LabSim:
    """Adapter of an Isaac Lab environment; it declares `HasFinalObs` where the environment keeps that observation."""
    if isinstance(env.cfg, AutoResets) and not env.cfg.auto_reset:
        return LabSimThatResets(env, settings)
    computes = isinstance(env.cfg, ComputesFinalObs) and bool(env.cfg.compute_final_obs)
    return (LabSimWithFinalObs if computes else LabSim)(env, settings)
