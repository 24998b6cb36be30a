"""Describes the content of a path (bundle, run, checkpoint, dataset), after verification, as text lines.

A bundle is described without torch, so that this works on the robot.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from robotrl.errors import DataError, nearest, short
from robotrl.importers.layouts import BACKBONES
from robotrl.utils.files import read_json

if TYPE_CHECKING:
    from robotrl.run.directory import Run

Kind = Literal["bundle", "run", "checkpoint", "dataset"]
_MARKS: dict[Kind, tuple[str, ...]] = {
    "dataset": ("meta",),
    "run": ("run.json", "checkpoints"),
    "bundle": ("policy.onnx", "golden.safetensors"),
    "checkpoint": ("weights.safetensors", "state.json"),
}
"""Files that identify each kind; one is enough, so that a damaged object is still recognized."""

TASKS = 12
"""Number of task texts shown of a dataset; it may have hundreds."""
_SHOWN_PACKAGES = ("robotrl", "torch", "mujoco", "numpy", "onnx", "onnxruntime")


@dataclass
class Description:
    """Description of a path's content."""

    kind: Kind
    path: Path
    rows: dict[str, str] = field(default_factory=dict[str, str])
    """Titles and texts, in display order."""
    damaged: list[str] = field(default_factory=list[str])
    """Faults, one line each; a completely damaged object raises an error instead."""


def kind_of(path: Path) -> Kind:
    """Kind of object at `path`, by the names of its files.

    Raises:
        DataError: the path does not exist, or robotrl did not write it.
    """
    if not _exists(path):
        siblings = [name for name in _names_in(path.parent) if not name.startswith(".")]
        close = nearest(path.name, siblings)
        raise DataError(f"{path} does not exist" + (f": did you mean {path.parent / close}?" if close else ""))
    names = _names_in(path)
    for kind, marks in _MARKS.items():
        if names.intersection(marks):
            return kind
    raise DataError(f"{path} is none of ours: expected the directory of a bundle, run, checkpoint or dataset")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:  # a name that no file can have
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{short(str(path))} cannot be looked at: {why}") from error


def _names_in(path: Path) -> set[str]:
    return set(os.listdir(path)) if path.is_dir() else set()


def describe(path: Path) -> Description:
    """Read, verify and describe the content of `path`.

    Raises:
        DataError: it is missing, damaged or altered, or of another schema.
    """
    kind = kind_of(path)
    found = Description(kind, path)
    {"bundle": _bundle, "run": _run, "checkpoint": _checkpoint, "dataset": _dataset}[kind](found)
    return found


def _bundle(found: Description) -> None:
    from robotrl.deploy.bundle.bundle import open_bundle

    manifest = open_bundle(found.path).manifest
    timing, sampler, training = manifest.timing, manifest.sampler, manifest.training
    rows = found.rows
    rows["schema"] = str(manifest.schema_version)
    rows["identity"] = manifest.bundle_id
    rows["created"] = manifest.created
    for port in manifest.io.inputs:
        rows[f"input {port.name}"] = f"{port.dtype} {_shape(port.shape)}: {_names(port.names, port.units)}"
    rows["action"] = f"{manifest.action.kind}: {_names(manifest.action.names, manifest.action.units)}"
    rows["rate"] = f"{1 / timing.control_period_s:g} Hz, chunk of {timing.chunk_length}, {timing.execute} executed"
    noise = f", noise {_shape(sampler.noise_shape)} ({sampler.noise_policy})" if sampler.noise_shape else ""
    rows["sampler"] = f"{sampler.kind}, {sampler.solver}, {sampler.steps} steps{noise}"
    if manifest.steer is not None:
        drawn = "drawn" if manifest.steer.draws else "a function of the observation"
        rows["steering"] = f"noise within {manifest.steer.bound:g}, {drawn}; robotrl deploy --no-steer goes without"
    rows["parity"] = (
        f"{manifest.parity.max_abs:.2e} at most ({manifest.parity.max_rel:.2e} of the range) "
        f"over {manifest.parity.samples} observations"
    )
    rows["golden ticks"] = str(manifest.golden.ticks)
    rows["trained by"] = f"{training.policy}, run {training.run}, step {training.step}, seed {training.seed}"
    rows["files"] = ", ".join(f"{name} {_size(entry.bytes)}" for name, entry in sorted(manifest.files.items()))
    rows["verified"] = "every file has the size and SHA-256 of the manifest"


def _run(found: Description) -> None:
    from robotrl.run.checkpoint import read_checkpoint
    from robotrl.run.directory import Run

    run = Run.open(found.path)
    found.damaged += [f"run {found.path}: {phrase}" for phrase in run.altered]
    found.rows["seed"] = str(run.seed)
    versions = read_json(found.path / "versions.json", "run versions", 1)
    git = read_json(found.path / "git.json", "run git state", 1)
    packages = versions.get("packages")
    if not isinstance(packages, dict):
        raise DataError(f"run versions {found.path / 'versions.json'} lacks its packages")
    shown = {"python": versions.get("python"), **{name: packages.get(name) for name in _SHOWN_PACKAGES}}
    found.rows["versions"] = ", ".join(f"{name} {version}" for name, version in shown.items() if version)
    found.rows["git"] = f"{git.get('commit') or 'none'}" + (", with changes" if git.get("dirty") else "")
    for key, value in run.config.items():
        found.rows[f"config {key}"] = json.dumps(value)
    for title, text in _inputs(run):
        found.rows[title] = text
    whole = len(found.damaged)
    folders = [entry.path for entry in run.entries()]
    for folder in folders:
        try:
            checkpoint = read_checkpoint(folder)
        except DataError as error:
            found.damaged.append(str(error))
            found.rows[folder.name] = "damaged"
            continue
        score = "" if checkpoint.score is None else f", score {checkpoint.score:g}"
        found.rows[folder.name] = f"whole{score}"
    found.rows["checkpoints"] = f"{len(folders)}, {len(found.damaged) - whole} damaged"


def _inputs(run: Run) -> Iterator[tuple[str, str]]:
    """One row for each input of a run: path, original digest, and whether it changed."""
    from robotrl.run.input_digests import present_digests

    for before, now in zip(run.inputs, present_digests(run.inputs), strict=True):
        if now.fault:
            state = f"cannot be read now: {now.fault}"
        elif now.sha256 is None:
            state = "not there any more"
        else:
            state = "as when the run began" if now.sha256 == before.sha256 else f"changed, now {now.sha256[:12]}"
        kept = ", kept in the checkpoints" if before.input.kept else ""
        known = (before.sha256 or "absent")[:12]
        yield f"input {before.input.field}", f"{before.input.path}: {before.input.kind} {known}{kept}; {state}"


def _checkpoint(found: Description) -> None:
    from robotrl.run.checkpoint import read_checkpoint, read_manifest

    checkpoint = read_checkpoint(found.path)
    manifest = read_manifest(found.path)
    rows = found.rows
    rows["step"] = f"{checkpoint.step:,}"
    rows["kind"] = checkpoint.kind
    rows["score"] = "not evaluated" if checkpoint.score is None else f"{checkpoint.score:g}"
    origin = checkpoint.tree.get("import") if isinstance(checkpoint.tree, dict) else None
    if origin is not None:
        rows["imported"] = f"{origin['layout']} from {origin['source']}"
        rows["policy"] = checkpoint.tree["policy"]["description"]["kind"]
        rows["parameters"] = f"{origin['parameters']:,}"
        rows["fingerprint"] = origin["fingerprint"]
        rows["recorded actions"] = _compared(origin)
    for key, value in checkpoint.tree.items():
        rows[f"tree {key}"] = _leaves(value)
    rows["files"] = ", ".join(f"{name} {_size(size)}" for name, (size, _) in sorted(manifest.files.items()))
    rows["verified"] = "every file has the size and SHA-256 of the manifest"


def _dataset(found: Description) -> None:
    from robotrl.datasets.lerobot import read_dataset

    data = read_dataset(found.path)
    rows = found.rows
    rows["episodes"] = f"{data.num_episodes:,}"
    rows["frames"] = f"{data.num_frames:,} at {data.fps:g} Hz"
    rows["tasks"] = "; ".join(data.tasks[:TASKS])
    if len(data.tasks) > TASKS:
        rows["tasks"] += f"; and {len(data.tasks) - TASKS:,} more"
    if "success" in data.episodes:
        rows["successful"] = f"{int(data.episodes['success'].sum()):,}"
    if "mode" in data.episodes:
        counts = Counter(str(mode) for mode in data.episodes["mode"])
        rows["modes"] = ", ".join(f"{mode} {count}" for mode, count in sorted(counts.items()))
    for name, feature in data.features.items():
        rows[f"column {name}"] = f"{feature.dtype} {_shape(feature.shape)}"
    for key, value in data.provenance.items():
        rows[f"from {key}"] = json.dumps(value)
    rows["verified"] = (
        "every file has the SHA-256 of meta/robotrl.json"
        if data.verified
        else "counts, indices and statistics only: another program wrote it and left no hashes"
    )


def _leaves(value: Any) -> str:
    if isinstance(value, dict):
        leaves: list[Any] = []
        pending: list[Any] = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, dict):
                pending.extend(item.values())
            else:
                leaves.append(item)
        arrays = [leaf for leaf in leaves if hasattr(leaf, "shape")]
        numbers = sum(int(_product(leaf.shape)) for leaf in arrays)
        return f"{len(arrays)} arrays, {numbers:,} numbers, {len(leaves) - len(arrays)} other values"
    if hasattr(value, "shape"):
        return f"{value.dtype} {_shape(tuple(value.shape))}"
    return json.dumps(value)


def _product(shape: Any) -> int:
    out = 1
    for size in shape:
        out *= int(size)
    return out


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def _names(names: tuple[str, ...], units: tuple[str, ...]) -> str:
    return ", ".join(f"{name} [{unit}]" for name, unit in zip(names, units, strict=True))


def _size(count: int) -> str:
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def _compared(origin: Mapping[str, Any]) -> str:
    """Error of an imported policy on recorded actions, as text."""
    labels = origin["labels"]
    if labels is not None:
        return f"missed by {labels['error']:.2%} of the action range in {labels['frames']} frames"
    return "says none yet: clone some" if origin["layout"] in BACKBONES else "unverified: none were shown"
