"""Runs and sweeps on Ray whose processes are killed at random moments, against the same ones in which nothing died.

Moments are drawn from the cell's seed: an iteration of the run at which the killer waits, and a delay after its line in
the log, up to the length of an iteration and a half. So they do not depend on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.kit.figures import Figure
from robotrl.errors import DataError, RobotrlError
from robotrl.run.checkpoint_store import CheckpointStore
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.sessions.record import has_finished, read_session
from robotrl.run.state_tree import pack

WORKERS = 2
RUNS, EACH = 5, {"worker": 6, "head": 1}
"""Killed runs, and the kills in each: 30 workers and 5 heads."""
REACH, CARTPOLE = "mujoco/reach", "gym/CartPole-v1"
SHARED = f"--sim {REACH} --sim.reward shaped --sim.num-envs 16 --evaluation.episodes 0 --checkpoint-every 5"
ITERATIONS = 60
METHODS = {
    "ppo": (
        "--algo ppo --algo.num-steps 64 --algo.minibatch 256 --algo.engine eager --algo.critic-warmup-env-steps 0"
        f" --algo.env-steps {ITERATIONS * 16 * 64}"
    ),
    "sac": (
        "--algo sac --algo.num-steps 16 --algo.warmup 256 --algo.batch 64 --algo.utd-ratio 0.05 --algo.engine eager"
        f" --algo.capacity 32768 --algo.env-steps {ITERATIONS * 16 * 16}"
    ),
}
"""Arguments of the killed runs, which take turns: learning on-policy, and from a replay."""
SWEEP = f"""\
seeds = 3

[train]
preset = "gym-ppo"
sim = "{CARTPOLE}"
"sim.num_envs" = 8
"algo.env_steps" = 8192
"algo.engine" = "eager"
"evaluation.episodes" = 16

[vary]
"algo.lr" = [1e-4, 3e-4, 1e-3, 3e-3]
"""
SWEEP_RUNS = 12
POLL_S = 0.05
LIMIT_S = 600.0
"""Time limit for the next event of a run, s."""
ORPHAN_S = 120.0
"""Time after which a process that a killed one started counts as an orphan, s: Ray's agents end a minute after the rest
of a Ray whose head was killed."""
WORKER = "ray::RayWorker"
"""Title of a process that Ray gave to a worker."""


class Kill(NamedTuple):
    """A kill that was drawn."""

    what: str
    """"worker" or "head"."""
    iteration: int
    """Line of the log after which it comes."""
    delay: float
    """Delay, as a multiple of an iteration."""


def drawn(draw: random.Random, iterations: int, kills: Mapping[str, int]) -> list[Kill]:
    """Draw the moments of a run's kills, one after the other.

    Args:
        draw: the cell's draws.
        iterations: iterations of the run; the last three are left out, so that every kill meets a run.
        kills: number of kills of "worker" and "head".
    """
    what = [name for name, count in kills.items() for _ in range(count)]
    draw.shuffle(what)
    at = sorted(draw.sample(range(1, iterations - 2), len(what)))
    return [Kill(name, iteration, draw.uniform(0, 1.5)) for name, iteration in zip(what, at, strict=True)]


def digest(run: Path) -> str:
    """SHA-256 of everything that a run's newest checkpoint has of policy and learner: weights, optimizer, sims, replay.

    Raises:
        DataError: there is no checkpoint.
    """
    checkpoint = Run.open(run).latest()
    if checkpoint is None:
        raise DataError(f"run {run} has no checkpoint")
    data, arrays = pack({name: checkpoint.tree[name] for name in ("policy", "learner")})
    found = hashlib.sha256(json.dumps([checkpoint.step, data], sort_keys=True).encode())
    for name, x in sorted(arrays.items()):
        found.update(name.encode())
        found.update(np.ascontiguousarray(x).tobytes())
    return found.hexdigest()


class Session:
    """A process of `robotrl` with all that it starts, in a process group of its own.

    Args:
        arguments: words after `robotrl`.
        log: file that its output is appended to.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        # Ray's sockets need a short path, and a killed head cannot remove its folder
        self._temporary = tempfile.TemporaryDirectory(prefix="rk", ignore_cleanup_errors=True)
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "robotrl.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=own | {"TMPDIR": self._temporary.name},
            )
        self._known = dict[int, psutil.Process]()

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.poll()

    def workers(self) -> list[int]:
        """Process IDs of the Ray workers."""
        return [one.pid for one in self._look() if _title(one).startswith(WORKER)]

    def kill(self) -> None:
        """Kill the process itself, and nothing that it started."""
        self._look()
        self._process.kill()
        self._process.wait()

    def orphans(self) -> list[str]:
        """Wait for the end of all that it started; returns the titles of those that had to be killed."""
        end = time.monotonic() + ORPHAN_S
        while left := [one for one in self._known.values() if _runs(one)]:
            if time.monotonic() > end:
                break
            time.sleep(POLL_S)
        titles = [_title(one) for one in left]
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        self._temporary.cleanup()
        return titles

    def _look(self) -> list[psutil.Process]:
        """Processes that it started and that run."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self._process.pid).children(recursive=True)
        self._known |= {one.pid: one for one in found}
        return found


def _runs(process: psutil.Process) -> bool:
    """True for a process that is not gone, and not just waiting for somebody to ask for its exit code."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextlib.contextmanager
def session(arguments: Sequence[str], log: Path) -> Generator[Session]:
    """A process that is killed, with all that it started, if the block is left by an error."""
    made = Session(arguments, log)
    try:
        yield made
    except BaseException:
        made.kill()
        made.orphans()
        raise


def wait_for(condition: Callable[[], bool], one: Session, what: str) -> bool:
    """Wait for an event; returns False if the process ended before it.

    Raises:
        RobotrlError: neither came in time.
    """
    end = time.monotonic() + LIMIT_S
    while not condition():
        if one.poll() is not None:
            return condition()
        if time.monotonic() > end:
            raise RobotrlError(f"{what} did not come within {LIMIT_S:g} s")
        time.sleep(POLL_S)
    return True


def lines(run: Path) -> list[dict[str, float]]:
    """Lines of a run's scalars; the last one may be half written when its head was killed."""
    path = run / "scalars.jsonl"
    return read_scalars(path) if path.is_file() else []


def iteration_s(run: Path) -> float:
    """Time between the last two lines of a run, s."""
    walls = [row["wall_s"] for row in lines(run)[-2:]]
    return max(0.0, walls[1] - walls[0]) if len(walls) == 2 else 0.5


def killed_run(arguments: Sequence[str], run: Path, kills: Sequence[Kill], draw: random.Random) -> dict[str, Any]:
    """Train a run, kill its processes, and resume it after each kill of the head.

    Args:
        arguments: arguments of `robotrl train`, with a cluster of `WORKERS` workers.
        run: the run's directory.
        kills: what is killed, by iteration.
        draw: draws which worker dies.

    Returns:
        Its exit code, the kills that met it, pairs of the newest checkpoint after a kill of the head and the iteration
        from which the next one went on, the orphans; see also `counted`.
    """
    began, log = time.monotonic(), run.with_name(f"{run.name}.log")
    waiting, done, resumed, sessions = list(kills), list[Kill](), list[list[int]](), list[Session]()
    words, saved = ["train", *arguments, "--run-dir", str(run)], None
    while True:
        with session(words, log) as one:
            sessions.append(one)
            killed = _kill_next(one, run, waiting, draw)
            done += killed
        now = read_session(run)
        # a head that was killed before its first iteration has left no record
        if saved is not None and now is not None and now.process == one.pid:
            resumed.append([saved, now.first])
        if not killed or killed[-1].what != "head":
            break
        entries = CheckpointStore(run / "checkpoints", 1).entries()
        saved = entries[-1].step if entries else 0
        words = ["train", "--resume", str(run)]
    return {
        "code": one.poll(),
        "kills": [kill._asdict() for kill in done],
        "resumed": resumed,
        "orphans": [title for one in sessions for title in one.orphans()],
        "replaced": log.read_text(errors="replace").count("goes on from the state before"),
        "wall_s": round(time.monotonic() - began, 1),
        **counted(run),
        "digest": digest(run),
    }


def _kill_next(one: Session, run: Path, waiting: list[Kill], draw: random.Random) -> list[Kill]:
    """Make the kills of a session, up to that of its head, or wait for its end; returns those made.

    Args:
        one: the session.
        run: the run's directory.
        waiting: kills to come, from which those made are taken.
        draw: draws which worker dies.
    """
    done: list[Kill] = []
    while waiting:
        kill = waiting[0]
        if not wait_for(lambda at=kill.iteration: len(lines(run)) >= at, one, f"iteration {kill.iteration}"):
            return done
        if not wait_for(lambda: len(one.workers()) >= WORKERS, one, "the workers"):
            return done
        time.sleep(kill.delay * iteration_s(run))
        pids = one.workers()
        if one.poll() is not None or not pids:
            return done
        done.append(waiting.pop(0))
        if kill.what == "head":
            one.kill()
            return done
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(sorted(pids)), signal.SIGKILL)
    wait_for(lambda: one.poll() is not None, one, "the run's end")
    return done


def counted(run: Path) -> dict[str, Any]:
    """Versions of the policy whose rollouts a run learned from twice, or never, by its log."""
    rows = lines(run)
    versions = Counter(int(row["cluster/version"]) for row in rows)
    each = rows[0]["env_steps"] if rows else 0.0
    return {
        "iterations": len(rows),
        "twice": [version for version, times in versions.items() if times > 1],
        "never": sorted(set(range(1, len(rows) + 1)) - set(versions)),
        "env_steps_counted_once": all(row["env_steps"] == number * each for number, row in enumerate(rows, 1)),
    }


def kills(
    seed: int,
    out: Path,
    *,
    methods: Mapping[str, str] = METHODS,
    runs: int = RUNS,
    iterations: int = ITERATIONS,
    each: Mapping[str, int] = EACH,
) -> dict[str, Any]:
    """Killed runs, and one of each method in which nothing dies.

    Args:
        seed: seeds the draws.
        out: folder of the runs.
        methods: arguments of `robotrl train` by name.
        runs: number of killed runs, which take turns with the methods.
        iterations: iterations of each.
        each: number of kills of "worker" and "head" in each.
    """
    draw, found = random.Random(seed), list[dict[str, Any]]()
    cluster = f"--cluster ray --cluster.workers {WORKERS}"
    commands = {name: f"{SHARED} {arguments} {cluster}".split() for name, arguments in methods.items()}
    whole = {name: killed_run(words, out / f"{name}-whole", (), draw) for name, words in commands.items()}
    for number in range(runs):
        name = list(methods)[number % len(methods)]
        moments = drawn(draw, iterations, each)
        one = killed_run(commands[name], out / f"{name}-{number}", moments, draw)
        found.append({"method": name, **one, "equal": one["digest"] == whole[name]["digest"]})
    return {"whole": whole, "runs": found}


def sweep_kill(seed: int, out: Path, text: str = SWEEP) -> dict[str, Any]:
    """A sweep on Ray that is killed and typed again, against one on this machine that is not.

    Args:
        seed: seeds the moment of the kill.
        out: folder of the sweeps.
        text: the sweep's file.
    """
    draw, file, log = random.Random(seed), out / "twelve.toml", out / "sweep.log"
    file.write_text(text)
    with session(["sweep", str(file), "--out", str(out / "whole")], log) as one:
        wait_for(lambda: one.poll() is not None, one, "the sweep's end")
        orphans = one.orphans()
    total = _all_lines(out / "whole")
    words = ["sweep", str(file), "--out", str(out / "killed"), "--cluster", "ray", "--cluster.cpus", "1"]
    at, delay_s = draw.randrange(1, total), draw.random()
    with session(words, log) as one:
        met = wait_for(lambda: _all_lines(out / "killed") >= at, one, f"line {at} of the sweep")
        time.sleep(delay_s)
        one.kill()
        begun = len(list((out / "killed").glob("*/seed-*/config.json")))
        finished = len([run for run in (out / "killed").glob("*/seed-*/") if has_finished(run)])
        orphans += one.orphans()
    with session(words, log) as one:
        wait_for(lambda: one.poll() is not None, one, "the sweep's end")
        orphans += one.orphans()
    tables = [json.loads((out / name / "table.json").read_text()) for name in ("whole", "killed")]
    return {
        "code": one.poll(),
        "met": met,
        "line": [at, total],
        "begun": begun,
        "finished": finished,
        "runs": sum(len(setting["runs"]) for setting in tables[0]["settings"]),
        "same_table": tables[0] == tables[1],
        "orphans": orphans,
    }


def _all_lines(sweep: Path) -> int:
    """Lines in the logs of a sweep's runs."""
    return sum(len(lines(run)) for run in sweep.glob("*/seed-*/"))


def figures(name: str, found: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures of the result of a cell, "kills" or "sweep-kill"."""
    if name == "sweep-kill":
        counts = {
            "sweep_runs": found["runs"],
            "sweep_finished_at_kill": found["finished"],
            "sweep_same_table": int(found["same_table"] and found["met"] and found["code"] == 0),
            "sweep_orphans": len(found["orphans"]),
        }
        return {key: Figure(value, "") for key, value in counts.items()}
    runs: Sequence[Mapping[str, Any]] = found["runs"]
    made = Counter(kill["what"] for one in runs for kill in one["kills"])
    resumed = [pair for one in runs for pair in one["resumed"]]
    counts = {
        "kills_workers": made["worker"],
        "kills_heads": made["head"],
        "kills_runs": len(runs),
        "kills_ended": sum(one["code"] == 0 for one in runs),
        "kills_equal": sum(one["equal"] for one in runs),
        "kills_resumed": len(resumed),
        "kills_resumed_at_checkpoint": sum(saved == first for saved, first in resumed),
        "kills_versions_twice": sum(len(one["twice"]) for one in runs),
        "kills_versions_never": sum(len(one["never"]) for one in runs),
        "kills_orphans": sum(len(one["orphans"]) for one in runs),
    }
    return {key: Figure(value, "") for key, value in counts.items()}


def rows(figures: Mapping[str, Figure]) -> list[str]:
    """Rows of a table of the figures."""
    return [f"| {NOTES[name]} | {figures[name].value:g} |" for name in NOTES if name in figures]


NOTES = {
    "kills_workers": "workers killed",
    "kills_heads": "heads killed",
    "kills_runs": "killed runs",
    "kills_ended": "of these, came to their end",
    "kills_equal": "of these, ended with the weights, replay and sims of a run in which nothing died, bit for bit",
    "kills_resumed": "heads resumed",
    "kills_resumed_at_checkpoint": "of these, from the newest checkpoint",
    "kills_versions_twice": "versions of the policy whose rollouts were learned from twice",
    "kills_versions_never": "versions whose rollouts were not learned from",
    "kills_orphans": "processes that outlived a killed or ended run",
    "sweep_runs": "runs of the killed sweep",
    "sweep_finished_at_kill": "of these, finished when it was killed",
    "sweep_same_table": "the table is that of a sweep that was not killed (1: yes)",
    "sweep_orphans": "processes that outlived the killed sweep",
}
