"""The manifest: strict reading, full precision, contradictions refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import deploy_kit as kit
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robotrl.deploy import manifest as schema
from robotrl.deploy import strict
from robotrl.errors import DataError


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (kit.made("flow", tmp_path_factory.getbasetemp())[0] / schema.MANIFEST_FILE).read_bytes()


def edited(text: bytes, path: str, value: Any) -> bytes:
    """The manifest with one field changed and its identity recomputed, so that only the field can be at fault."""
    data = json.loads(text)
    *parents, last = path.split(".")
    node = data
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node[key]
    if value is KeyError:
        del node[last]
    elif isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value
    return json.dumps(data).encode()


def test_round_trip_is_exact(text: bytes) -> None:
    manifest = schema.parse(text)
    assert manifest.to_bytes() == text
    assert schema.parse(manifest.to_bytes()) == manifest


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("timing.control_perod_s", 1.0, "'control_perod_s' is unknown: did you mean 'control_period_s'?"),
        ("timing.control_period_s", KeyError, "'control_period_s' is missing"),
        ("timing.control_period_s", "fast", "manifest.timing.control_period_s is 'fast': expected a number"),
        ("timing.control_period_s", True, "manifest.timing.control_period_s is True: expected a number"),
        ("timing.control_period_s", -1.0, "control_period_s is -1.0: expected 0 to 10 s"),
        ("timing.chunk_length", 2.0, "manifest.timing.chunk_length is 2.0: expected an integer"),
        ("timing.execute", 3, "timing.execute is 3: expected 1 to chunk_length"),
        ("action.kind", "positon", "did you mean 'position'?"),
        ("action.names", "push", "manifest.action.names is 'push': expected a list"),
        ("action.names.0", 5, "manifest.action.names[0] is 5: expected a string"),
        ("safety.hold", "last", "safety.hold is 'last': expected 'neutral' for actions of kind 'delta'"),
        ("safety.neutral", [9.0, 0.0], "safety.neutral"),
        ("safety.low", [2.0, -1.0], "safety.low"),
        ("safety.max_step", [0.0, 1.0], "safety.max_step"),
        ("safety.bad_ticks_to_damp", 0, "safety.bad_ticks_to_damp"),
        ("sampler.noise_shape", [3, 2], "noise"),
        ("sampler.noise_policy", None, "sampler.noise_policy"),
        ("sampler.noise_policy", "steer", "a steering graph in graphs.steer"),
        ("transforms.inputs.0.scale", [1.0], "differ in length"),
        ("transforms.inputs.0.kind", "affin", "affin"),
        ("transforms.inputs.0.where", "grph", "did you mean 'graph'?"),
        ("transforms.inputs", {}, "transforms"),
        ("io.inputs.0.names", ["a", "a", "b", "c"], "each name once"),
        ("io.inputs.0.shape", [5], "names count"),
        ("io.outputs.0.role", "risk", "io.outputs of role 'actions'"),
        ("golden.ticks", 63, "64 or more"),
        ("golden.tolerance", 0.5, "golden.tolerance"),
        ("graphs.risk", "risk.onnx", "files"),
        ("files.extra", {"bytes": 1, "sha256": "0"}, "files"),
    ],
)
def test_an_edit_is_refused_by_name(text: bytes, path: str, value: Any, says: str) -> None:
    with pytest.raises(DataError) as caught:
        schema.parse(edited(text, path, value))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plausible_edit_shows_in_the_identity(text: bytes) -> None:
    with pytest.raises(DataError, match="bundle_id does not match"):
        schema.parse(edited(text, "safety.high", [1.5, 1.0]))


def test_other_schema_versions_are_refused_by_name(text: bytes) -> None:
    with pytest.raises(DataError, match="schema_version is 2: this robotrl reads up to 1"):
        schema.parse(edited(edited(text, "schema_version", 2), "brand_new_field", 1))
    for bad in (0, "1", None, True):
        with pytest.raises(DataError, match="schema_version is"):
            schema.parse(edited(text, "schema_version", bad))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "not readable as JSON"),
        (b"[]", "expected an object"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"a": NaN}', "NaN is not allowed"),
        (b'{"a": 1e999}', "schema_version"),
        (b"\xff\xfe", "not readable as JSON"),
        (b'{"a":' * 5000, "not readable as JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not readable as JSON"),
    ],
)
def test_what_is_not_a_manifest_is_refused(document: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        schema.parse(document)


def test_an_infinite_number_is_refused(text: bytes) -> None:
    huge = edited(text, "timing.control_period_s", 0.125).replace(b"0.125", b"1e999")
    with pytest.raises(DataError, match=r"timing.control_period_s is inf: expected a finite number"):
        schema.parse(huge)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_numbers_keep_full_precision(numbers: list[float]) -> None:
    limit = schema.Limit("torque", ("a",) * len(numbers), ("N m",) * len(numbers), tuple(numbers), tuple(numbers))
    assert strict.from_json(schema.Limit, strict.loads(strict.dumps(limit), "limit"), "limit") == limit


def test_every_field_is_required(text: bytes) -> None:
    """No default hides in the schema: a manifest that lacks any field, at any depth, is refused."""

    def paths(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if isinstance(node, dict) and at[:1] not in (("versions",), ("files",)):
            return [path for key, value in node.items() for path in [(*at, key), *paths(value, (*at, key))]]
        if isinstance(node, list):
            return [path for i, value in enumerate(node[:1]) for path in paths(value, (*at, i))]
        return []

    data = json.loads(text)
    found = paths(data)
    assert len(found) > 80
    for path in found:
        broken = copy.deepcopy(data)
        node = broken
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]
        with pytest.raises(DataError):
            schema.parse(json.dumps(broken).encode())


def test_the_file_is_for_people_too(text: bytes, tmp_path: Path) -> None:
    manifest = schema.parse(text)
    assert [port.name for port in manifest.observations] == ["state", "touch"]
    assert manifest.io.inputs[0].names == ("cart_pos", "cart_vel", "goal_pos", "goal_vel")
    assert manifest.io.inputs[0].low[1] is None
    assert manifest.action.scale == (2.0, 1.0)
    assert manifest.sampler.steps == kit.STEPS
    assert manifest.versions["onnxruntime"]
