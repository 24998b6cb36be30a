import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robotrl.spec import Spec

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
