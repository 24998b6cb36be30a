"""Descriptions of served environments, and inputs of remote sims, which runs note."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import robotrl
from robotrl.registry import sim_options
from robotrl.run.input_digests import digest_of
from robotrl.sims.remote import worker
from robotrl.spec import HasInputs, HasTimeLimit, Input
from tests.kits.paths_kit import ROOT

KITS = str(ROOT / "tests" / "kits")


def inputs(served: str, **values: Any) -> list[Input]:
    options = sim_options(f"remote/{served}", values)
    assert isinstance(options, HasInputs)
    return list(options.inputs())


def test_attributes_with_a_slip_are_named_with_what_is_meant() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sim = robotrl.make_sim("remote/remote_toys:misspelled", 2, path=(KITS,))
    sim.close()
    said = [str(warning.message) for warning in caught]
    assert said == [
        "remote/remote_toys:misspelled: its 'contol_dt_s' is not read: did you mean 'control_dt_s'?",
        "remote/remote_toys:misspelled: its 'get_sate' is not read: did you mean 'get_state'?",
    ]
    assert sim.control_dt_s is None


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [
        ("contol_dt_s", "control_dt_s", True),
        ("set_param", "set_params", True),
        ("camras", "cameras", True),
        ("camera", "cameras", False),
        ("renderer", "render", False),
        ("render_mode", "render", False),
        ("closed", "close", False),
        ("control_dt", "control_dt_s", True),
        ("contorl_dt_s", "control_dt_s", True),
        ("info_space", "info_spec", False),
        ("resets", "reset", False),
        ("steps", "step", False),
        ("started", "start", False),
        ("limit", "limit_steps", False),
    ],
)
def test_words_of_their_own_are_no_slips(name: str, other: str, expected: bool) -> None:
    assert worker.looks_like(name, other) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [("", "", 0), ("ab", "ba", 1), ("abc", "abd", 1), ("ab", "abcd", 2), ("kitten", "sitting", 3)],
)
def test_slips_are_counted(a: str, b: str, expected: int) -> None:
    assert worker.slips(a, b) == worker.slips(b, a) == expected


def test_a_time_limit_travels() -> None:
    sim = robotrl.make_sim("remote/remote_toys:point", 4, workers=2, path=(KITS,), kwargs={"limit_steps": 8})
    assert isinstance(sim, HasTimeLimit)
    assert sim.limit_steps == 8
    sim.reset(seed=0, options={"stagger": True})
    assert sim.elapsed_steps().tolist() == [0, 2, 4, 6]
    sim.close()


def test_the_module_and_the_worker_file_are_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert inputs("own_cart:make") == [Input("", "module", "own_cart")]
    # another Python finds the module in the folders that it shares with this one, or elsewhere
    assert inputs("own_cart:make", python="python3.8") == []
    (tmp_path / "own_cart.py").write_text("def make(num_envs): ...\n")
    (found,) = inputs("own_cart:make", python="python3.8")
    assert (found.kind, Path(found.path)) == ("file", tmp_path / "own_cart.py")
    package = tmp_path / "folder" / "carts"
    package.mkdir(parents=True)
    for name in ("__init__.py", "one.py"):
        (package / name).write_text("")
    found_files = inputs("carts.one:make", path=("folder",), worker_file="copy.py")
    assert found_files == [
        Input("worker_file", "file", "copy.py"),
        Input("", "file", "folder/carts/__init__.py"),
        Input("", "file", "folder/carts/one.py"),
    ]
    assert all(digest_of(one.kind, one.path) for one in found_files[1:])


def test_inputs_of_a_sim_of_robotrl_are_those_of_the_sim() -> None:
    assert inputs("bev/drive") == []
    assert inputs("bev/drive", kwargs={"map": "town.xodr"}) == [Input("kwargs", "file", "town.xodr")]
