"""Batched physics on MuJoCo Warp: N worlds of one model on a device, their arrays shared with torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.sims.mujoco.engine import rne_post
from robotrl.sims.mujoco.engine.arrays import ArrayNamespace
from robotrl.sims.mujoco.engine.parameters import multiplied
from robotrl.sims.mujoco.engine.physics import Derived, load
from robotrl.sims.mujoco.engine.replay import LIMIT
from robotrl.sims.mujoco.engine.task import Param
from robotrl.sims.mujoco.warp.install import packages
from robotrl.sims.mujoco.warp.kernels import Kernels
from robotrl.sims.mujoco.warp.random import uniform
from robotrl.sims.mujoco.warp.transfer import to_device

CONTACTS = 32
"""Room for contacts, a world on average."""
CONTACT_ROWS = 96
"""Room for rows of contact constraints in a world: four for each contact with friction."""
MORE_CONTACTS, MORE_ROWS = 8, 24
"""Additional room for each free body beyond the first."""
COORDINATES = ("qpos", "qvel")
SENSORS = "sensordata"
DERIVED_CONSTANTS = ("body_subtreemass", "dof_invweight0", "body_invweight0", "actuator_acc0")
"""Fields of the model that follow from masses and inertias."""


class WarpPhysics:
    """Batch of worlds on MuJoCo Warp; satisfies `TaskPhysics` with torch tensors that share Warp's memory.

    The model is the native engine's, in float32. A solver that Warp lacks (PGS) is replaced by Newton's.

    Args:
        xml: the MJCF.
        num_envs: number of worlds N.
        substeps: physics steps in a call of `step`.
        derived: update mode of derived fields, see `Derived`.
        device: device of the arrays.

    Raises:
        ConfigError: MuJoCo Warp is not installed, or lacks something that the model uses.
        RobotrlError: MuJoCo cannot load the MJCF.
    """

    def __init__(self, xml: str, num_envs: int, substeps: int, derived: Derived, device: torch.device) -> None:
        wp, mjw, arrays = packages()
        self.xp: ArrayNamespace = arrays
        self.device = device
        self.num_envs = num_envs
        self.model = model = load(xml)
        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        # to Warp this means: boxes collide by MuJoCo's own routine for two boxes, as they do on the native engine
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD)
        self._to_torch = wp.to_torch
        with wp.ScopedDevice(str(device)):
            try:
                self._m: Any = mjw.put_model(model)
            except NotImplementedError as error:
                raise ConfigError(f"engine 'warp': MuJoCo Warp cannot run this model: {error}") from error
            # lost contacts are reported by `lost_contacts`, not printed by the device
            self._m.opt.warn_overflow = 0
            more = max(int((np.asarray(model.jnt_type) == mujoco.mjtJoint.mjJNT_FREE).sum()) - 1, 0)
            self._d: Any = mjw.make_data(
                model,
                num_envs,
                nconmax=CONTACTS + MORE_CONTACTS * more,
                njmax=CONTACT_ROWS + MORE_ROWS * more + int(model.jnt_limited.sum()),
            )
        self._synchronize()
        self._state = {name: self.bind(name) for name in COORDINATES}
        self._good = {name: live.clone() for name, live in self._state.items()}
        # what a new simulation holds besides its coordinates
        self._zero = [self.bind(name) for name in (*(("act",) if model.na else ()), "ctrl", "qacc_warmstart", "time")]
        self._warmstart = self.bind("qacc_warmstart")
        self.ctrl: Tensor = self.bind("ctrl")
        self._time, self._history = self.bind("time"), self.bind("history")
        self._stamps = to_device(_stamps(model), device)
        self._overflow = self.bind("overflow")
        solver = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS
        self._lost_bits = int(mjw.OverflowType.ALL & ~solver)
        self.bad: dict[str, Tensor] = {
            name: torch.zeros(num_envs, dtype=torch.bool, device=device) for name in COORDINATES
        }
        """Envs (N,) whose qpos or qvel became NaN, infinite or huge in the last step; they keep the last good state."""
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}
        self._derived: Derived = derived
        self._own: set[str] = set()
        self._substeps = substeps

    def compile(self, fields: Iterable[str]) -> None:
        """Give each world its own values of these fields of the model, and prepare the kernels; before any step."""
        mjw = packages().mujoco_warp
        m, d, derived = self._m, self._d, self._derived
        for name in (*fields, *DERIVED_CONSTANTS):
            self.parameter(name)
        self._synchronize()

        def advance() -> None:
            for _ in range(self._substeps):
                mjw.step(m, d)
            if derived == "stepped":
                mjw.rne_postconstraint(m, d)

        def derive() -> None:
            mjw.fwd_kinematics(m, d)
            if derived == "fresh":
                mjw.com_vel(m, d)
                mjw.sensor_pos(m, d)
                mjw.sensor_vel(m, d)
                return
            if SENSORS in self._kept:
                # what a sensor of forces shows before the first step follows from the start's own contacts
                mjw.forward(m, d)
                return
            mjw.transmission(m, d)
            mjw.fwd_velocity(m, d)
            mjw.fwd_actuation(m, d)

        def set_constants() -> None:
            mjw.set_const(m, d, mjw.SetConstGroup.FIXED | mjw.SetConstGroup.INERT0, restore=False)

        self._advance = Kernels(advance, self.device)
        self._derive = Kernels(derive, self.device)
        self._set_constants = Kernels(set_constants, self.device)

    def _synchronize(self) -> None:
        """Wait until memory that Warp has prepared on its stream may be used on torch's, and the other way round."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def bind(self, name: str) -> Tensor:
        """Live array (N, ...) of a field of `mujoco_warp.Data`."""
        return self._to_torch(getattr(self._d, name))

    def coordinates(self) -> tuple[Tensor, ...]:
        """Live arrays qpos (N, nq) and qvel (N, nv)."""
        return self._state["qpos"], self._state["qvel"]

    def field(self, name: str) -> Tensor:
        """Live array (N, ...) of a derived field; in mode "stepped" as the last step or the start left it."""
        if self._derived != "stepped":
            return self.bind(name)
        if name not in self._kept:
            bound = self.bind(name)
            self._kept[name] = bound, torch.zeros_like(bound)
        return self._kept[name][1]

    def put(self, env_ids: Tensor, coordinates: NDArray[np.float64]) -> None:
        """Put envs (n,) into the state of a new simulation, but with these coordinates (n, nq + nv)."""
        values = to_device(coordinates.astype(np.float32), self.device)
        qpos, qvel = self.coordinates()
        qpos[env_ids] = values[:, : qpos.shape[1]]
        qvel[env_ids] = values[:, qpos.shape[1] :]
        for array in self._zero:
            array.index_fill_(0, env_ids, 0)

    def array(self, numbers: NDArray[Any]) -> Tensor:
        """Tensor of the host's numbers on the device, reals as float32; nothing waits for the copy."""
        real = np.issubdtype(numbers.dtype, np.floating)
        return to_device(numbers.astype(np.float32) if real else numbers, self.device)

    def zeros(self, shape: tuple[int, ...] = (), dtype: torch.dtype | None = None) -> Tensor:
        """Zeros (N, *shape) on the device."""
        return torch.zeros((self.num_envs, *shape), dtype=dtype or torch.float32, device=self.device)

    def solve(self, matrices: Tensor, right: Tensor) -> Tensor:
        """Solutions (N, k, 1) of linear systems (N, k, k) with right-hand sides (N, k, 1)."""
        # `solve` would ask the device whether a matrix is singular, and wait for the answer
        return torch.linalg.solve_ex(matrices, right)[0]

    def parameter(self, name: str) -> Tensor:
        """Live array (N, ...) of a field of the model, of which each world has its own from now on."""
        if name not in self._own:
            self._own.add(name)
            wp, shared = packages().warp, getattr(self._m, name)
            with wp.ScopedDevice(str(self.device)):
                own = wp.empty((self.num_envs, *shared.shape[1:]), dtype=shared.dtype)
            self._synchronize()
            self._to_torch(own).copy_(self._to_torch(shared))
            setattr(self._m, name, own)
        return self._to_torch(getattr(self._m, name))

    def uniform(self, seed: int, index: Tensor, streams: int) -> Tensor:
        """Numbers (n, streams) of `counter_rng.uniform`, float64."""
        return uniform(seed, index, streams)

    def some(self, flags: Tensor) -> slice:
        """All envs: asking the device which flags are true would make the host wait (`TaskPhysics`)."""
        del flags
        return slice(None)

    def set(self, coordinates: Mapping[str, NDArray[np.float64]]) -> None:
        """Overwrite qpos (N, nq) or qvel (N, nv) of all envs."""
        for name, values in coordinates.items():
            self._state[name].copy_(torch.from_numpy(values))

    def start(self, env_ids: Tensor) -> None:
        """Take over the start state written into envs (n,), and update their derived fields; the others keep theirs."""
        for name, live in self._state.items():
            self._good[name][env_ids] = live[env_ids]
        if not self._kept and self._derived != "fresh":
            return
        self._derive()
        for name, (bound, kept) in self._kept.items():
            if name in rne_post.FIELDS:
                # before the first step there are no contact wrenches, as after mj_resetData
                kept.index_fill_(0, env_ids, 0)
            else:
                kept[env_ids] = bound[env_ids]

    def step(self) -> None:
        """Advance every world by the physics steps of a control step with the current controls.

        Worlds that diverge are marked in `bad`, and keep their last good state.
        """
        if len(self._stamps):
            # the clock starts anew: float32 seconds could soon not tell the times of delayed commands apart
            self._history[:, self._stamps] -= self._time[:, None]
            self._time.zero_()
        self._advance()
        for name, live in self._state.items():
            # NaN fails the comparison
            torch.logical_not((live.abs() < LIMIT).all(dim=1), out=self.bad[name])
        good = ~(self.bad["qpos"] | self.bad["qvel"])
        for name, live in self._state.items():
            torch.where(good[:, None], live, self._good[name], out=self._good[name])
            live.copy_(self._good[name])
        self._warmstart.masked_fill_(~good[:, None], 0)
        for bound, kept in self._kept.values():
            torch.where(good.view(-1, *[1] * (kept.dim() - 1)), bound, kept, out=kept)
        if self._derived == "fresh":
            self._derive()

    def write_param(self, param: Param, env_ids: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Write a parameter's fields of the envs `env_ids` (n,), times the multipliers (n,)."""
        envs, rows = (to_device(np.asarray(index), self.device) for index in (env_ids, param.rows))
        for field in param.fields:
            columns, numbers = multiplied(param, np.asarray(getattr(self.model, field)), values)
            live = self._to_torch(getattr(self._m, field))
            values_there = to_device(numbers.astype(np.float32), self.device)
            if columns is None:
                live[envs[:, None], rows] = values_there
            else:
                live[envs[:, None, None], rows[:, None], to_device(columns, self.device)] = values_there
        if set(param.fields) & set(mujoco.MjModel._setconst_inputs):
            self._set_constants()

    def lost_contacts(self) -> Tensor:
        """Flags (N,) of envs with more contacts than there is room for since the last call."""
        lost = (self._overflow & self._lost_bits) != 0
        self._overflow.zero_()
        return lost


def _stamps(model: mujoco.MjModel) -> NDArray[np.int64]:
    """Columns of MuJoCo's history that hold the times of delayed commands: those after user value and cursor."""
    found = [
        first + 2 + np.arange(count)
        for first, (count, _) in zip(model.actuator_historyadr.tolist(), model.actuator_history.tolist(), strict=True)
        if count
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)
