"""The bench framework: fair pairs, honest gaps, the file it writes, and the tables in the pages."""

import json
import os
import subprocess
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmarks
from benchmarks import readme, runner
from benchmarks.kit.figures import Figure, Paired, as_figure, have, paired
from benchmarks.kit.machine import busy, machine_info, package_versions
from robotrl.errors import ConfigError, DataError
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming

REQUIRED = {"value", "unit", "peer", "peer_value", "ratio", "runs", "low", "high"}


def test_routes_take_turns():
    order: list[str] = []

    def route(name: str, value: float):
        def run() -> float:
            order.append(name)
            return value

        return run

    measured = paired({"a": route("a", 1.0), "b": route("b", 2.0)}, rounds=3, warmup=1)
    assert order == ["a", "b"] * 4
    assert measured.samples == {"a": (1.0,) * 3, "b": (2.0,) * 3}
    with raises_naming(ValueError, "rounds", 0):
        paired({}, rounds=0)


def test_ratio_is_above_one_when_ours_is_better_whichever_way_the_unit_runs():
    measured = Paired({"ours": (10.0, 20.0, 40.0), "peer": (20.0, 30.0, 50.0)})
    slower = measured.figure("ours", "peer", "env steps/s", "higher")
    faster = measured.figure("ours", "peer", "us", "lower")
    assert slower.ratio == pytest.approx(20 / 30) and faster.ratio == pytest.approx(30 / 20)
    assert (faster.ratio_low, faster.ratio_high) == (1.25, 2.0)
    assert (faster.value, faster.peer_value, faster.low, faster.high, faster.runs) == (20, 30, 10, 40, 3)


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.floats(0.1, 10)), min_size=1, max_size=9))
def test_a_slow_machine_that_slows_both_alike_does_not_move_the_ratio(rounds):
    quiet = Paired({"a": tuple(r[0] for r in rounds), "b": tuple(r[1] for r in rounds)})
    slowed = Paired({"a": tuple(r[0] * r[2] for r in rounds), "b": tuple(r[1] * r[2] for r in rounds)})
    assert slowed.ratio("a", "b", "lower") == pytest.approx(quiet.ratio("a", "b", "lower"))


def test_a_peer_that_was_not_run_leaves_its_numbers_empty():
    figure = Paired({"ours": (1.0, 3.0)}).figure("ours", "theirs", "us", "lower")
    assert (figure.value, figure.peer) == (2.0, "theirs")
    assert figure.peer_value is None and figure.ratio is None and figure.ratio_low is None


def test_figures_read_back_and_plain_dicts_are_taken():
    figure = Figure(1.5, "us", "torch", 3.0, 2.0, 9, 1.0, 2.0)
    assert set(figure.to_json()) >= REQUIRED and as_figure(figure.to_json()) == figure == as_figure(figure)
    assert as_figure({"value": None, "unit": "us"}).value is None
    assert Figure(float("nan"), "us").to_json()["value"] is None
    with pytest.raises(TypeError, match="vaule"):
        as_figure({"vaule": 1, "unit": "us"})


def test_peers_are_modules_or_programs():
    assert have("json") and have("python3") and not have("no_such_module_or_program")


def test_the_machine_is_described_and_a_busy_one_is_said():
    machine = machine_info()
    assert machine["cores"] >= 1 and machine["cpu"] and machine["load_at_start"] >= 0
    assert busy({"load_at_start": 0.1, "cores": 2}) is None
    assert "load was 1.7 on 2 cores" in str(busy({"load_at_start": 1.7, "cores": 2}))
    assert {"python", "robotrl", "numpy"} <= set(package_versions())


@pytest.fixture
def tiny(monkeypatch):
    """A bench of one figure and a missing peer, as a module that the table of benches knows."""
    module = types.ModuleType("benchmarks.tiny")
    module.DESCRIPTION = "tiny"
    module.PEERS = {"no_such_peer": "pip install no-such-peer", "json": "never shown"}
    module.PARTS = {"names": lambda document: ", ".join(document["figures"])}
    module.run = lambda quick: {
        "speed": {
            "value": 12.5 if quick else 25.0,
            "unit": "us",
            "peer": "no_such_peer",
            "runs": 3,
            "low": 1,
            "high": 99,
        }
    }
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    monkeypatch.setattr(benchmarks, "BENCHES", {"tiny": "tiny"})


def test_the_runner_writes_what_the_issue_asks_for(tiny, tmp_path, capsys):
    path = tmp_path / "tiny.json"
    assert runner.main("tiny", path) == 0
    said = capsys.readouterr()
    assert "no_such_peer is not installed" in said.err and "pip install no-such-peer" in said.err
    assert "never shown" not in said.err
    assert "25 us" in said.out and "1 to 99" in said.out
    document = json.loads(path.read_text())
    assert {"schema_version", "machine", "versions", "command", "figures"} <= set(document)
    figure = document["figures"]["speed"]
    assert set(figure) >= REQUIRED and figure["value"] == 25 and figure["peer_value"] is None
    assert document["command"] == "robotrl bench tiny --json tiny.json" and document["quick"] is False
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.json"]


def test_benches_are_those_of_the_checkout(tmp_path):
    """Another package that brings a module of the same name is not asked, here or in the processes of cells."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise SystemExit('a foreign module was imported')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = "from robotrl.cli.commands.bench import benches; import subprocess, sys; benches();"
    program += (
        " subprocess.run([sys.executable, '-P', '-c', 'import benchmarks; print(benchmarks.__file__)'], check=True)"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(ROOT / "benchmarks" / "__init__.py"), done.stderr


def test_bad_arguments_are_named(tiny, tmp_path):
    with raises_naming(ConfigError, "bench", "tyni", nearest="tiny"):
        runner.main("tyni")
    with pytest.raises(ConfigError, match="has no cells"):
        runner.main("tiny", cells="a")
    with pytest.raises(ConfigError, match="expected a file in a folder that exists"):
        runner.main("tiny", tmp_path / "absent" / "x.json")


def test_each_bench_that_is_listed_keeps_the_contract():
    for name, description in benchmarks.descriptions().items():
        module = benchmarks.load(name)
        assert description and "\n" not in description
        assert isinstance(module.PEERS, dict)
        assert callable(getattr(module, "run", None)) or (callable(module.cells) and callable(module.aggregate))


def test_blocks_are_filled_and_the_rest_is_left_alone(tiny, tmp_path):
    runner.main("tiny", tmp_path / "tiny.json")
    text = "# Title\n\n<!-- bench:tiny -->\nold\n<!-- /bench -->\n\nin a line: `<!-- bench:NAME -->`\n"
    once = readme.filled(text, tmp_path)
    assert once.startswith("# Title\n\n<!-- bench:tiny -->\n| figure |") and once.endswith("`<!-- bench:NAME -->`\n")
    assert "| speed | 25 us | 1 to 99 | no_such_peer | - | - | 3 |" in once and "old" not in once
    assert "`robotrl bench tiny --json tiny.json`" in once
    assert readme.filled(once, tmp_path) == once


def test_cells_of_several_processors_are_told(tiny, tmp_path):
    runner.main("tiny", tmp_path / "tiny.json")
    document = json.loads((tmp_path / "tiny.json").read_text())
    cells = {str(i): {"machine": {"cpu": cpu}} for i, cpu in enumerate(("Epyc", "Xeon", "Xeon"))}
    assert "; of 3 cells 2 on Xeon, 1 on Epyc; each has" in readme.block_text(
        "tiny", None, {**document, "cells": cells}
    )
    one = {**document, "cells": {"0": cells["0"]}}
    assert f"; {document['machine']['cpu']}, " in readme.block_text("tiny", None, one)


def test_a_block_of_a_part_is_what_the_bench_makes_of_it(tiny, tmp_path):
    runner.main("tiny", tmp_path / "tiny.json")
    text = "<!-- bench:tiny/names -->\nold\n<!-- /bench -->\n<!-- bench:tiny -->\n<!-- /bench -->\n"
    once = readme.filled(text, tmp_path)
    assert once.startswith("<!-- bench:tiny/names -->\nspeed\n<!-- /bench -->\n<!-- bench:tiny -->\n| figure |")
    with raises_naming(ConfigError, "tiny", "name", nearest="names"):
        readme.filled(text.replace("/names", "/name"), tmp_path)


def test_results_of_no_bench_have_a_table_of_their_own(tmp_path):
    unit = {"ratio": 1.234, "low": 0.5, "high": 2, "now": [1, 2, 3], "before": [1, 2, 3], "reached": True}
    document = {"schema_version": 1, "command": "python tools/x.py", "date": "2026-01-01", "versions": {"robotrl": "1"}}
    document |= {"machine": machine_info(), "units": {"a b": unit, "c": {**unit, "reached": False}}}
    (tmp_path / "speed_against.json").write_text(json.dumps(document))
    once = readme.filled("<!-- bench:speed_against -->\n<!-- /bench -->\n", tmp_path)
    assert "| a b | **1.23** | 0.50 to 2.00 | 3 | yes |\n| c | **1.23** | 0.50 to 2.00 | 3 | **no** |" in once
    assert "`python tools/x.py`, 2026-01-01; " in once and readme.filled(once, tmp_path) == once


def test_blocks_that_cannot_be_filled_are_refused(tiny, tmp_path):
    block = "<!-- bench:tiny -->\n<!-- /bench -->\n"
    assert readme.filled(block, tmp_path) == block, "an empty block claims nothing"
    with pytest.raises(DataError, match="does not exist"):
        readme.filled("<!-- bench:tiny -->\n| speed | 25 us |\n<!-- /bench -->\n", tmp_path)
    with raises_naming(ConfigError, "bench", "tyni"):
        readme.filled(block.replace("tiny", "tyni"), tmp_path)
    runner.main("tiny", tmp_path / "tiny.json", quick=True)
    with pytest.raises(DataError, match="--quick"):
        readme.filled(block, tmp_path)
    with pytest.raises(DataError, match="not closed"):
        readme.filled("<!-- bench:tiny -->\n", tmp_path)
    with pytest.raises(DataError, match="not closed"):
        readme.filled("<!-- bench:tiny -->\n" + block, tmp_path)


def test_the_committed_pages_agree_with_the_committed_results():
    assert readme.main(check=True) == 0, "run: python -m benchmarks.readme"
