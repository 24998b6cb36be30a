"""Speed of the complete env against a bare MuJoCo batch, and against other ways to step the same robot.

Ours and the bare batch take the same control steps through the same states with the same number of threads: the env's
controls and the states written by restarts are recorded once and replayed in a bare batch of the same model. MuJoCo is
deterministic, so both must end in the same state, bit for bit; this is checked, also for the C loop and Gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.kit.figures import Figure, Paired, have, paired
from benchmarks.stepping import raster
from benchmarks.stepping.peers import C_LOOP, ENVPOOL_SIZES, SYNC, c_loop, envpool_routes, sync_vector_env
from benchmarks.stepping.tape import Route, Tape, batch_route, env_route, record
from robotrl.utils.installation import install_line

DESCRIPTION = "env steps per second against bare MuJoCo batch, C loop, SyncVectorEnv and EnvPool; raster camera"
PEERS = {
    "mujoco": install_line("mujoco"),
    "gymnasium": install_line("train"),
    "envpool": install_line("peers"),
}
PEG, CHEETAH = "mujoco/peg-insert", "mujoco/halfcheetah"
THREADS = 2
PEG_SIZES = (64, 256)
PEG_ACTIONS = ("random", "expert")
"""Action sources of peg-insert: random actions stay mostly in free space; a noisy expert has as many contacts as
training."""
CHEETAH_SIZES = (16, 64, 256)
PEER_SIZE = 64
"""Number of our envs in the comparison with peers."""
Others = Callable[[Any, Tape], dict[str, Route]]
OURS, BARE = "env", "bare mujoco.batch"
UNIT = "env steps/s"


def run(quick: bool) -> dict[str, Figure]:
    """Measure every route, those of a figure alternating; and the raster camera with physics."""
    steps, rounds = (40, 2) if quick else (200, 9)
    figures: dict[str, Figure] = {}
    for size in CHEETAH_SIZES:
        # small batches get more steps, so that all runs take about equally long
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
    """Only the bare batch."""
    return {BARE: batch_route(sim, tape, THREADS)}


def bare_and_peers(sim: Any, tape: Tape) -> dict[str, Route]:
    """The bare batch, the C loop, and the installed peers."""
    routes = {**bare(sim, tape), C_LOOP: c_loop(sim, tape)}
    if have("gymnasium"):
        routes[SYNC] = sync_vector_env(sim, tape)
    if have("envpool"):
        routes |= envpool_routes(sim.core.task.name, len(tape.actions) * sim.num_envs, THREADS)
    return routes


def measure(task: str, num_envs: int, kind: str, steps: int, rounds: int, others: Others) -> Paired:
    """Measure ours and the other routes, interleaved.

    Args:
        task: name of one of our MuJoCo sims.
        num_envs: N.
        kind: source of the actions, "random" or "expert".
        steps: control steps per run.
        rounds: number of runs of each route.
        others: makes the other routes from the sim and the tape.

    Raises:
        RobotrlError: a route did not end in the same state, so it is not comparable.
    """
    from robotrl.registry import make_sim

    sim = make_sim(task, num_envs=num_envs, seed=0, threads=THREADS)
    tape = record(sim, kind, steps)
    measured = paired({OURS: env_route(sim, tape), **others(sim, tape)}, rounds)
    sim.close()
    return measured


def against_bare(measured: Paired) -> Figure:
    """The complete env against the bare batch."""
    note = f"{THREADS} threads; env and bare batch pass through the same states, bit for bit"
    return measured.figure(OURS, BARE, UNIT, "higher", note)


def cheetah_figures(num_envs: int, measured: Paired) -> dict[str, Figure]:
    """Figures for one number of envs; those of peers only if requested."""
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
    """EnvPool's fastest route by its median; "EnvPool" if there is none."""
    found = [name for name in measured.samples if name.startswith("EnvPool")]
    return max(found, key=lambda name: measured.spread(name).median, default="EnvPool")
