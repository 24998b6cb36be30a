"""Tape of a sim: recorded steps, so that other implementations can do exactly the same physics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import RobotrlError

Route = Callable[[], float]
"""Runs once and returns env steps per second."""

SEED = 0
STAGGER = {"stagger": True}
"""Reset options: episodes begin staggered over the time limit, so that restarts are as frequent as in training."""


class Tape(NamedTuple):
    """Recorded pass through the env: T control steps of N envs."""

    actions: NDArray[np.floating[Any]]
    """(T, N, A)."""
    ctrl: NDArray[np.float64]
    """(T, N, U) controls that the env computed from the actions."""
    restarts: list[tuple[NDArray[np.int64], NDArray[np.float64]]]
    """For each step: the envs that restarted after it, and their new state rows."""
    first: NDArray[np.float64]
    """(N, S) state before the first step: MuJoCo's integration state."""
    last: NDArray[np.float64]
    """(N, S) state after the last."""

    @property
    def whole(self) -> NDArray[np.int64]:
        """The envs that never restarted."""
        ended = {int(i) for ids, _ in self.restarts for i in ids}
        return np.array([i for i in range(len(self.first)) if i not in ended], np.int64)


def random_actions(sim: Any, steps: int) -> NDArray[np.float32]:
    """Uniform actions (T, N, A) within the sim's bounds."""
    low, high = np.asarray(sim.action_spec.low), np.asarray(sim.action_spec.high)
    rng = np.random.default_rng(SEED)
    return rng.uniform(low, high, (steps, sim.num_envs, len(low))).astype(np.float32)


def record(sim: Any, kind: str, steps: int) -> Tape:
    """Record `steps` control steps for replay.

    Args:
        sim: one of our MuJoCo sims.
        kind: source of the actions, "random" or "expert".
        steps: T.
    """
    import torch

    batch = sim.core.physics.batch
    sim.reset(SEED, STAGGER)
    drawn = random_actions(sim, steps)
    expert = sim.make_expert(noise=0.3, seed=SEED) if kind == "expert" else None
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    first = batch.state.copy()
    actions: list[NDArray[np.floating[Any]]] = []
    ctrl: list[NDArray[np.float64]] = []
    restarts: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    before = sim.core.physics.ctrl.copy()
    for t in range(steps):
        action = drawn[t] if expert is None else expert.act(started).numpy().copy()
        step = sim.step(torch.from_numpy(action))
        ids = step.final_ids.numpy().copy()
        # A restart overwrites the controls of the episode's last step: use those of the step before for that row.
        targets = sim.core.physics.ctrl.copy()
        targets[ids] = before[ids]
        actions.append(action)
        ctrl.append(targets)
        restarts.append((ids, batch.state[ids].copy()))
        before = targets
        started = step.terminated | step.truncated
    return Tape(np.stack(actions), np.stack(ctrl), restarts, first, batch.state.copy())


def env_route(sim: Any, tape: Tape) -> Route:
    """The complete env, closed loop: one call per control step.

    The route raises `RobotrlError` when it does not end where the tape ends.
    """
    import torch

    actions = [torch.from_numpy(action) for action in tape.actions]

    def run() -> float:
        sim.reset(SEED, STAGGER)
        begun = time.perf_counter()
        for action in actions:
            sim.step(action)
        taken = time.perf_counter() - begun
        check_same(sim.core.physics.batch.state, tape.last, "the env")
        return len(actions) * sim.num_envs / taken

    return run


def batch_route(sim: Any, tape: Tape, threads: int) -> Route:
    """The bare batch of the same model, with the recorded controls and the states written by restarts.

    The route raises `RobotrlError` when it does not end where the tape ends.
    """
    import mujoco.batch

    substeps = sim.core.task.substeps
    bare = mujoco.batch.Batch(sim.core.physics.model, sim.num_envs, threads)
    ctrl = bare.bind("ctrl")

    def run() -> float:
        bare.state[:] = tape.first
        begun = time.perf_counter()
        for targets, (ids, states) in zip(tape.ctrl, tape.restarts, strict=True):
            ctrl[:] = targets
            bare.step(nstep=substeps)
            if len(ids):
                bare.state[ids] = states
        taken = time.perf_counter() - begun
        check_same(bare.state, tape.last, "the bare batch")
        return len(tape.ctrl) * sim.num_envs / taken

    return run


def check_same(found: NDArray[np.float64], expected: NDArray[np.float64], who: str, within: float = 0.0) -> None:
    """Check that a measurement did the same work as ours.

    Raises:
        RobotrlError: the states differ by more than `within`.
    """
    off = np.abs(found - expected).max(initial=0.0)
    if not off <= within:
        raise RobotrlError(f"bench stepping: {who} left the recorded states by {off:.3g}")
