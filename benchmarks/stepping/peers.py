"""Peers that step halfcheetah: a single-threaded C loop, Gymnasium's vector env, and EnvPool.

Each takes random actions with five physics steps per action, and is first checked to move as ours does.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kit.quiet import quiet_mujoco
from benchmarks.locomotion.referee import IDS
from benchmarks.stepping.tape import SEED, Route, Tape, check_same
from robotrl.errors import RobotrlError

C_LOOP = "C loop, 1 thread"
SYNC = "SyncVectorEnv(16)"
SYNC_ENVS = 16
ENVPOOL_SIZES = (16, 64, 256)
ENVPOOL_VERSIONS = ("v4", "v5")
"""EnvPool versions of the same task; its v5 additionally computes contact forces. The faster one counts."""
ENVPOOL_SLACK = 1e-4
"""Tolerance, because EnvPool has its own build of MuJoCo, and our observations are float32."""
PARITY_STEPS = 20


def c_loop(sim: Any, tape: Tape) -> Route:
    """MuJoCo's own rollout loop in C, one thread: each env runs all its controls, then the next.

    The route raises `RobotrlError` when an env that never restarted does not end where ours does.
    """
    import mujoco
    import mujoco.rollout

    model, substeps = sim.core.physics.model, sim.core.task.substeps
    data = mujoco.MjData(model)
    full = mujoco.mjtState.mjSTATE_FULLPHYSICS
    size = mujoco.mj_stateSize(model, full)

    def physics_of(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        states, warm = np.zeros((len(rows), size)), np.zeros((len(rows), model.nv))
        for i, row in enumerate(rows):
            mujoco.mj_setState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_getState(model, data, states[i], full)
            warm[i] = data.qacc_warmstart
        return states, warm

    first, warm = physics_of(tape.first)
    whole = tape.whole
    last, _ = physics_of(tape.last[whole])
    steps, envs, _ = tape.ctrl.shape
    control = np.repeat(tape.ctrl.transpose(1, 0, 2), substeps, axis=1)
    states = np.zeros((envs, steps * substeps, size))
    sensors = np.zeros((envs, steps * substeps, model.nsensordata))
    roller = mujoco.rollout.Rollout(nthread=0)

    def run() -> float:
        begun = time.perf_counter()
        roller.rollout(model, data, first, control, initial_warmstart=warm, state=states, sensordata=sensors)
        taken = time.perf_counter() - begun
        check_same(states[whole, -1], last, "the C loop")
        return steps * envs / taken

    return run


def sync_vector_env(sim: Any, tape: Tape) -> Route:
    """Gymnasium's `SyncVectorEnv` from `make_vec`, on the first 16 envs of the tape.

    The route raises `RobotrlError` when an env that never restarted does not end where ours does.
    """
    import gymnasium

    with quiet_mujoco():
        envs = gymnasium.make_vec(IDS[sim.core.task.name], num_envs=SYNC_ENVS, vectorization_mode="sync")
    bodies: list[Any] = [env.unwrapped for env in getattr(envs, "envs")]  # noqa: B009  (the base class lacks it)
    qpos, qvel = (_coordinates(sim, tape.first, name) for name in ("qpos", "qvel"))
    whole = tape.whole[tape.whole < SYNC_ENVS]
    wanted = _coordinates(sim, tape.last, "qpos")[whole]
    actions = [np.ascontiguousarray(action[:SYNC_ENVS]) for action in tape.actions]

    def run() -> float:
        envs.reset(seed=SEED)
        for body, position, velocity in zip(bodies, qpos, qvel, strict=False):
            body.set_state(position, velocity)
        begun = time.perf_counter()
        for action in actions:
            envs.step(action)
        taken = time.perf_counter() - begun
        found = np.stack([bodies[i].data.qpos for i in whole])
        check_same(found, wanted, "Gymnasium")
        return len(actions) * SYNC_ENVS / taken

    return run


def envpool_routes(task: str, env_steps: int, threads: int) -> dict[str, Route]:
    """EnvPool with its Gymnasium interface, by name, at each count and version.

    Args:
        task: our name of the task.
        env_steps: env steps per run, summed over envs.
        threads: number of threads of EnvPool's pool.

    Raises:
        RobotrlError: EnvPool does not move as ours does, so it is not comparable.
    """
    import envpool

    routes: dict[str, Route] = {}
    name = IDS[task].partition("-")[0]
    for version in ENVPOOL_VERSIONS:
        _check_envpool(task, f"{name}-{version}")
        for size in ENVPOOL_SIZES:
            env = envpool.make(f"{name}-{version}", env_type="gymnasium", num_envs=size, num_threads=threads, seed=SEED)
            routes[f"EnvPool {version}, {size} envs"] = _envpool_route(env, size, max(1, env_steps // size))
    return routes


def _envpool_route(env: Any, size: int, steps: int) -> Route:
    low, high = env.action_space.low, env.action_space.high
    actions = np.random.default_rng(SEED).uniform(low, high, (steps, size, len(low)))
    env.reset()

    def run() -> float:
        begun = time.perf_counter()
        for action in actions:
            env.step(action)
        return steps * size / (time.perf_counter() - begun)

    return run


def _check_envpool(task: str, name: str) -> None:
    import envpool
    import torch

    from robotrl.registry import make_sim

    envs = 4
    theirs = envpool.make(name, env_type="gymnasium", num_envs=envs, num_threads=1, seed=SEED)
    ours = make_sim(task, num_envs=envs, seed=SEED, threads=1)
    obs = theirs.reset()[0]
    nq = ours.core.physics.model.nq
    # the observation lacks the x position, on which nothing depends
    qpos = np.concatenate([np.zeros((envs, 1)), obs[:, : nq - 1]], axis=1)
    ours.reset(SEED, {"qpos": qpos, "qvel": obs[:, nq - 1 :]})
    rng = np.random.default_rng(SEED)
    for _ in range(PARITY_STEPS):
        action = rng.uniform(-1, 1, (envs, ours.action_spec.shape[0])).astype(np.float32)
        wanted = theirs.step(action.astype(np.float64))[0]
        (found,) = ours.step(torch.from_numpy(action)).obs.values()
        off = float(np.abs(found.numpy() - wanted).max())
        if not off <= ENVPOOL_SLACK:
            raise RobotrlError(f"bench stepping: EnvPool's {name} left our observations by {off:.3g}")
    ours.close()
    theirs.close()


def _coordinates(sim: Any, states: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """`qpos` or `qvel` (N, n) from integration states, which begin with time, qpos, qvel."""
    model = sim.core.physics.model
    begin, size = {"qpos": (1, model.nq), "qvel": (1 + model.nq, model.nv)}[name]
    return states[:, begin : begin + size]
