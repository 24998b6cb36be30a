"""Sessions of runs: how they end, pauses, and the state that files show."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.errors import ConfigError, DataError
from robotrl.run.callbacks import CallbackList
from robotrl.run.directory import Run
from robotrl.run.sessions.pause import PauseAt
from robotrl.run.sessions.record import has_finished, new_session, read_session, write_session
from robotrl.run.sessions.status import iterations_done, runs_below, status_of
from tests.kits.refusals import raises_naming

CONFIG = {"evaluation": {"score": "success"}}


def made(path: Path, steps: int, total: int, *, config: dict | None = None, error: BaseException | None = None) -> Run:
    """A run that did some iterations, and evaluated at each."""
    run = Run.create(path, CONFIG if config is None else config, seed=0, command=[])
    with run:
        run.begin_session(total, 0)
        for step in range(1, steps + 1):
            rate = 0.9 - 0.1 * step
            found = {"eval_success": rate, "eval_low": rate - 0.1, "eval_high": rate + 0.1, "eval_return": float(step)}
            run.log(step, {"env_steps": 100 * step, "env_steps_per_s": 50.0, **found})
            run.save({}, step=step, score=rate)
        if error is not None:
            raise error
    return run


def test_a_session_says_how_it_ended(tmp_path):
    made(tmp_path / "done", 3, 3)
    record = read_session(tmp_path / "done")
    assert record is not None and has_finished(tmp_path / "done")
    assert (record.end, record.why, record.first, record.iterations) == ("finished", "", 0, 3)
    assert (record.host, record.process) == (socket.gethostname(), os.getpid())
    with pytest.raises(ValueError, match="by chance"):
        made(tmp_path / "failed", 1, 3, error=ValueError("by chance"))
    assert read_session(tmp_path / "failed")[-2:] == ("failed", "ValueError: by chance")
    with pytest.raises(SystemExit):
        made(tmp_path / "stopped", 1, 3, error=SystemExit(130))
    assert read_session(tmp_path / "stopped").end == "stopped" and not has_finished(tmp_path / "stopped")
    assert read_session(tmp_path) is None and not has_finished(tmp_path / "gone")


def test_a_damaged_record_is_named(tmp_path):
    for field, value in (("iterations", "three"), ("end", "lost"), ("host", None)):
        write_session(tmp_path, new_session(3, 0)._replace(**{field: value}))
        with raises_naming(DataError, field, value):
            read_session(tmp_path)


@pytest.mark.parametrize(("marks", "stops"), [((250, None), 3), ((None, 2), 2), ((100, 4), 1), ((5000, None), 5)])
def test_a_run_pauses_after_the_iteration_that_reaches_the_mark(tmp_path, marks, stops, capsys):
    run = Run.create(tmp_path / "a", {}, seed=0, command=[])
    with run:
        run.begin_session(5, 0)
        hooks = CallbackList(run, [PauseAt(*marks)])
        hooks.on_start()
        for step in range(1, 6):
            hooks.on_iteration(step, {"env_steps": 100.0 * step})
            if run.stop_requested:
                break
        hooks.on_end()
    assert step == stops
    # the last iteration is an end, and no pause
    assert read_session(run.path).end == ("finished" if stops == 5 else "stopped")
    assert ("go on with: robotrl train --resume" in capsys.readouterr().err) == (stops != 5)


def test_a_mark_below_one_is_refused():
    with raises_naming(ConfigError, "--pause-at-env-steps", 0, 1):
        PauseAt(0, None)


def test_the_state_of_a_run_by_hand(tmp_path):
    made(tmp_path / "done", 3, 3)
    log = tmp_path / "done" / "scalars.jsonl"
    found = status_of(tmp_path / "done", now=log.stat().st_mtime + 7)
    assert found.state == "finished" and (found.iteration, found.iterations, found.env_steps) == (3, 3, 300)
    assert found.evaluation == pytest.approx({"iteration": 3, "success": 0.6, "low": 0.5, "high": 0.7, "return": 3.0})
    assert found.best == pytest.approx(0.8) and found.since_line_s == pytest.approx(7) and found.left_s is None
    assert found.checkpoint == 3 and found.env_steps_per_s == 50 and iterations_done(tmp_path / "done") == (3, 3)
    made(tmp_path / "by-return", 3, 9, config={"evaluation": {"score": "return"}})
    assert status_of(tmp_path / "by-return").best == 3.0
    with Run.create(tmp_path / "young", {}, seed=0, command=[]) as run:
        found = status_of(run.path)
        assert found.state == "running" and found.iterations is None and found.since_line_s is None
        run.begin_session(100, 0)
        run.log(1, {})
        assert status_of(run.path).state == "running" and status_of(run.path).iterations == 100
    assert [path.name for path in runs_below(tmp_path)] == ["by-return", "done", "young"]


KILLED = """
import os, signal, sys
from pathlib import Path
from robotrl.run.directory import Run
with Run.create(Path(sys.argv[1]), {}, seed=0, command=[]) as run:
    run.begin_session(10, 0)
    run.log(1, {})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_is_known_by_its_lock(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a")], check=False)
    assert status_of(tmp_path / "a").state == "killed"
    # on another machine the lock cannot be seen: a run there is alive as long as it writes
    path = tmp_path / "a" / "session.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    wrote = (tmp_path / "a" / "scalars.jsonl").stat().st_mtime
    assert status_of(tmp_path / "a", now=wrote + 60).state == "running"
    assert status_of(tmp_path / "a", now=wrote + 600).state == "killed"


def test_seeds_come_in_the_order_of_their_numbers(tmp_path):
    for seed in (10, 9, 1):
        Run.create(tmp_path / "x" / f"seed-{seed}", {}, seed=seed, command=[]).close()
    assert [path.name for path in runs_below(tmp_path)] == ["seed-1", "seed-9", "seed-10"]
