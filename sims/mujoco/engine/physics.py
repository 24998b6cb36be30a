"""Batched MuJoCo physics: N simulations of one model stepped in one call, with a guard against NaN and infinity."""

from __future__ import annotations

import copy
import json
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import mujoco
import mujoco.batch
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import NumericsError, RobotrlError
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine import rne_post
from robotrl.sims.mujoco.engine.arrays import ArrayNamespace
from robotrl.sims.mujoco.engine.replay import DUMP_SCHEMA, FIELDS, LIMIT, bad_value
from robotrl.sims.mujoco.engine.warnings import remarks
from robotrl.utils.hardware import check_threads, usable_cores

Derived = Literal["none", "stepped", "fresh"]
"""Update mode of the fields that MuJoCo derives from the state (xpos, sensordata, cfrc_ext).

- "none": the task reads no derived fields.
- "stepped": values left by `mj_step` and a subsequent `mj_rnePostConstraint`, as in Gymnasium's envs. They come from
  the last evaluation of the dynamics, up to one physics step before the state, and so belong to the exact state. At
  the start of an episode they are those of `mj_forward`.
- "fresh": position- and velocity-dependent fields are recomputed for each new state, at about 5 % of the time.
"""

_VEL = int(mujoco.mjtStage.mjSTAGE_VEL)
_POS = int(mujoco.mjtStage.mjSTAGE_POS)
_NONE = int(mujoco.mjtStage.mjSTAGE_NONE)


class SimNumericsError(NumericsError):
    """The state of some envs became NaN, infinite or huge. They keep their last good state; the others have stepped.

    Attributes:
        env_ids: the failed envs.
        dump: directory of a dump of the first failed env, for `python -m robotrl.sims.mujoco.engine.replay DUMP`.
    """

    def __init__(self, message: str, env_ids: list[int], dump: Path) -> None:
        super().__init__(message)
        self.env_ids = env_ids
        self.dump = dump


class Physics:
    """Batch of simulations of one model on `mujoco.batch`.

    Args:
        xml: the MJCF.
        num_envs: number of simulations N.
        threads: threads that step them; 0 takes every core this process may use.
        dump_dir: directory for replayable dumps of failed states; None uses a new temporary directory.
        derived: update mode of derived fields, see `Derived`; "stepped" ones are read through `field`.

    Raises:
        RobotrlError: MuJoCo cannot load the MJCF (with MuJoCo's message), or is too old.
    """

    def __init__(
        self,
        xml: str,
        num_envs: int,
        threads: int = 0,
        dump_dir: Path | None = None,
        derived: Derived = "fresh",
    ) -> None:
        model = load(xml)
        # by default MuJoCo silently resets a diverged simulation; the guard must see the divergence instead
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self.xml = xml
        self.model = model
        self.num_envs = num_envs
        self.threads = check_threads("threads", threads) or usable_cores()
        stepped = model if derived != "stepped" else rne_post.with_wrenches(xml, model)
        self.batch = mujoco.batch.Batch(stepped, num_envs, self.threads)
        self.ctrl: NDArray[np.float64] = self.batch.bind("ctrl")
        self._dump_dir = dump_dir
        self._derived: Derived = derived
        self._stage = _VEL if derived == "fresh" else _NONE
        self._kept: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
        self._ctrl_at, self._qpos_at = self.offset("ctrl"), self.offset("qpos")
        self._new: NDArray[np.float64] = self.batch.state[0].copy()
        self._before = self.batch.state.copy()
        self._earlier = self.batch.state.copy()
        self._steps = 0

    @property
    def xp(self) -> ArrayNamespace:
        """Functions of the arrays (`TaskPhysics`)."""
        return np

    def bind(self, name: str) -> NDArray[Any]:
        """Live array (N, ...) of a field of the state."""
        return self.batch.bind(name)

    def coordinates(self) -> tuple[NDArray[np.float64], ...]:
        """One live array (N, nq + nv) of qpos followed by qvel: they are adjacent in a row of the state."""
        first = self._qpos_at
        return (self.batch.state[:, first : first + self.model.nq + self.model.nv],)

    def put(self, env_ids: NDArray[np.int64], coordinates: NDArray[np.float64]) -> None:
        """Put envs into the state of a new simulation, but with these coordinates (n, nq + nv)."""
        rows = np.broadcast_to(self._new, (len(env_ids), len(self._new))).copy()
        rows[:, self._qpos_at : self._qpos_at + coordinates.shape[1]] = coordinates
        self.batch.state[env_ids] = rows

    def array(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The numbers themselves (`TaskPhysics`)."""
        return numbers

    def zeros(self, shape: tuple[int, ...] = (), dtype: Any = None) -> NDArray[Any]:
        """Zeros (N, *shape)."""
        return np.zeros((self.num_envs, *shape), dtype)

    def solve(self, matrices: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.floating[Any]]:
        """Solutions (N, k, 1) of linear systems (N, k, k) with right-hand sides (N, k, 1)."""
        return np.linalg.solve(matrices, right)

    def parameter(self, name: str) -> NDArray[np.float64]:
        """Live array (N, ...) of a field of the model, of which each env has its own from now on."""
        return self.batch.expand(name)

    def uniform(self, seed: int, index: NDArray[np.int64], streams: int) -> NDArray[np.float64]:
        """Numbers (n, streams) of `counter_rng.uniform`."""
        return counter_rng.uniform(seed, index, streams)

    def some(self, flags: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """Envs whose flag is true; None if there are none (`TaskPhysics`)."""
        found = np.flatnonzero(flags)
        return found if len(found) else None

    def field(self, name: str) -> NDArray[Any]:
        """Live array (N, ...) of a derived field; in mode "stepped" an array that `set_state` restores.

        Must be called before the first step.
        """
        if self._derived != "stepped":
            return self.batch.bind(name)
        if name not in self._kept:
            bound = self.batch.bind(name)
            self._kept[name] = bound, np.zeros_like(bound)
        return self._kept[name][1]

    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Further arrays of the exact state besides the state rows: the "stepped" fields in use."""
        return {name: kept for name, (_, kept) in self._kept.items()}

    def start(self, env_ids: NDArray[np.int64] | slice = slice(None)) -> None:
        """Update derived fields after a start state was written."""
        if self._derived != "stepped":
            self.forward(env_ids)
            return
        self.batch.forward(ids=None if isinstance(env_ids, slice) else env_ids)
        for name, (bound, kept) in self._kept.items():
            # before the first step mj_rnePostConstraint has not run: zero, as after mj_resetData
            kept[env_ids] = 0 if name in rne_post.FIELDS else bound[env_ids]

    def poses(self, env_ids: NDArray[np.int64] | None = None) -> None:
        """Update the bound poses of bodies and geoms to the present state, in any mode of derived fields."""
        self.batch.forward(ids=env_ids, stage=_VEL if self._derived == "fresh" else _POS)

    def keep_poses(self) -> bool:
        """Keep poses up to date from now on if that is cheap; true if `poses` need not be called after a step.

        False in mode "stepped", where derived fields must stay as the step left them.
        """
        if self._derived == "none":
            self._derived, self._stage = "fresh", _VEL
        return self._derived == "fresh"

    def forward(self, env_ids: NDArray[np.int64] | slice = slice(None)) -> None:
        """Update "fresh" derived fields after the state was written in the middle of an episode."""
        if self._stage != _NONE:
            self.batch.forward(ids=None if isinstance(env_ids, slice) else env_ids, stage=self._stage)

    def step(self, substeps: int) -> None:
        """Advance every simulation by `substeps` physics steps with the current controls.

        Raises:
            SimNumericsError: some simulations failed; they keep their state from before the call, the others advanced.
        """
        self._before, self._earlier = self._earlier, self._before
        np.copyto(self._before, self.batch.state)
        self._steps += 1
        raised: NDArray[np.int32] | None = None
        message = ""
        try:
            self.batch.step(nstep=substeps, stage=self._stage)
        except mujoco.batch.SimulationError as error:
            raised, message = error.ids, str(error)
        state = self.batch.state
        # NaN fails both comparisons; a dot product would also do, but BLAS threads compete with the physics threads
        if raised is None and state.min() > -LIMIT and state.max() < LIMIT:
            for bound, kept in self._kept.values():
                np.copyto(kept, bound)
            return
        failed = ~(np.abs(state) < LIMIT).all(axis=1)
        if raised is not None:
            failed[raised] = True
        for bound, kept in self._kept.values():
            kept[~failed] = bound[~failed]
        if failed.any():
            self._freeze(failed, substeps, message)

    def _freeze(self, failed: NDArray[np.bool_], substeps: int, message: str) -> None:
        env_ids = np.flatnonzero(failed)
        first = int(env_ids[0])
        # report a number that was bad before the step first: the step only spread it
        found = self._bad_value(self._before[first]) or self._bad_value(self.batch.state[first]) or ("qacc", np.nan)
        # the state row from before the step includes the controls, so the dump contains a bad control too
        dump = self._dump(first, substeps, found, message)
        good, earlier = self._before[env_ids], self._earlier[env_ids]
        controls = slice(self._ctrl_at, self._ctrl_at + self.model.nu)
        good[:, controls] = np.where(np.abs(good[:, controls]) < LIMIT, good[:, controls], earlier[:, controls])
        # the state was corrupted between two steps: go back one more step
        usable = (np.abs(good) < LIMIT).all(axis=1, keepdims=True)
        self.batch.state[env_ids] = np.where(usable, good, earlier)
        self.forward(env_ids)
        others = f" ({len(env_ids)} envs in all)" if len(env_ids) > 1 else ""
        raise SimNumericsError(
            f"env {first}, control step {self._steps}: field {found[0]!r} is {found[1]}{others}: expected a finite"
            f" number below {LIMIT:g}; the env is frozen at its last good state, replay with: "
            f"python -m robotrl.sims.mujoco.engine.replay {dump}",
            [int(i) for i in env_ids],
            dump,
        )

    def _bad_value(self, row: NDArray[np.float64]) -> tuple[str, float] | None:
        fields = {name: slice(self.offset(name), self.offset(name) + self.batch.bind(name)[0].size) for name in FIELDS}
        return bad_value(lambda name: row[fields[name]])

    def offset(self, name: str) -> int:
        """Offset of a state field in a row of `batch.state`, from memory addresses: the batch does not expose it."""
        view, state = self.batch.bind(name), self.batch.state
        return (view.__array_interface__["data"][0] - state.__array_interface__["data"][0]) // state.itemsize

    def _model_of(self, env_id: int) -> mujoco.MjModel:
        """Plain model with one env's parameters; `Batch.get_model` would include the plugin of `rne_post`."""
        model = copy.copy(self.model)
        for name in mujoco.batch.MODEL_FIELDS:
            values = self.batch.expanded(name)
            if values is not None:
                getattr(model, name)[...] = values[env_id]
        return model

    def _dump(self, env_id: int, substeps: int, found: tuple[str, float], message: str) -> Path:
        base = self._dump_dir or Path(tempfile.mkdtemp(prefix="robotrl-nan-"))
        dump = base / f"env{env_id}_step{self._steps}"
        dump.mkdir(parents=True, exist_ok=True)
        # the model of this env, including its randomized parameters
        mujoco.mj_saveModel(self._model_of(env_id), str(dump / "model.mjb"), None)
        (dump / "model.xml").write_text(self.xml)
        state = {
            "schema_version": DUMP_SCHEMA,
            "env_id": env_id,
            "control_step": self._steps,
            "substeps": substeps,
            "field": found[0],
            "value": repr(found[1]),
            "message": message,
            "mujoco": mujoco.__version__,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            # repr preserves every bit of a float64, and NaN and infinity, which JSON numbers cannot represent
            "state": [repr(float(x)) for x in self._before[env_id]],
        }
        (dump / "state.json").write_text(json.dumps(state, indent=1))
        return dump


def load(xml: str) -> mujoco.MjModel:
    """Compile an MJCF.

    MuJoCo's warnings, which it would print and append to a file in the working directory, become Python warnings.
    Warnings about deprecated attributes are dropped, since the user of a task cannot fix its model.

    Raises:
        RobotrlError: MuJoCo cannot load it; the message is MuJoCo's.
    """
    try:
        with remarks() as said:
            model = mujoco.MjModel.from_xml_string(xml)
    except ValueError as error:
        raise RobotrlError(f"the MJCF does not load: {' '.join(str(error).split())}") from error
    for message in said:
        if "deprecated" not in message:
            warnings.warn(f"MuJoCo says of the MJCF: {' '.join(message.split())}", stacklevel=2)
    return model
