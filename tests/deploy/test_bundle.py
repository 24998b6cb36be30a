"""Opening a bundle: whatever was done to it, it is refused with one line that says what is wrong, or it is the same."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.describe import entry
from robotrl.errors import DataError


@pytest.fixture
def bundle(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.copied("flow", tmp_path, tmp_path_factory.getbasetemp())


def reseal(bundle: Path, change: Any = None) -> None:
    """Make sizes, hashes and identity right again after an edit, so that only the edit can be at fault."""
    path = bundle / schema.MANIFEST_FILE
    data = json.loads(path.read_text())
    for name in data["files"]:
        made = entry((bundle / name).read_bytes())
        data["files"][name] = {"bytes": made.bytes, "sha256": made.sha256}
    if change is not None:
        change(data)
    manifest = strict.from_json(schema.Manifest, data, "manifest")
    path.write_bytes(replace(manifest, bundle_id=schema.identity(manifest)).to_bytes())


def refused(bundle: Path, says: str) -> None:
    with pytest.raises(DataError) as caught:
        open_bundle(bundle)
    assert says in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_untouched_bundle_opens(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert opened.manifest.golden.ticks == len(opened.golden.actions) == 264
    assert opened.facts.opset >= 18
    assert opened.golden.noise is not None


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "none", "is not a directory")
    refused(tmp_path, "has no manifest.json")


@pytest.mark.parametrize("name", ["policy.onnx", "golden.safetensors", "manifest.json"])
def test_a_truncated_file(bundle: Path, name: str) -> None:
    data = (bundle / name).read_bytes()
    (bundle / name).write_bytes(data[: len(data) // 2])
    refused(bundle, "not readable as JSON" if name == "manifest.json" else f"{name!r} has {len(data) // 2} bytes")


@pytest.mark.parametrize("name", ["policy.onnx", "golden.safetensors"])
def test_a_missing_longer_or_altered_file(bundle: Path, name: str) -> None:
    data = (bundle / name).read_bytes()
    (bundle / name).write_bytes(data + b"\0")
    refused(bundle, "longer than it was")
    (bundle / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused(bundle, f"{name!r} has SHA-256")
    (bundle / name).unlink()
    refused(bundle, f"file {name!r} is missing")


def test_an_extra_file_directory_link_or_pipe(bundle: Path, tmp_path: Path) -> None:
    (bundle / "polcy.onnx").write_bytes(b"")
    refused(bundle, "file 'polcy.onnx' is not listed in its manifest")
    (bundle / "polcy.onnx").unlink()
    (bundle / "sub").mkdir()
    refused(bundle, "'sub' is not a plain file")
    (bundle / "sub").rmdir()
    os.mkfifo(bundle / "pipe")
    refused(bundle, "'pipe' is not a plain file")
    (bundle / "pipe").unlink()
    shutil.move(bundle / "policy.onnx", tmp_path / "elsewhere.onnx")
    (bundle / "policy.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    refused(bundle, "'policy.onnx' is a symbolic link")


@pytest.mark.parametrize(
    "name", ["../policy.onnx", "/etc/passwd", "sub/policy.onnx", "..", "manifest.json", "a\0b.onnx"]
)
def test_a_name_that_leaves_the_directory(bundle: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(bundle / "policy.onnx", tmp_path / "policy.onnx")

    def change(data: dict[str, Any]) -> None:
        data["files"][name] = data["files"].pop("policy.onnx")
        data["graphs"]["policy"] = name

    reseal(bundle, change)
    refused(bundle, "expected a plain lower-case file name")


def test_golden_ticks_that_do_not_fit(bundle: Path) -> None:
    path = bundle / schema.GOLDEN_FILE
    arrays = safetensors.numpy.load(path.read_bytes())

    def stored(changed: dict[str, np.ndarray], says: str) -> None:
        path.write_bytes(safetensors.numpy.save(changed))
        reseal(bundle)
        refused(bundle, says)

    stored({k: v for k, v in arrays.items() if k != "noise"}, "expected ['actions', 'noise'")
    stored({**arrays, "more": arrays["noise"]}, "more")
    stored({**arrays, "noise": arrays["noise"][:-1].copy()}, "'noise' is float32 of shape")
    stored({**arrays, "actions": arrays["actions"].astype(np.float64)}, "'actions' is float64")
    stored({**arrays, "actions": np.full_like(arrays["actions"], np.nan)}, "not finite")
    path.write_bytes(b"\xff" * 100)
    reseal(bundle)
    refused(bundle, "not readable as safetensors")
    path.write_bytes((bundle / schema.GRAPH_FILE).read_bytes())
    reseal(bundle)
    refused(bundle, "not readable as safetensors")


def test_a_graph_that_is_none(bundle: Path) -> None:
    shutil.copy(bundle / schema.GOLDEN_FILE, bundle / schema.GRAPH_FILE)
    reseal(bundle)
    refused(bundle, "policy.onnx: not a")


def test_a_file_beyond_the_cap(bundle: Path) -> None:
    with open(bundle / schema.MANIFEST_FILE, "ab") as file:
        file.truncate(5 << 20)
    refused(bundle, "at most 4194304 are accepted")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["policy.onnx", "golden.safetensors", "manifest.json"]), data=st.data())
def test_any_damage_is_refused_in_one_line(bundle: Path, name: str, data: st.DataObject) -> None:
    """Flip, cut, insert or repeat bytes anywhere in any file: never anything but a `DataError`."""
    whole = (bundle / name).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
    if kind == "flip":
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    elif kind == "cut":
        damaged = whole[:at]
    elif kind == "insert":
        damaged = whole[:at] + data.draw(st.binary(min_size=1, max_size=8)) + whole[at:]
    else:
        damaged = whole[: at + 1] + whole
    try:
        (bundle / name).write_bytes(damaged)
        # White space between the fields of a JSON text means nothing; every other change must show.
        if name != "manifest.json" or _content(damaged) != _content(whole):
            with pytest.raises(DataError) as caught:
                open_bundle(bundle)
            assert "\n" not in str(caught.value)
    finally:
        (bundle / name).write_bytes(whole)


def _content(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
