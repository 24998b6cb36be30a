"""Whole env against the bare native batch, and against what else there is to step the same robot.

Ours and the bare batch take the same control steps through the same states with the same number of threads: the
controls that the env wrote are recorded once, with the states that restarts wrote, and the bare batch of the same model
gets them back. MuJoCo is deterministic, so at the end both must stand in the same state, bit for bit; that is checked,
as it is for the C loop and for Gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.kit.figures import Figure, Paired, have, paired
from benchmarks.stepping import raster
from benchmarks.stepping.peers import C_LOOP, ENVPOOL_SIZES, SYNC, c_loop, envpool_routes, sync_vector_env
from benchmarks.stepping.tape import Route, Tape, batch_route, env_route, record

DESCRIPTION = "env steps per second against bare MuJoCo batch, C loop, SyncVectorEnv and EnvPool; raster camera"
PEERS = {
    "mujoco": "pip install 'robotrl[mujoco]'",
    "gymnasium": "pip install 'robotrl[train]'",
    "envpool": "pip install 'robotrl[peers]'",
}
PEG, CHEETAH = "mujoco/peg-insert", "mujoco/halfcheetah"
THREADS = 2
PEG_SIZES = (64, 256)
PEG_ACTIONS = ("random", "expert")
"""Random actions stay mostly in the air; a noisy expert's are as rich in contacts as training is."""
CHEETAH_SIZES = (16, 64, 256)
PEER_SIZE = 64
"""Envs of ours beside the peers."""
Others = Callable[[Any, Tape], dict[str, Route]]
OURS, BARE = "env", "bare mujoco.batch"
UNIT = "env steps/s"


def run(quick: bool) -> dict[str, Figure]:
    """Measure every route, those of a figure in turns; and the raster camera beside the physics."""
    steps, rounds = (40, 2) if quick else (200, 9)
    figures: dict[str, Figure] = {}
    for size in CHEETAH_SIZES:
        # small batches get more steps, so that each run takes about as long
        length = steps * max(1, PEER_SIZE // size)
        routes = bare_and_peers if size == PEER_SIZE else bare
        measured = measure(CHEETAH, size, "random", length, rounds, routes)
        figures |= cheetah_figures(size, measured)
    for size in PEG_SIZES:
        for kind in PEG_ACTIONS:
            measured = measure(PEG, size, kind, steps, rounds, bare)
            figures[f"env_steps_per_s_{kind}_{size}_envs"] = against_bare(measured)
    return figures | raster.figures(quick)


def bare(sim: Any, tape: Tape) -> dict[str, Route]:
    """The bare batch alone."""
    return {BARE: batch_route(sim, tape, THREADS)}


def bare_and_peers(sim: Any, tape: Tape) -> dict[str, Route]:
    """The bare batch, the C loop, and the peers that are installed."""
    routes = {**bare(sim, tape), C_LOOP: c_loop(sim, tape)}
    if have("gymnasium"):
        routes[SYNC] = sync_vector_env(sim, tape)
    if have("envpool"):
        routes |= envpool_routes(sim.core.task.name, len(tape.actions) * sim.num_envs, THREADS)
    return routes


def measure(task: str, num_envs: int, kind: str, steps: int, rounds: int, others: Others) -> Paired:
    """Ours and the others, interleaved.

    Args:
        task: name of one of our MuJoCo sims.
        num_envs: N.
        kind: "random" or "expert", whose actions are played.
        steps: control steps of one run.
        rounds: runs of each route.
        others: makes the other routes from the sim and the tape.

    Raises:
        RobotrlError: a route did not end in the same state, so that it is not comparable.
    """
    from robotrl.registry import make_sim

    sim = make_sim(task, num_envs=num_envs, seed=0, threads=THREADS)
    tape = record(sim, kind, steps)
    measured = paired({OURS: env_route(sim, tape), **others(sim, tape)}, rounds)
    sim.close()
    return measured


def against_bare(measured: Paired) -> Figure:
    """The whole env beside the bare batch."""
    note = f"{THREADS} threads; env and bare batch pass through the same states, bit for bit"
    return measured.figure(OURS, BARE, UNIT, "higher", note)


def cheetah_figures(num_envs: int, measured: Paired) -> dict[str, Figure]:
    """Figures of one number of envs; those of peers only where peers were asked for."""
    figures = {f"halfcheetah_env_steps_per_s_{num_envs}_envs": against_bare(measured)}
    if C_LOOP not in measured.samples:
        return figures
    best = best_envpool(measured)
    notes = {
        C_LOOP: "MuJoCo's rollout, nthread 0, all controls of a run in one call; same states, bit for bit",
        SYNC: "through gymnasium.make_vec; same states, bit for bit",
        best: f"best of {', '.join(map(str, ENVPOOL_SIZES))} envs, v4 and v5, {THREADS} threads; moves as ours does",
    }
    for key, peer in (("c_loop", C_LOOP), ("sync", SYNC), ("envpool", best)):
        note = f"ours: {num_envs} envs, {THREADS} threads. {peer}: {notes[peer]}"
        figures[f"halfcheetah_env_steps_per_s_vs_{key}"] = measured.figure(OURS, peer, UNIT, "higher", note)
    return figures


def best_envpool(measured: Paired) -> str:
    """The fastest of EnvPool's routes by its median, "EnvPool" where there is none."""
    found = [name for name in measured.samples if name.startswith("EnvPool")]
    return max(found, key=lambda name: measured.spread(name).median, default="EnvPool")
