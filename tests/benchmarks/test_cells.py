"""Tables of cells: filled piece by piece by real processes, stopped, killed and taken up again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmarks import load, runner
from benchmarks.kit.cells import Cell, fill, finished, select
from benchmarks.readme import earlier
from robotrl.errors import ConfigError, RobotrlError

WRITE = "import json, sys, os; json.dump({'answer': int(sys.argv[2]) ** 2}, open(sys.argv[1] + '/r.json', 'w'))"
SLOW = "import os, sys, time; open(sys.argv[1] + '/started', 'w').write(str(os.getpid())); time.sleep(60)"


def cell(seed: int, code: str = WRITE, method: str = "square", revision: int = 1) -> Cell:
    return Cell(method, "some/task", seed, ("python", "-c", code, "{out}", str(seed)), "r.json", revision)


def run(cells, work, known=None, chosen=None):
    seen: list[int] = []
    outcome = fill(
        cells, cells if chosen is None else chosen, work, known or {}, lambda results: seen.append(len(results))
    )
    return outcome, seen


def test_cells_are_run_once_and_their_results_hold_all_that_matters(tmp_path):
    table = [cell(2), cell(3)]
    outcome, seen = run(table, tmp_path)
    assert seen == [1, 2] and not outcome.failed and not outcome.stopped
    first = outcome.results["square--some-task--2"]
    assert first["result"] == {"answer": 4} and first["wall_s"] > 0
    assert {"method", "task", "seed", "config_hash", "command", "machine", "versions", "started"} <= set(first)
    assert first["command"].startswith("python -c") and first["command"].endswith("OUT 2")
    assert str(tmp_path) not in json.dumps(first)
    before = (tmp_path / "square--some-task--2.json").stat().st_mtime_ns
    again, seen = run(table, tmp_path)
    assert seen == [] and again.results == outcome.results
    assert (tmp_path / "square--some-task--2.json").stat().st_mtime_ns == before
    assert not list(tmp_path.glob("attempt-*"))


def test_a_changed_cell_is_run_again_and_a_committed_one_is_not(tmp_path):
    outcome, _ = run([cell(2)], tmp_path)
    assert run([cell(2, revision=2)], tmp_path)[1] == [1]
    elsewhere = tmp_path / "fresh"
    assert run([cell(2)], elsewhere, known=outcome.results)[1] == []
    stale = {key: {**value, "config_hash": "0"} for key, value in outcome.results.items()}
    assert run([cell(2)], elsewhere, known=stale)[1] == [1]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('what went wrong'); sys.exit(3)", "ended with code 3"),
        ("print('what went wrong')", "No such file"),
        ("import sys; open(sys.argv[1] + '/r.json', 'w').write('{'); print('what went wrong')", "Expecting"),
    ],
)
def test_a_failing_cell_is_reported_and_the_next_goes_on(tmp_path, capfd, code, why):
    table = [cell(1, code, "bad"), cell(2)]
    outcome, _ = run(table, tmp_path)
    assert outcome.failed == ("bad--some-task--1",) and list(outcome.results) == ["square--some-task--2"]
    said = capfd.readouterr().err
    assert "bad--some-task--1 failed" in said and "what went wrong" in said and why in said
    assert "what went wrong" in (tmp_path / "bad--some-task--1.failed.txt").read_text()


RUNNER = """
import sys
from pathlib import Path
from benchmarks.kit.cells import Cell, fill
write, slow, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
def cell(seed, code):
    return Cell("square", "some/task", seed, ("python", "-c", code, "{out}", str(seed)), "r.json")
table = [cell(2, write), cell(3, slow), cell(4, write)]
outcome = fill(table, table, work, {}, lambda results: None)
print("stopped", outcome.stopped, sorted(outcome.results), outcome.failed)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_table_that_was_stopped_or_killed_is_taken_up_again(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, WRITE, SLOW, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not [path for path in tmp_path.glob("attempt-*/out/started") if path.read_text()]:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    inner = int(next(tmp_path.glob("attempt-*/out/started")).read_text())
    with pytest.raises(RobotrlError, match="is being written by process"):
        run([cell(2)], tmp_path)
    os.kill(process.pid, number)
    said, _ = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        os.kill(inner, signal.SIGKILL)  # nobody is left who could stop it
    else:
        assert "stopped True ['square--some-task--2'] ()" in said
    table = [cell(2), cell(3), cell(4)]
    assert list(finished(table, tmp_path, {})) == ["square--some-task--2"]
    outcome, seen = run(table, tmp_path)
    assert seen == [2, 3] and [r["result"]["answer"] for r in outcome.results.values()] == [4, 9, 16]
    assert not list(tmp_path.glob("attempt-*"))


COUNT = """
import json, os, sys, time
out = sys.argv[1]
seen = sorted(os.listdir(out))
open(f"{out}/part-{len(seen)}", "w").write("")
if not seen:
    open(f"{out}/started", "w").write(str(os.getpid()))
    print("first", flush=True)
    time.sleep(60)
json.dump(seen, open(f"{out}/r.json", "w"))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_cell_that_says_so_goes_on_from_what_it_left(tmp_path, number):
    going = RUNNER.replace("(seed, code)", "(seed, code, goes_on=True)").replace('"r.json")', '"r.json", 1, goes_on)')
    process = subprocess.Popen([sys.executable, "-c", going, WRITE, COUNT, str(tmp_path)], stdout=subprocess.PIPE)
    until = time.monotonic() + 60
    begun = tmp_path / "attempt-square--some-task--3"
    while not (begun / "out/started").is_file() or not (begun / "out/started").read_text():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    inner = int((begun / "out/started").read_text())
    os.kill(process.pid, number)
    process.communicate(timeout=60)
    if number == signal.SIGKILL:
        os.kill(inner, signal.SIGKILL)
    note = json.loads((begun / "attempt.json").read_text())
    assert (note["wall_s"] > 0) == (number == signal.SIGTERM)  # of what was killed nobody knows
    # filling others leaves it alone
    table = [cell(2), replace(cell(3, COUNT), goes_on=True)]
    run(table, tmp_path, chosen=table[:1])
    assert (begun / "out/part-0").is_file()
    outcome, _ = run(table, tmp_path)
    found = outcome.results["square--some-task--3"]
    assert found["result"] == ["part-0", "started"]
    assert found["started"] == note["started"] and found["wall_s"] > note["wall_s"]
    assert (tmp_path / "square--some-task--3" / "log.txt").read_text().startswith("first")
    assert not list(tmp_path.glob("attempt-*"))


def test_what_failed_goes_on_too_and_what_another_cell_left_does_not(tmp_path, capfd):
    once = "import os, sys; path = sys.argv[1] + '/part'; there = os.path.exists(path); open(path, 'w'); "
    first = replace(cell(3, once + "there or sys.exit(1); " + WRITE), goes_on=True)
    stale = tmp_path / f"attempt-{first.key}"
    assert run([first], tmp_path)[0].failed == (first.key,)
    assert f"what it left is kept, to begin anew remove {stale}" in capfd.readouterr().err
    assert (stale / "out" / "part").is_file() and json.loads((stale / "attempt.json").read_text())["wall_s"] > 0
    code = "import json, os, sys; json.dump(os.listdir(sys.argv[1]), open(sys.argv[1] + '/r.json', 'w'))"
    other = replace(cell(3, code), goes_on=True)
    elsewhere = tmp_path / "b"
    shutil.copytree(stale, elsewhere / stale.name)
    assert run([other], elsewhere)[0].results[other.key]["result"] == []
    assert run([first], tmp_path)[0].results[first.key]["result"] == {"answer": 9}
    # of what is known from elsewhere nothing is kept
    (tmp_path / f"{first.key}.json").rename(tmp_path / "known.json")
    stale.mkdir()
    known = json.loads((tmp_path / "known.json").read_text())
    assert run([first], tmp_path, known={first.key: known})[1] == [] and not stale.exists()


def test_cells_are_chosen_by_pattern():
    table = [cell(s, method=m) for m in ("a", "b") for s in (0, 1)]
    assert select(table, None) == table
    assert [c.key for c in select(table, "b--*,a--*--1")] == ["a--some-task--1", "b--some-task--0", "b--some-task--1"]
    with pytest.raises(ConfigError, match=r"cells pattern 'a--some-task--7' matches nothing: did you mean"):
        select(table, "a--some-task--7")
    table = [cell(s, method=m) for m in ("grpo", "srpo") for s in (0, 1)]
    with pytest.raises(ConfigError, match=r"matches nothing: did you mean 'srpo--some-task--"):
        select(table, "srppo--*")


def success(value: float) -> dict:
    return {"value": value, "low": value - 0.05, "high": value + 0.02, "episodes": 256}


def known_results(quickstart) -> dict:
    """Results of a whole table, as if they had been committed."""
    found = {}
    for entry in quickstart.cells(False):
        result = {"success": success(0.5 + 0.01 * entry.seed)}
        if entry.method == "quickstart":
            result = {
                "bc": {"success": success(0.4 + 0.02 * entry.seed)},
                "rl": {"success": success(0.99 - 0.01 * entry.seed)},
                "wall_s": 200.0 + entry.seed,
                "peak_memory_mib": 1500.0,
                "env_steps": 400000,
            }
        found[entry.key] = {
            "method": entry.method,
            "task": entry.task,
            "seed": entry.seed,
            "config_hash": entry.config_hash,
            "result": result,
        }
    return found


def test_the_quickstart_table_is_put_together_from_its_cells(tmp_path, capsys):
    quickstart = load("quickstart")
    results = {key: value for key, value in known_results(quickstart).items() if value["seed"] < 5}
    assert len(results) == 15
    path = tmp_path / "quickstart.json"
    figures = {key: figure.to_json() for key, figure in quickstart.aggregate(list(results.values())).items()}
    document = runner.document("quickstart", {}, "robotrl bench quickstart", False, {}, results)
    path.write_text(json.dumps(document))
    assert runner.main("quickstart", path, cells="none", work=tmp_path / "work") == 0
    assert "15 of 20 cells done" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written["figures"] == figures and set(written["cells"]) == set(results)
    assert figures["finetuned_success"]["value"] == pytest.approx(0.97)
    assert figures["finetuned_success"]["peer_value"] == pytest.approx(0.44)
    assert (figures["finetuned_success"]["low"], figures["finetuned_success"]["high"]) == pytest.approx((0.95, 0.99))
    assert figures["finetuned_success_worst_seed"]["value"] == pytest.approx(0.95)
    assert figures["gain_over_clone"]["low"] == pytest.approx(0.95 - 0.48)
    assert figures["gain_over_clone_10x_demos"]["value"] == pytest.approx(0.97 - 0.52)
    table = quickstart.table(written).splitlines()
    assert len({line.count("|") for line in table}) == 1 and len(table) == 2 + 5 + 1
    assert "**98.0 % (93.0 to 100.0)**" in table[3] and "201 s" in table[3]
    assert table[-1].startswith("| mean | 44.0 % | **97.0 %** | 52.0 % | 52.0 % | 202 s |")


def test_cells_of_an_earlier_revision_stay_until_others_take_their_place(tmp_path):
    """Of three old cells one is run again: the same method's other goes aside, another method's is still shown."""
    quickstart = load("quickstart")
    results = {key: value for key, value in known_results(quickstart).items() if value["seed"] < 2}
    keys = ["quickstart--mujoco-peg-insert--0", "quickstart--mujoco-peg-insert--1"]
    others = [key for key in results if key not in keys]
    old = {key: {**value, "config_hash": "0"} for key, value in results.items()}
    path, work = tmp_path / "quickstart.json", tmp_path / "work"
    figures = {key: figure.to_json() for key, figure in quickstart.aggregate(list(old.values())).items()}
    path.write_text(json.dumps({**runner.document("quickstart", {}, "c", False, {}, old), "figures": figures}))
    # nothing new: nothing is written
    before = path.read_text()
    assert runner.main("quickstart", path, cells="none", work=work) == 0 and path.read_text() == before
    work.mkdir()
    fresh = {**results[keys[0]], "schema_version": 1}
    (work / f"{keys[0]}.json").write_text(json.dumps(fresh))
    for _ in range(2):
        assert runner.main("quickstart", path, cells="none", work=work) == 0
        written = json.loads(path.read_text())
        assert set(written["cells"]) == {keys[0], *others}
        assert written["cells"][keys[0]]["config_hash"] != "0"
        assert set(written["older_cells"]) == {keys[1]}
        assert written["figures"]["clone_converged_success"] == figures["clone_converged_success"]
    said = earlier(quickstart, written)
    assert f"earlier revision of the bench: {len(others)} (" in said
    assert "All cells" in earlier(quickstart, {"cells": old})
    assert earlier(quickstart, {"cells": results}) == ""


def test_a_table_with_gaps_is_shown_with_gaps(tmp_path, capsys):
    quickstart = load("quickstart")
    results = {key: value for key, value in known_results(quickstart).items() if value["seed"] == 1}
    del results["quickstart--mujoco-peg-insert--1"]
    path = tmp_path / "quickstart.json"
    path.write_text(json.dumps(runner.document("quickstart", {}, "c", False, {}, results)))
    assert runner.main("quickstart", path, cells="none", work=tmp_path / "work") == 0
    said = capsys.readouterr().out
    assert "2 of 20 cells done" in said and "quickstart--mujoco-peg-insert--1" in said
    written = json.loads(path.read_text())
    assert "finetuned_success" not in written["figures"]
    assert written["figures"]["clone_converged_success"]["runs"] == 1
    assert "| 1 |  |  | 51.0 %" in quickstart.table(written)
    empty = tmp_path / "empty.json"
    assert runner.main("quickstart", empty, cells="none", work=tmp_path / "work") == 0
    assert not empty.exists() and "0 of 20 cells done" in capsys.readouterr().out
