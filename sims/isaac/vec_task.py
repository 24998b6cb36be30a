"""Adapter of Isaac Gym's `VecTask`, and of forks that reset in the same step.

NVIDIA's tasks set `reset_buf` in one step and reset those envs in the next one. So the observation that comes with the
flag is the last of its episode, and the next step, whose action moved nothing that counts, brings the first one of the
next. The adapter reports the end with that next step: its `final_obs` is the observation that came with the flag, its
reward is 0. Each episode has one such step more than the task counts.

step of the task     k (done)             k + 1 (resets)         k + 2
task returns         last obs, reward     first obs, no reward   obs, reward
sim returns          last obs, reward     first obs, reward 0,   obs, reward
                     no flag              flag, final_obs = last
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from robotrl.sims.isaac.base import IsaacSim, Settings, rows
from robotrl.sims.isaac.faults import IsaacFault
from robotrl.sims.isaac.step_rules import Ends, flags, late_reward, single_done_ends
from robotrl.sims.isaac.surface import VecTask
from robotrl.spec import Step

Resets = Literal["next-step", "same-step"]
RESETS: tuple[Resets, ...] = ("next-step", "same-step")


class VecTaskSim(IsaacSim):
    """A `VecSim` around a task that resets in the same step, as forks of Isaac Gym's tasks do; no final observations.

    An end without `extras["time_outs"]` counts as a failure, with one warning.
    """

    def __init__(self, env: VecTask, settings: Settings) -> None:
        spaces = {"obs": env.obs_space}
        if env.num_states:
            spaces["states"] = SimpleNamespace(
                shape=(env.num_states,), dtype="float32", low=-float("inf"), high=float("inf")
            )
        asked = settings._replace(policy_groups=settings.policy_groups or ("obs",))
        device = torch.device(env.rl_device)
        super().__init__(env, asked, (SimpleNamespace(spaces=spaces), env.act_space), device, settings.control_dt_s)
        self._none = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._seen_end, self._warned = False, False

    def _start(self, seed: int | None) -> Mapping[str, Any]:
        if seed is not None:
            torch.manual_seed(seed)
        return self.env.reset()

    def _counters(self) -> Tensor:
        return self.env.progress_buf

    def _stepped(self, commands: Tensor) -> tuple[dict[str, Tensor], Tensor, Ends, dict[str, Any]]:
        """Step the task by its own actions; returns observation, reward, ends as the task flags them, and extras."""
        observation, reward, done, extras = self.env.step(commands)
        time_outs = extras.get("time_outs")
        if time_outs is None and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.name}: extras has no 'time_outs': every end counts as a failure, after which nothing follows",
                stacklevel=3,
            )
        ends = single_done_ends(
            flags(self._vector("reset_buf", done)),
            self._none if time_outs is None else flags(self._vector("time_outs", time_outs)),
        )
        return self._reader.read(observation), self._reward(reward), ends, extras

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see `LabSim.step`."""
        commands = self._commands.raw(actions, self.env.progress_buf)
        with self._stepping:
            obs, reward, ends, extras = self._stepped(commands)
            ids = self._commands.rows_that_ended(ends.done())
            self._check_reset(ids, reset_at_once=True)
            self._book(ids, extras)
            return Step(obs, reward, ends.terminated, ends.truncated, rows(obs, ids), ids, self._info(ends, extras))

    def _book(self, ids: Tensor, extras: Mapping[str, Any]) -> None:
        if len(ids) and isinstance(extras.get("episode"), Mapping):
            self._log.add(extras["episode"], len(ids))

    def close(self) -> None:
        """Do nothing: a task has no end."""

    def _check_reset(self, ids: Tensor, reset_at_once: bool) -> None:
        """Compare the first end with the option `resets`: a reset sets the step counter to 0."""
        if self._seen_end or not len(ids):
            return
        self._seen_end = True
        counters = self.env.progress_buf[ids]
        if bool((counters == 0).all()) != reset_at_once:
            found, wanted = RESETS if reset_at_once else RESETS[::-1]
            raise IsaacFault(
                f"{self.name}: progress_buf of env {int(ids[0])}, whose episode ended, is {int(counters[0])} after the"
                f" step, and resets is {wanted!r}: expected resets {found!r} for this task"
            )


class LateVecTaskSim(VecTaskSim):
    """A `VecSim` around a task that resets in the next step, as NVIDIA's do; see the module's text."""

    buffers_are_reused = False
    has_final_obs: Literal[True] = True

    def __init__(self, env: VecTask, settings: Settings) -> None:
        super().__init__(env, settings)
        self._pending = Ends(self._none, self._none, self._none)
        self._succeeded = self._none
        self._held: dict[str, Tensor] = {}

    def _start(self, seed: int | None) -> Mapping[str, Any]:
        super()._start(seed)
        # `reset` of such a task resets nothing: the next step resets the envs with the flag, and the action of the
        # step does not matter
        self.env.reset_buf[:] = 1
        with self._stepping:
            zero = torch.zeros((self.num_envs, *self.env.act_space.shape), device=self.device)
            obs, _, ends, extras = self._stepped(zero)
            self._keep(obs, ends, self._info(ends, extras)["success"])
        return self._held

    def _keep(self, obs: dict[str, Tensor], ends: Ends, succeeded: Tensor) -> None:
        """Copy what the task may overwrite, until the next step."""
        self._held = {key: value.clone() for key, value in obs.items()}
        self._pending, self._succeeded = Ends(*(flag.clone() for flag in ends)), succeeded.clone()

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see `LabSim.step`."""
        commands = self._commands.raw(actions, self.env.progress_buf)
        with self._stepping:
            obs, reward, ends, extras = self._stepped(commands)
            last, ended_before, succeeded = self._held, self._pending, self._succeeded
            done: Tensor = ended_before.done()
            ids = self._commands.rows_that_ended(done)
            if not self._seen_end:
                self._check_reset(ends.done().nonzero()[:, 0], reset_at_once=False)
            self._book(ids, extras)
            info = self._info(ends, extras)
            self._keep(obs, ends, info["success"])
            info["success"] = succeeded
        return Step(
            dict(self._held),
            late_reward(torch, done, reward),
            ended_before.terminated,
            ended_before.truncated,
            rows(last, ids),
            ids,
            info,
        )


def vec_task_sim(env: VecTask, settings: Settings, resets: Resets) -> VecTaskSim:
    """Adapter of a task; `resets` says when it resets an env that ended."""
    return (LateVecTaskSim if resets == "next-step" else VecTaskSim)(env, settings)
