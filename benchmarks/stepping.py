"""Whole env against the bare native batch: what the arm's controller, observations, rewards and resets cost.

Both routes take the same control steps through the same states with the same number of threads: the controls that the
env's controller wrote are recorded once, with the states that restarts wrote, and the bare batch of the same model gets
them back. MuJoCo is deterministic, so at the end both must stand in the same state, bit for bit; that is checked.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.benchmarks.figures import Figure, paired
from robotrl.errors import RobotrlError

DESCRIPTION = "env steps per second of mujoco/peg-insert, controller included, against the bare native MuJoCo batch"
PEERS = {"mujoco": "pip install 'robotrl[mujoco]'"}
TASK = "mujoco/peg-insert"
THREADS = 2
SIZES = (64, 256)
ACTIONS = ("random", "expert")
"""Random actions stay mostly in the air; a noisy expert's are as rich in contacts as training is."""


class Tape(NamedTuple):
    """What one pass through the env wrote, T control steps of N envs."""

    actions: NDArray[np.float32]
    """(T, N, A)."""
    ctrl: NDArray[np.float64]
    """(T, N, U) joint targets that the env's controller computed."""
    restarts: list[tuple[NDArray[np.int64], NDArray[np.float64]]]
    """For each step: the envs that restarted after it, and their new state rows."""
    first: NDArray[np.float64]
    """(N, S) state before the first step."""
    last: NDArray[np.float64]
    """(N, S) state after the last."""


def run(quick: bool) -> dict[str, Figure]:
    """Measure both routes for each number of envs and each kind of actions."""
    steps, rounds = (40, 3) if quick else (200, 9)
    return {
        f"env_steps_per_s_{kind}_{size}_envs": compare(size, kind, steps, rounds) for size in SIZES for kind in ACTIONS
    }


def compare(num_envs: int, kind: str, steps: int, rounds: int) -> Figure:
    """One figure: the env against the bare batch, interleaved.

    Args:
        num_envs: N.
        kind: "random" or "expert", whose actions are played.
        steps: control steps of one run.
        rounds: runs of each route.

    Raises:
        RobotrlError: the routes did not end in the same state, so that they are not comparable.
    """
    import mujoco.batch
    import torch

    from robotrl.registry import make_sim

    sim = make_sim(TASK, num_envs=num_envs, seed=0, threads=THREADS)
    tape = record(sim, kind, steps)
    physics, substeps = sim.core.physics, sim.core.task.substeps
    actions = [torch.from_numpy(action) for action in tape.actions]
    bare = mujoco.batch.Batch(physics.model, num_envs, THREADS)
    ctrl = bare.bind("ctrl")

    def env() -> float:
        sim.reset(seed=0)
        begun = time.perf_counter()
        for action in actions:
            sim.step(action)
        taken = time.perf_counter() - begun
        _check_same(physics.batch.state, tape.last, "the env")
        return steps * num_envs / taken

    def batch() -> float:
        bare.state[:] = tape.first
        begun = time.perf_counter()
        for targets, (ids, states) in zip(tape.ctrl, tape.restarts, strict=True):
            ctrl[:] = targets
            bare.step(nstep=substeps)
            if len(ids):
                bare.state[ids] = states
        taken = time.perf_counter() - begun
        _check_same(bare.state, tape.last, "the bare batch")
        return steps * num_envs / taken

    measured = paired({"env": env, "bare mujoco.batch": batch}, rounds)
    sim.close()
    note = f"{THREADS} threads, {substeps} physics steps each; both routes pass through the same states, bit for bit"
    return measured.figure("env", "bare mujoco.batch", "env steps/s", "higher", note)


def record(sim: Any, kind: str, steps: int) -> Tape:
    """Play `steps` control steps in the env and keep what the bare batch needs to do the same work."""
    import torch

    rng = np.random.default_rng(0)
    batch = sim.core.physics.batch
    sim.reset(seed=0)
    expert = sim.make_expert(noise=0.3, seed=0) if kind == "expert" else None
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    first = batch.state.copy()
    actions: list[NDArray[np.float32]] = []
    ctrl: list[NDArray[np.float64]] = []
    restarts: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    before = sim.core.physics.ctrl.copy()
    for _ in range(steps):
        if expert is None:
            action = rng.uniform(-1, 1, (sim.num_envs, *sim.action_spec.shape)).astype(np.float32)
        else:
            action = expert.act(started).numpy().astype(np.float32).copy()
        step = sim.step(torch.from_numpy(action))
        ids = step.final_ids.numpy().copy()
        # A restart overwrites the controls of the episode's last step: the step before it stands in for that row.
        targets = sim.core.physics.ctrl.copy()
        targets[ids] = before[ids]
        actions.append(action)
        ctrl.append(targets)
        restarts.append((ids, batch.state[ids].copy()))
        before = targets
        started = step.terminated | step.truncated
    return Tape(np.stack(actions), np.stack(ctrl), restarts, first, batch.state.copy())


def _check_same(found: NDArray[np.float64], expected: NDArray[np.float64], who: str) -> None:
    if not np.array_equal(found, expected):
        raise RobotrlError(f"bench stepping: {who} left the recorded states by {np.abs(found - expected).max():.3g}")
