import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robotrl.spec import Spec, history_steps, present_of, with_history

bounds = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def specs(draw) -> Spec:
    leading = draw(st.lists(st.integers(1, 5), max_size=2))
    width = draw(st.integers(1, 6))
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=width, max_size=width, unique=True))
    return Spec(
        shape=(*leading, width),
        names=tuple(names),
        units=tuple(draw(st.sampled_from(["m", "rad", "1", "m/s"])) for _ in names),
        low=tuple(draw(st.just(-math.inf) | bounds) for _ in names),
        high=tuple(draw(st.just(math.inf) | bounds) for _ in names),
        dtype=draw(st.sampled_from(["float32", "float64", "int64", "uint8"])),
    )


@given(specs())
def test_json_round_trip(spec):
    # allow_nan=False: infinities must have become None, because JSON has no name for them
    assert Spec.from_json(json.loads(json.dumps(spec.to_json(), allow_nan=False))) == spec


@given(st.lists(st.integers(2, 9), min_size=1, max_size=4))
def test_choices_are_numbers_from_nought_to_one_less_than_there_are(counts):
    def spec(**changed):
        n = len(counts)
        fields = {"low": (0.0,) * n, "high": tuple(c - 1.0 for c in counts), "choices": tuple(counts), **changed}
        return Spec((n,), tuple(f"a{i}" for i in range(n)), ("1",) * n, **fields)

    assert Spec.from_json(json.loads(json.dumps(spec().to_json()))) == spec()
    assert "choices" not in spec(choices=None).to_json()
    for wrong in ({"choices": (*counts, 2)}, {"choices": (1,) * len(counts)}, {"low": (1.0,) * len(counts)}):
        with pytest.raises(ValueError, match=r"Spec\.choices is"):
            spec(**wrong)


def test_one_entry_for_each_element_of_the_last_axis():
    with pytest.raises(ValueError, match=r"Spec.units has 1 entries: expected 2, one for each of shape\[-1\]"):
        Spec((3, 2), ("a", "b"), ("m",), (0.0, 0.0), (1.0, 1.0))


def test_names_differ():
    with pytest.raises(ValueError, match=r"Spec\.names repeats a name"):
        Spec((2,), ("a", "a"), ("m", "m"), (0.0, 0.0), (1.0, 1.0))


@pytest.mark.parametrize(
    "module", ["spec", "transforms", "registry", "errors", "utils.progress", "cli.main", "cli.doctor"]
)
def test_the_core_imports_neither_torch_nor_a_simulator(module):
    code = f"import sys, robotrl.{module}; print([m for m in ('torch', 'mujoco', 'gymnasium') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(specs(), st.integers(1, 7))
def test_a_history_tells_its_length_and_its_present_step(spec, steps):
    one = Spec((spec.shape[-1],), spec.names, spec.units, spec.low, spec.high, spec.dtype)
    if history_steps(one) != 1:
        return
    several = with_history(one, steps)
    assert several.shape == (steps * one.shape[0],) and history_steps(several) == steps
    assert present_of(several, one.shape[0]) == one


def test_names_that_look_like_a_history_are_none():
    alike = ("x_1_ago", "y")
    for names in (alike, ("x_1_ago", "x", "y"), ("x_one_ago", "x"), ("x_0_ago",)):
        n = len(names)
        assert history_steps(Spec((n,), names, ("m",) * n, (0.0,) * n, (1.0,) * n)) == 1
    assert history_steps(Spec((2,), ("x_1_ago", "x"), ("m",) * 2, (0.0, 0.5), (1.0, 1.0))) == 1
    assert history_steps(Spec((2,), ("x_1_ago", "x"), ("m",) * 2, (0.5, 0.5), (1.0, 1.0))) == 2
