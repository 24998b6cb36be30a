"""N simulations of one MuJoCo model that step in one call, with a guard against numbers that are not finite."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import mujoco
import mujoco.batch
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import NumericsError, RobotrlError

_FRESH = mujoco.mjtStage.mjSTAGE_VEL.value
"""Compute position and velocity dependent fields at the new state, so that observations are not one substep old."""

DUMP_SCHEMA = 1


class SimNumericsError(NumericsError):
    """Some envs left the finite numbers. They are frozen at their last good state; the others have stepped.

    Attributes:
        env_ids: the envs concerned.
        dump: directory with what is needed to replay the first of them (`python -m robotrl.sims.mujoco.replay DUMP`).
    """

    def __init__(self, message: str, env_ids: list[int], dump: Path) -> None:
        super().__init__(message)
        self.env_ids = env_ids
        self.dump = dump


class Physics:
    """A batch of simulations of one model on `mujoco.batch`.

    Args:
        xml: the MJCF.
        num_envs: how many simulations.
        threads: threads that step them; 0 takes every core this process may use.
        dump_dir: where the guard writes replayable states; None takes a fresh directory under the system's temporary one.

    Raises:
        RobotrlError: MuJoCo cannot load the MJCF, with its message; or is too old.
    """

    def __init__(self, xml: str, num_envs: int, threads: int = 0, dump_dir: Path | None = None) -> None:
        try:
            model = mujoco.MjModel.from_xml_string(xml)
        except ValueError as error:
            raise RobotrlError(f"the MJCF does not load: {error}") from error
        # by default MuJoCo resets a diverged simulation in silence; the guard must see it instead
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self.xml = xml
        self.model = model
        self.threads = threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
        self.batch = mujoco.batch.Batch(model, num_envs, self.threads)
        self.ctrl: NDArray[np.float64] = self.batch.bind("ctrl")
        self._dump_dir = dump_dir
        self._before = self.batch.state.copy()
        self._steps = 0

    def forward(self, env_ids: NDArray[np.int64] | None = None) -> None:
        """Bring bound fields up to the state, after it was written."""
        self.batch.forward(ids=env_ids, stage=_FRESH)

    def step(self, substeps: int) -> None:
        """Advance every simulation by `substeps` physics steps under the controls that were written.

        Raises:
            SimNumericsError: some simulations failed; they keep their state from before the call, the others went on.
        """
        np.copyto(self._before, self.batch.state)
        failed = np.zeros(self.batch.nsim, bool)
        message = ""
        try:
            self.batch.step(nstep=substeps, stage=_FRESH)
        except mujoco.batch.SimulationError as error:
            failed[error.ids] = True
            message = str(error)
        self._steps += 1
        # one reduction over the state; NaN and infinities both spoil a sum
        if failed.any() or not np.isfinite(self.batch.state.sum()):
            failed |= ~np.isfinite(self.batch.state).all(axis=1)
            if failed.any():
                self._freeze(failed, substeps, message)

    def _freeze(self, failed: NDArray[np.bool_], substeps: int, message: str) -> None:
        env_ids = np.flatnonzero(failed)
        first = int(env_ids[0])
        after = self.batch.state[first].copy()
        field = self._bad_field(after)
        # controls are part of the state row that was saved before the step, so a bad action is dumped, too
        dump = self._dump(first, substeps, field, message)
        self.batch.state[env_ids] = self._before[env_ids]
        ctrl_bad = ~np.isfinite(self.ctrl[env_ids])
        self.ctrl[env_ids] = np.where(ctrl_bad, 0.0, self.ctrl[env_ids])
        self.forward(env_ids)
        raise SimNumericsError(
            f"env {first}, control step {self._steps}: field {field!r} is not finite"
            f"{f' ({len(env_ids)} envs in all)' if len(env_ids) > 1 else ''}; the env is frozen at its last good state, "
            f"replay with: python -m robotrl.sims.mujoco.replay {dump}",
            [int(i) for i in env_ids],
            dump,
        )

    def _bad_field(self, row: NDArray[np.float64]) -> str:
        for name in ("ctrl", "qpos", "qvel", "qacc_warmstart", "act", "mocap_pos", "mocap_quat", "time"):
            offset, size = self.batch._component(mujoco.batch._STATE_FIELDS[name])
            if not np.isfinite(row[offset : offset + size]).all():
                return name
        return "qacc"

    def _dump(self, env_id: int, substeps: int, field: str, message: str) -> Path:
        base = self._dump_dir or Path(tempfile.mkdtemp(prefix="robotrl-nan-"))
        dump = base / f"env{env_id}_step{self._steps}"
        dump.mkdir(parents=True, exist_ok=True)
        # the model as this env had it, its randomised parameters included
        mujoco.mj_saveModel(self.batch.get_model(env_id), str(dump / "model.mjb"), None)
        (dump / "model.xml").write_text(self.xml)
        state = {
            "schema_version": DUMP_SCHEMA,
            "env_id": env_id,
            "control_step": self._steps,
            "substeps": substeps,
            "field": field,
            "message": message,
            "mujoco": mujoco.__version__,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            # repr keeps every bit of a float64, and NaN and infinities, which JSON numbers would not
            "state": [repr(float(x)) for x in self._before[env_id]],
        }
        (dump / "state.json").write_text(json.dumps(state, indent=1))
        return dump
