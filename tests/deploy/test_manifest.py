"""The manifest: strict reading, full precision, contradictions refused."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import strict
from robotrl.errors import DataError
from tests.kits.refusals import raises_naming


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
        ("graphs.risk", "risk.onnx", "graphs.risk is 'risk.onnx': expected a graph exactly where there is a reflex"),
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
    with pytest.raises(DataError, match="schema_version is 6: this robotrl reads up to 5"):
        schema.parse(edited(edited(text, "schema_version", 6), "brand_new_field", 1))
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
    with raises_naming(DataError, "manifest.timing.control_period_s", "inf", "number"):
        schema.parse(huge)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_numbers_keep_full_precision(numbers: list[float]) -> None:
    limit = schema.Limit("torque", ("a",) * len(numbers), ("N m",) * len(numbers), tuple(numbers), tuple(numbers))
    assert strict.from_json(schema.Limit, strict.loads(strict.dumps(limit), "limit"), "limit") == limit


def test_every_field_is_required(text: bytes) -> None:
    """No default hides in the schema: a manifest that lacks any field, at any depth, is refused.

    Bundles of version 0.1 lack the sim and its options, which say "unknown" then.
    """

    def paths(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if isinstance(node, dict) and at[:1] not in (("versions",), ("files",)):
            return [path for key, value in node.items() for path in [(*at, key), *paths(value, (*at, key))]]
        if isinstance(node, list):
            return [path for i, value in enumerate(node[:1]) for path in paths(value, (*at, i))]
        return []

    data = json.loads(text)
    later = {("training", "sim"), ("training", "sim_options")}
    found = [path for path in paths(data) if path not in later]
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


CONTRADICTIONS: dict[str, tuple[str, Any, str]] = {
    "action names": ("action.names", ["brake", "push"], "action.names"),
    "action units": ("action.units", ["rad", "1"], "action.units"),
    "output names": ("io.outputs.0.names", ["brake", "push"], "action.names"),
    "raw names": ("io.outputs.1.names", ["brake", "push"], "action.names"),
    "raw units": ("io.outputs.1.units", ["N", "1"], "normalised"),
    "scale": ("action.scale", [1.0, 1.0], "action.scale"),
    "offset": ("action.offset", [0.0, 0.5], "action.offset"),
    "transform scale": ("transforms.outputs.0.scale", [3.0, 1.0], "action.scale"),
    "transform of nothing": ("transforms.inputs.0.key", "stat", "transforms.inputs[0].key"),
    "transform of another width": ("transforms.inputs.0.key", "touch", "entries"),
    "clip beyond the limits": ("transforms.outputs.1.low", [2.5, -1.0], "transforms.outputs[1].low"),
    "host before graph": ("transforms.outputs.0.where", "host", "'host' first in inputs, last in outputs"),
    "limits beyond the bounds": ("safety.high", [100.0, 1.0], "within the bounds of io"),
    "limits beyond float32": ("safety.low", [-1e39, -1.0], "which float32 can compute with"),
    "limits equal in float32": ("safety.low", [1.9999999999, -1.0], "safety.low"),
    "step that vanishes": ("safety.max_step", [1e-50, 1.0], "safety.max_step"),
    "step beyond float32": ("safety.max_step", [1e300, 1.0], "which float32 can compute with"),
    "endless blend-in": ("safety.ramp_in_s", 1e308, "safety.ramp_in_s"),
    "endless patience": ("safety.bad_ticks_to_damp", 10**18, "safety.bad_ticks_to_damp"),
    "age without end": ("timing.max_observation_age_s", 1e300, "timing.max_observation_age_s"),
    "budget without end": ("timing.latency_budget_s", 1e300, "timing.latency_budget_s"),
    "no period": ("timing.control_period_s", 1e-300, "timing.control_period_s"),
    "chunk without end": ("timing.chunk_length", 10**12, "timing.chunk_length"),
    "delay without joining": ("timing.rtc_max_delay_steps", 1, "0 where rtc_mode is 'none'"),
    "kind without noise": ("sampler.kind", "none", "sampler.kind"),
    "solver of another kind": ("sampler.solver", "ddim", "sampler.solver"),
    "distribution": ("sampler.distribution", "none", "sampler.distribution"),
    "negative steps": ("sampler.steps", -1, "sampler.steps"),
    "limit beyond its unit": ("safety.limits.0.units.0", "rad", "unit of 'cart_pos'"),
    "limit upside down": ("safety.limits.0.low.0", 50.0, "low at most high"),
    "limit apart from the bounds": ("safety.limits.0.low.3", 2.5, "meets the bounds"),
    "limit twice": ("safety.limits.0.names.1", "cart_pos", "each name once"),
    "port upside down": ("io.inputs.0.low.0", 5.0, "at most its high"),
    "port beyond float32": ("io.inputs.0.high.0", 1e39, "float32 numbers"),
    "stack": ("io.inputs.0.stack", 3, "the first of its sizes"),
    "feeds nothing": ("io.outputs.0.feeds", "state", "null"),
    "still for ever": ("io.inputs.0.max_still_s", -1.0, "max_still_s"),
    "negative gains": ("action.stiffness", [-1.0, 1.0], "action.stiffness"),
    "sequence beyond the ticks": ("golden.sequence_start", 10**6, "golden.sequence_start"),
    "ticks without end": ("golden.ticks", 10**9, "golden.ticks"),
    "parity below zero": ("parity.max_rel", -1.0, "parity.max_rel"),
    "hash": ("files", {"policy.onnx": {"bytes": 1, "sha256": "x"}}, "files"),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_fields_that_contradict_each_other_are_refused(text: bytes, kind: str) -> None:
    """Sealed again after the edit, so that no hash tells."""
    path, value, says = CONTRADICTIONS[kind]
    data = json.loads(edited(text, path, value))
    data["bundle_id"] = hashlib.sha256(
        strict.canonical({k: v for k, v in data.items() if k != "bundle_id"})
    ).hexdigest()
    with pytest.raises(DataError) as caught:
        schema.parse(json.dumps(data).encode())
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("long", ["x" * 10**6, ["x"] * 10**5, 10**4000])
@pytest.mark.parametrize("path", ["timing.chunk_length", "action.kind", "action.names", "extra", "files"])
def test_what_is_long_is_shown_short(text: bytes, path: str, long: Any) -> None:
    with pytest.raises(DataError) as caught:
        schema.parse(edited(text, path, long))
    assert len(str(caught.value)) < 600
    with pytest.raises(DataError) as caught:
        schema.parse(edited(text, f"timing.{'y' * 10**5}", 1))
    assert len(str(caught.value)) < 600
