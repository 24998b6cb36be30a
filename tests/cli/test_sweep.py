"""`robotrl sweep` and `robotrl status` with real runs: stopped, killed and taken up again; halving; failures."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from robotrl.cli.main import main
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from tests.kits.sweep_kit import table_of, tiny, write_file

GRID = {"algo.lr": [1e-3, 1e-2]}


def sweep(folder: Path, content: dict[str, Any], *options: str) -> int:
    """Run a sweep in this process; its runs are processes of their own."""
    file = write_file(folder / "s.py", content)
    return main(["sweep", str(file), "--out", str(folder / "out"), "--parallel", "2", *options])


def states(out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["status", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return [run["state"] for run in found["runs"]] + ["not begun"] * found["not_begun"]


def started(folder: Path) -> subprocess.Popen[str]:
    """A sweep in a process of its own, once the log of a run has begun to grow."""
    command = [sys.executable, "-m", "robotrl.cli", "sweep", "s.py", "--out", "out", "--parallel", "2"]
    seen = sum(path.stat().st_size for path in folder.glob("out/*/*/scalars.jsonl"))
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until = time.monotonic() + 400
    while sum(path.stat().st_size for path in folder.glob("out/*/*/scalars.jsonl")) <= seen:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


def test_settings_of_a_cluster_without_one_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_file(tmp_path / "tiny.py", tiny({"algo.lr": [1e-3]}))
    assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--cluster.cpus", "4"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "--cluster.cpus is 4 and --cluster is 'none': expected --cluster ray" in last
    assert not (tmp_path / "out").exists()


def test_a_sweep_that_is_stopped_and_killed_ends_with_the_table_of_one_that_is_not(tmp_path, capsys):
    content = tiny(GRID, seeds=2)
    (tmp_path / "undisturbed").mkdir()
    assert sweep(tmp_path / "undisturbed", content) == 0
    said = capsys.readouterr().out
    assert "best: lr-" in said and "4 runs, 2 settings with 2 seeds, 2 at once" in said
    assert states(tmp_path / "undisturbed" / "out", capsys) == ["finished"] * 4
    page = (tmp_path / "undisturbed" / "out" / "compare.html").read_text()
    assert "4 runs, grouped by everything in their configs but the seed" in page

    folder, out = tmp_path / "disturbed", tmp_path / "disturbed" / "out"
    folder.mkdir()
    write_file(folder / "s.py", content)
    process = started(folder)
    assert "running" in states(out, capsys)
    assert main(["sweep", str(folder / "s.py"), "--out", str(out)]) == 2
    assert f"is being written by process {process.pid}: stop it, or choose another sweep" in capsys.readouterr().err
    os.kill(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "stopped: all runs are saved; go on with: robotrl sweep s.py" in said
    assert {"running", "killed"}.isdisjoint(states(out, capsys))

    process = started(folder)
    time.sleep(random.uniform(0, 1))
    everything = psutil.Process(process.pid).children(recursive=True)
    for one in (psutil.Process(process.pid), *everything):
        if one.is_running():
            one.kill()
    process.communicate(timeout=60)
    assert sweep(folder, content) == 0
    assert (out / "table.json").read_bytes() == (tmp_path / "undisturbed" / "out" / "table.json").read_bytes()
    # typed again there is nothing to do
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*/*.json*")}
    assert sweep(folder, content) == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*/*.json*")} == before


def test_halving_promotes_the_best_and_resumes_them(tmp_path, capsys):
    content = tiny({"algo.lr": [1e-4, 1e-3, 1e-2]}, seeds=1, halving={"env_steps": [256], "eta": 2})
    assert sweep(tmp_path, content) == 0
    said = capsys.readouterr().out
    rung: dict[str, float] = {}
    for path in (tmp_path / "out").glob("*/seed-0"):
        rows = [row for row in read_scalars(path / "scalars.jsonl") if row["env_steps"] <= 256]
        rung[path.parent.name] = [row["eval_return"] for row in rows if "eval_return" in row][-1]
    best = sorted(rung, key=lambda name: -rung[name])[:1]
    table = table_of(tmp_path / "out")
    assert {row["name"] for row in table["settings"] if row["out_at"] is None} == set(best)
    for name in rung:
        path = tmp_path / "out" / name / "seed-0"
        sessions = json.loads((path / "run.json").read_text())["sessions"]
        last = read_scalars(path / "scalars.jsonl")[-1]["env_steps"]
        if name in best:
            assert [one["from_step"] for one in sessions] == [None, 8] and last == 512
        else:
            assert len(sessions) == 1 and last == 256 and Run.open(path).latest().step == 8
    assert said.count("out at 256 env steps") == 2
    capsys.readouterr()
    assert main(["status", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[-1].removeprefix("3 runs: ").split(", ")) == ["1 finished", "2 stopped"]


def test_a_failing_run_is_named_and_the_others_go_on(tmp_path, capsys):
    content = tiny({"evaluation.episodes": [10_000_000, 4]}, seeds=1)
    assert sweep(tmp_path, content) == 1
    said = capsys.readouterr()
    failed = "failed: episodes-10000000 seed 0, code 2: error: evaluation.episodes is 10000000: expected"
    assert failed in said.err
    assert "episodes-4 " in said.out and "not finished: seed 0" in said.out
    assert states(tmp_path / "out", capsys) == ["finished", "not begun"]
    capsys.readouterr()
    path = tmp_path / "out" / "episodes-4" / "seed-0"
    # without torch, as where somebody only watches
    code = "import sys; from robotrl.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "status", str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{path}: finished on ") and done.stdout.endswith("\nFalse\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vary": {"algo.lrr": [1]}}, "unknown option --algo.lrr: did you mean --algo.lr?"),
        ({"vary": {"algo.lr": [-1.0]}}, "algo.lr is -1.0: expected above 0"),
        ({"vary": {"algo.lr": []}}, "vary.algo.lr is an empty list"),
        ({"vary": {"algo.lr": {"uniform": [2, 1]}}, "samples": 3}, "vary.algo.lr.uniform is [2, 1], low above high"),
        ({"seedz": 3}, "sweep key 'seedz' is unknown: did you mean 'seeds'?"),
    ],
)
def test_mistakes_leave_nothing_behind(tmp_path, change, said, capsys):
    assert sweep(tmp_path, tiny(GRID) | change) == 2
    error = capsys.readouterr().err
    assert [line for line in error.splitlines() if line.startswith("error: ")] == [error.splitlines()[-1]]
    assert said in error and not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    assert sweep(tmp_path, tiny(GRID)) == 2
    assert "that holds something else" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]
    assert main(["sweep", str(tmp_path / "s.py"), "--out", str(tmp_path / "s.py")]) == 2
    assert main(["sweep", str(tmp_path / "s.py"), "--parallel", "0"]) == 2


def test_a_dry_run_lists_what_would_be_typed(tmp_path, capsys):
    assert sweep(tmp_path, tiny(GRID), "--dry-run") == 0
    assert "lr-0.001: robotrl train --sim mujoco/reach --algo ppo" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "missing: RUN"),
        (["no/such"], "no/such does not exist"),
        (["."], ". holds no run"),
        ([".", "--every-s", "0"], "--every-s is 0.0: expected a number from 0.1 to 3600"),
    ],
)
def test_status_names_mistakes(tmp_path, monkeypatch, words, said, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["status", *words]) == 2
    assert said in capsys.readouterr().err
