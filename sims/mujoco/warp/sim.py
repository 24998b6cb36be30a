"""`WarpSim`: runs a task's episodes on MuJoCo Warp as a `VecSim` whose tensors never leave their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import NumericsError
from robotrl.sims import starts
from robotrl.sims.mujoco.engine.arrays import Array
from robotrl.sims.mujoco.engine.parameters import Parameters
from robotrl.sims.mujoco.engine.planned_starts import PlannedStarts
from robotrl.sims.mujoco.engine.replay import LIMIT
from robotrl.sims.mujoco.engine.reset_options import reset_options
from robotrl.sims.mujoco.engine.task import DeviceTask
from robotrl.sims.mujoco.warp.actions import DeviceActions
from robotrl.sims.mujoco.warp.faults import DeviceFaults
from robotrl.sims.mujoco.warp.physics import WarpPhysics
from robotrl.sims.mujoco.warp.transfer import to_device
from robotrl.spec import Spec, Split, Step

if TYPE_CHECKING:
    import gymnasium

Ids = NDArray[np.int64]
ACTION, CONTACTS = "action", "contacts"
"""Kinds of faults besides the coordinates."""
REASONS = {
    "HasState": "MuJoCo Warp is not deterministic from run to run; use engine 'native'",
    "HasCamera": "images are drawn from the native engine's state; use engine 'native'",
}
"""Capability to why the sims lack it."""


class MeasuredDeviceTask(DeviceTask, Protocol):
    """A `DeviceTask` with a distance to success."""

    def distance(self) -> Array:
        """Distance to success (N,), m."""
        ...


class WarpSim:
    """Batched sim of one task on MuJoCo Warp, with numbered starts and same-step reset.

    Step counters and start ids live on the host, which therefore knows without asking which episodes reach their time
    limit. A task whose episodes can end earlier costs one question to the device a step: which ended. Start states are
    planned on the host and copied in the background.

    Args:
        task: the task.
        num_envs: number of envs N.
        seed: seed of the random training start ids.
        device: device of physics and tensors.
        randomization: see `Parameters`.
        ticks: calls of the physics in a control step; divides the task's `substeps`.

    Raises:
        ConfigError: MuJoCo Warp is not installed, or lacks something that the model uses; or see `Parameters`.
    """

    buffers_are_reused = True
    has_final_obs: Literal[True] = True
    reasons: Mapping[str, str] = REASONS

    def __init__(
        self,
        task: DeviceTask,
        num_envs: int,
        seed: int,
        device: torch.device,
        randomization: Mapping[str, tuple[float, float]] | None = None,
        ticks: int = 1,
    ) -> None:
        self.task = task
        self.num_envs = num_envs
        self.device = device
        self.control_dt_s = task.control_dt_s
        self.observation_spec: dict[str, Spec] = dict(task.observation_spec)
        self.action_spec: Spec = task.action_spec
        self.physics = WarpPhysics(task.xml(), num_envs, task.substeps // ticks, task.reads_derived_fields, device)
        task.bind(self.physics)
        params = task.params()
        self.params = tuple(params)
        self._parameters = Parameters(params, num_envs, randomization, self.physics.write_param)
        # one name may be a field of several parameters
        self.physics.compile(dict.fromkeys(field for param in params.values() for field in param.fields))
        self._starts = PlannedStarts(task.plan, seed)
        self._actions = DeviceActions(task.action_spec, num_envs, device)
        self._faults = DeviceFaults((ACTION, *self.physics.bad, CONTACTS), num_envs, device)
        self._all: Ids = np.arange(num_envs)
        self._steps: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self._start_ids = torch.full((num_envs,), -1, dtype=torch.int64, device=device)
        # buffers that `step` returns and overwrites
        self._obs = {
            key: torch.from_numpy(np.zeros((num_envs, *spec.shape), spec.dtype)).to(device)
            for key, spec in task.observation_spec.items()
        }
        self._reward = torch.zeros(num_envs, device=device)
        self._terminated, self._truncated, self._success = (
            torch.zeros(num_envs, dtype=torch.bool, device=device) for _ in range(3)
        )
        self._state_id = self._start_ids.clone()
        self._nobody = torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def limit_steps(self) -> int:
        """Time limit of an episode, control steps (`robotrl.spec.HasTimeLimit`)."""
        return self.task.limit_steps

    def elapsed_steps(self) -> Tensor:
        """Steps (N,) int64 of each running episode."""
        return to_device(self._steps.copy(), self.device)

    def state_ids(self, split: Split) -> range:
        """Start ids of a split."""
        return starts.ids_of(split)

    def queue_states(self, ids: Sequence[int] | Ids) -> None:
        """Queue start ids for the next restarts, in order; after the last one, training ids are drawn again.

        Raises:
            ConfigError: an id outside all splits.
        """
        self._starts.queue.put(starts.queue_of(ids))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see `MujocoCore.reset` for the options.

        Raises:
            ConfigError: unknown option, or an array of the wrong shape.
            NumericsError: a number in "qpos" or "qvel" is not finite; nothing has been reset.
        """
        model = self.physics.model
        given = reset_options(options, self.num_envs, model.nq, model.nv)
        self._starts.queue.restart(seed)
        if given.state_ids is not None:
            self._starts.queue.put(given.state_ids)
        everyone = to_device(self._all, self.device)
        self._start(self._all, everyone)
        if given.stagger:
            self._steps[:] = self._all * self.task.limit_steps // self.num_envs
        if given.coordinates:
            self.physics.set(given.coordinates)
            self.physics.start(everyone)
            self.task.observe(self._obs, slice(None))
        return dict(self._obs)

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) between two steps; returns the observations of all envs."""
        self._start(envs.cpu().numpy(), envs.to(self.device))
        return dict(self._obs)

    def _start(self, env_ids: Ids, rows: Tensor) -> None:
        """Start new episodes in envs, which the host and the device know as `env_ids` and `rows` (n,)."""
        ids, plans = self._starts.take(len(env_ids))
        self._steps[env_ids] = 0
        self._start_ids[rows] = to_device(ids, self.device)
        self._parameters.draw(env_ids, ids)
        self.task.start(rows, plans)
        self.physics.start(rows)
        self.task.observe(self._obs, rows)

    def get_params(self) -> dict[str, NDArray[np.float64]]:
        """Current multipliers (N,) by parameter name."""
        return self._parameters.get()

    def set_params(self, ids: Sequence[int] | Ids, values: dict[str, NDArray[np.float64]]) -> None:
        """Set multipliers of some envs; see `Parameters.set` for the errors."""
        self._parameters.set(np.asarray(ids, np.int64), values)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; ended episodes restart before this returns.

        Args:
            actions: (N, A), clipped to the action bounds.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action or the resulting state is not finite, or contacts were lost; on a GPU this is
                noticed some steps later. Envs whose state is not finite keep their last good one.
        """
        task = self.task
        actions = self._actions.checked(actions, self._steps)
        started = self._steps == 0
        self._steps += 1
        self._advance(actions, started)
        task.observe(self._obs, slice(None))
        self._check()
        outcome = task.outcome(actions)
        self._reward.copy_(outcome.reward)
        env_ids, rows = self._ended(outcome.success, outcome.failure)
        self._success.copy_(self._truncated if task.survival else outcome.success)
        self._state_id.copy_(self._start_ids)
        final_obs = {key: value[rows] for key, value in self._obs.items()}
        if len(env_ids):
            self._start(env_ids, rows)
        return Step(
            obs=dict(self._obs),
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_obs=final_obs,
            final_ids=rows,
            info={"success": self._success, "state_id": self._state_id},
        )

    def _advance(self, actions: Tensor, started: NDArray[np.bool_]) -> None:
        """Command the actions (N, A) and advance the physics by a control step; `started` (N,) begin their episode."""
        del started
        self.task.command(actions)
        self._advance_physics()

    def _advance_physics(self) -> None:
        """Advance the physics once with the present controls, and note what went wrong."""
        self.physics.step()
        faults = self._faults
        faults.mark(ACTION, self._actions.bad)
        for name, bad in self.physics.bad.items():
            faults.mark(name, bad)
        faults.mark(CONTACTS, self.physics.lost_contacts())

    def _ended(self, success: Tensor, failure: Tensor) -> tuple[Ids, Tensor]:
        """Set `terminated` and `truncated`; returns the envs that ended, for the host and for the device."""
        timed_out = self._steps >= self.task.limit_steps
        late: Tensor | None = to_device(timed_out, self.device) if timed_out.any() else None
        if not self.task.ends_early:
            if late is None:
                self._truncated.zero_()
                return self._all[:0], self._nobody
            self._truncated.copy_(late)
            env_ids = timed_out.nonzero()[0]
            return env_ids, to_device(env_ids, self.device)
        self._terminated.copy_(failure if self.task.survival else success | failure)
        if late is None:
            self._truncated.zero_()
        else:
            self._truncated.copy_(late & ~self._terminated)
        # the only number of a step that the host waits for
        rows = (self._terminated | self._truncated).nonzero()[:, 0]
        return (rows.cpu().numpy() if len(rows) else self._all[:0]), rows

    def _check(self) -> None:
        for kind, envs in self._faults.read().items():
            others = f" ({len(envs)} envs in all)" if len(envs) > 1 else ""
            where = f"env {envs[0]}, episode step {self._steps[envs[0]]} or before{others}"
            if kind == ACTION:
                raise NumericsError(f"{where}: an action is not finite: expected finite numbers")
            if kind == CONTACTS:
                raise NumericsError(
                    f"{where}: more contacts than MuJoCo Warp has room for, so that some were lost; engine 'native' has"
                    " room for all"
                )
            raise NumericsError(
                f"{where}: field {kind!r} is NaN, infinite or huge: expected finite numbers below {LIMIT:g}; the env is"
                " frozen at its last good state"
            )

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Wrap the sim as a numpy `gymnasium.vector.VectorEnv`; `robotrl.sims.interop` has more options."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """Do nothing: memory is freed with the sim."""


class MeasuredWarpSim(WarpSim):
    """A `WarpSim` whose task states its distance to success (`robotrl.spec.HasDistance`)."""

    reasons = REASONS | {
        "HasExpert": "scripted experts compute on the native engine's arrays; use engine 'native'",
        "HasCaptions": "captions describe images, which are drawn from the native engine's state; use engine 'native'",
    }

    def __init__(
        self,
        task: MeasuredDeviceTask,
        num_envs: int,
        seed: int,
        device: torch.device,
        randomization: Mapping[str, tuple[float, float]] | None = None,
        ticks: int = 1,
    ) -> None:
        super().__init__(task, num_envs, seed, device, randomization, ticks)
        self._measured = task

    def distance(self) -> Tensor:
        """Distance to success (N,), m, as defined by the task; privileged information."""
        return self._measured.distance()
