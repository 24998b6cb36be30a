"""The bench of faulty inputs: its frame, its cells, what it concludes and shows."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path

import pytest

from benchmarks import faults
from benchmarks.faults.cell import attempt, generator, kinds_of, main, tried
from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl.errors import ConfigError

FRAME = {"__init__", "kind", "cell", "mutate", "sound"}


def kind(call, wanted=(Outcome.REFUSED,), inputs=4) -> Kind:
    return Kind("a kind", wanted, inputs, call)


def raising(error: BaseException):
    def call(rng, folder):
        raise error

    return call


def test_every_module_with_kinds_is_an_area_and_names_are_unique():
    modules = [path.stem for path in Path(faults.__file__).parent.glob("*.py") if path.stem not in FRAME]
    holding = [name for name in modules if hasattr(importlib.import_module(f"{faults.__name__}.{name}"), "KINDS")]
    assert sorted(holding) == sorted(faults.areas())
    for area in faults.areas():
        names = [found.name for found in kinds_of(area)]
        assert len(names) == len(set(names)), area
        assert all(found.wanted and found.inputs > 0 for found in kinds_of(area)), area


def test_an_input_is_drawn_from_its_kind_and_number_alone():
    one = kind(lambda rng, folder: Outcome.REFUSED)
    assert generator(one, 3).integers(1 << 60) == generator(one, 3).integers(1 << 60)
    assert generator(one, 3).integers(1 << 60) != generator(one, 4).integers(1 << 60)
    assert generator(one, 3).integers(1 << 60) != generator(one._replace(name="another"), 3).integers(1 << 60)


def test_each_attempt_has_an_empty_folder_of_its_own_which_goes(tmp_path):
    seen = []

    def call(rng, folder):
        assert not list(folder.iterdir()) and Path.cwd() == folder
        (folder / "closed").mkdir(0o000)
        seen.append(folder)
        return Outcome.WARNED

    assert tried(kind(call))["outcomes"] == {"warned": 4}
    assert len(set(seen)) == 4 and not any(folder.exists() for folder in seen)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), MemoryError()])
def test_what_a_kind_lets_through_is_a_crash(error):
    assert attempt(kind(raising(error)), 0)[0] is Outcome.CRASHED


def test_an_input_that_does_not_end_is_a_crash():
    assert attempt(kind(lambda rng, folder: time.sleep(30)), 0, longest_s=0.05)[0] is Outcome.CRASHED


def test_an_error_is_refused_in_one_line_or_a_crash():
    assert outcome_of(lambda: raising(ConfigError("x is 1: expected 2"))(0, 0)) is Outcome.REFUSED
    assert outcome_of(lambda: raising(ConfigError("x\ny"))(0, 0)) is Outcome.CRASHED
    assert outcome_of(lambda: raising(ConfigError("x" * 10_000))(0, 0)) is Outcome.CRASHED


def test_the_first_input_that_came_out_wrong_is_named():
    def call(rng, folder):
        return Outcome.REFUSED if rng.random() < 0.5 else Outcome.SILENT

    many = kind(call, inputs=40)
    row = tried(many)
    assert sum(row["outcomes"].values()) == 40 and row["outcomes"]["silent"] > 5
    assert attempt(many, row["failure"]["input"])[0] is Outcome.SILENT
    assert all(attempt(many, number)[0] is Outcome.REFUSED for number in range(row["failure"]["input"]))


def test_a_cell_writes_json_and_the_table_is_made_of_it(tmp_path):
    area = faults.areas()[0]
    out = tmp_path / "faults.json"
    assert main([area, str(out), "--most", "1"]) == 0
    result = json.loads(out.read_text())
    assert [row["inputs"] for row in result["kinds"]] == [1] * len(kinds_of(area))
    cells = [{"method": "faults", "task": area, "seed": 0, "result": result}]
    figures = faults.aggregate(cells)
    assert figures["kinds"].value == figures["inputs"].value == len(kinds_of(area))
    text = faults.table({"cells": {"a": cells[0]}})
    assert len(text.splitlines()) >= 3 + len(kinds_of(area))
    assert text.startswith("| area | kind | inputs | refused |")


def test_a_failure_is_listed_under_the_table():
    row = {"kind": "k", "wanted": ["refused"], "inputs": 5, "outcomes": {"refused": 4, "silent": 1}}
    row["failure"] = {"input": 3, "outcome": "silent", "said": ""}
    cell = {"method": "faults", "task": "run", "seed": 0, "result": {"kinds": [row]}}
    assert faults.table({"cells": {"a": cell}}).splitlines()[-1] == "- run: k, input 3: silent"
    assert faults.aggregate([cell])["unwanted"].value == 1
