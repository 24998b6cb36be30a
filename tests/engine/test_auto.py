"""The engine's own choice: uncompiled where compiling costs more than the run would gain, and what is remembered."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.engine import compile_record as record
from robotrl.engine.engine import TRIALS, Engine, ParameterGroup
from tests.engine.test_engine import Two, data
from tests.kits.paths_kit import ROOT

KEY = record.shape_key("a shape")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def engine(updates: int | None, mode: str = "auto") -> Engine:
    groups = (ParameterGroup("a.", 0.5), ParameterGroup("b.", 0.5))
    carry = {"lr": 1e-3, "calls": 0.0}
    return Engine(Two(), groups, minibatch=8, carry=carry, mode=mode, updates=updates)  # pyright: ignore


def run(of: Engine, times: int = 1) -> list[float]:
    for _ in range(times):
        of.run(data(), torch.arange(40), 40, "here")
    return of.flat.tolist()


def test_a_short_run_is_never_compiled_and_has_the_numbers_of_an_eager_one():
    auto, eager = engine(updates=10), engine(updates=10, mode="eager")
    assert run(auto, 2) == run(eager, 2)
    assert auto.mode == "eager"
    assert auto.compile_s == 0.0


def test_it_times_a_few_updates_before_it_chooses():
    of = engine(updates=10)
    order = torch.arange(8)
    for made in range(1, TRIALS + 1):
        of.run(data(), order, 40, "here")
        assert (of.mode == "auto") == (made < TRIALS)


def test_what_was_chosen_is_kept_by_a_resume():
    first = engine(updates=10)
    run(first)
    state = first.state()
    assert (state["mode"], state["to_come"]) == ("eager", 5)
    # a run of that many updates would have been compiled
    second = engine(updates=10**9)
    second.flat.copy_(first.flat)
    second.load(state)
    assert second.mode == "eager"
    assert run(second) == run(first)
    # a state of before says nothing, and what is asked for by name is done
    old = {name: value for name, value in state.items() if name not in ("mode", "to_come")}
    asked = engine(updates=None, mode="eager")
    asked.load(old)
    asked.load({**state, "mode": "compiled"})
    assert asked.mode == "eager"


def test_where_nobody_says_how_many_updates_there_are_it_compiles():
    assert engine(updates=None).mode == "compiled"


LONG_RUN = """
import sys
sys.path.append(sys.argv[1])
import torch
from tests.engine.test_auto import engine, run
from robotrl.utils.progress import track
with track(1, "learning") as bar:
    of = engine(updates=10**9)
    ours = run(of, 2)
    bar.advance()
assert of.mode == "compiled" and of.compile_s > 0
assert torch.allclose(torch.tensor(ours), torch.tensor(run(engine(updates=1), 2)), atol=1e-6)
"""


def test_a_long_run_is_compiled_and_says_so_while_it_lasts(cache):
    found = subprocess.run(
        [sys.executable, "-c", LONG_RUN, str(ROOT)],
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    lines = found.stderr.splitlines()
    assert lines[1] == "learning: compiling the update (once for this shape; about 45 s)"
    assert "took" in next(line for line in reversed(lines) if "compiling" in line)
    ((first, again),) = json.loads((cache / record.RECORD).read_text()).values()
    assert 0 < first < record.LONGEST_S and again is None


def test_a_shape_is_expected_to_take_what_it_took():
    assert record.expected_s(KEY) == record.USUAL_S
    record.remember(KEY, 80.0)
    assert record.expected_s(KEY) == 20.0  # its kernels are in the cache
    assert record.expected_s(record.shape_key("another")) == 80.0
    record.remember(KEY, 9.0)
    assert record.expected_s(KEY) == 9.0
    assert record.pays(0.01, 4000, KEY) and not record.pays(0.01, 1000, KEY)
    for odd in (0.0, -1.0, math.nan, math.inf, 1e9):
        record.remember(KEY, odd)
    assert record.expected_s(KEY) == 9.0


@settings(max_examples=60, deadline=None)
@given(
    text=st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_a_damaged_record_is_none(text):
    path = record.cache_dir() / record.RECORD
    path.write_bytes(text)
    assert 0 < record.expected_s(KEY) < record.LONGEST_S
    path.write_bytes(b"[" * 100_000)
    assert record.expected_s(KEY) == record.USUAL_S


def test_a_cache_that_cannot_be_written_remembers_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "none" / "here"))
    record.remember(KEY, 5.0)
    assert record.expected_s(KEY) == record.USUAL_S
