"""Faulty files in place of each file that robotrl reads: mutated text, and other things than regular files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.faults import sound
from benchmarks.faults.kind import Kind, Outcome
from benchmarks.faults.mutate import (
    MUTATIONS,
    doubled_key,
    heard,
    hostile,
    linked,
    no_file,
    other_type,
    replaced,
    truncated,
    turned_bit,
    without_key,
)
from robotrl.api.inspection import describe
from robotrl.datasets.manifest import dataset_digest
from robotrl.datasets.reader import read_dataset
from robotrl.memory_estimate.estimate import described, on_meta_device
from robotrl.rewards.process_stored import load_process
from robotrl.rewards.stored import load_classifier
from robotrl.run.checkpoint import read_checkpoint, read_manifest, read_state, write_checkpoint
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import describe as describe_policy
from robotrl.run.policy_checkpoint import load_policy
from robotrl.training import config_of

Rng = np.random.Generator
Mutation = Callable[[Rng, bytes], bytes]
MAP = """<?xml version="1.0"?>
<OpenDRIVE>
 <header revMajor="1" revMinor="6" name="straight" version="1.0"/>
 <road name="a" length="200.0" id="1" junction="-1">
  <planView><geometry s="0" x="0" y="0" hdg="0" length="200.0"><line/></geometry></planView>
  <lanes><laneSection s="0">
   <center><lane id="0" type="none" level="false"/></center>
   <right><lane id="-1" type="driving" level="false"><width sOffset="0" a="3.5" b="0" c="0" d="0"/></lane></right>
  </laneSection></lanes>
 </road>
</OpenDRIVE>
"""
WORDS = "put the red block on the blue mat and push the green can to the left"


class Reader(NamedTuple):
    """A file and its readers."""

    source: Callable[[], Path]
    """Sound folder that contains the file."""
    name: str
    read: Callable[[Path], object]
    """Reader, called with the folder."""


def _inspected(folder: Path) -> None:
    found = describe(folder)
    if found.damaged:
        from robotrl.errors import DataError

        raise DataError(found.damaged[0])


def _opened(folder: Path) -> Any:
    run = Run.open(folder)
    run.refuse_changed(run.altered)
    return config_of(run)


def _xodr(folder: Path) -> Any:
    from robotrl.sims.driving.opendrive.reader import read

    return read(folder / "map.xodr")


def _vocabulary(folder: Path) -> Any:
    from robotrl.sims.gymnasium_sim.words import vocabulary_of

    return vocabulary_of(None, f"@{folder / 'words.txt'}", None)


@cache
def _map() -> Path:
    path = sound.place() / "map"
    path.mkdir()
    (path / "map.xodr").write_text(MAP)
    return path


@cache
def _words() -> Path:
    path = sound.place() / "words"
    path.mkdir()
    (path / "words.txt").write_text(WORDS)
    return path


def _newest() -> Path:
    return sound.run() / "checkpoints" / "step_000000003"


RUN_FILES = ("config.json", "run.json", "inputs.json", "versions.json", "git.json")
READERS: dict[str, Reader] = {
    **{name: Reader(sound.run, name, _inspected) for name in RUN_FILES},
    "config.json, opened": Reader(sound.run, "config.json", _opened),
    "manifest.json": Reader(_newest, "manifest.json", read_manifest),
    "manifest.json, as a policy": Reader(_newest, "manifest.json", describe_policy),
    "state.json": Reader(_newest, "state.json", read_state),
    "state.json, whole": Reader(_newest, "state.json", load_policy),
    "weights.safetensors": Reader(_newest, "weights.safetensors", read_checkpoint),
    "a classifier's manifest": Reader(_newest, "manifest.json", load_classifier),
    "a process reward's state": Reader(_newest, "state.json", load_process),
    "meta/robotrl.json": Reader(sound.dataset, "meta/robotrl.json", read_dataset),
    "meta/info.json": Reader(sound.foreign_dataset, "meta/info.json", read_dataset),
    "meta/stats.json": Reader(sound.foreign_dataset, "meta/stats.json", read_dataset),
    "meta/robotrl.json, its digest": Reader(sound.dataset, "meta/robotrl.json", dataset_digest),
}


def _try(reader: Reader, folder: Path, change: Callable[[Path], bool]) -> Outcome:
    """Mutate the file in a copy and read it; `change` returns whether the file still means the same."""
    place = linked(reader.source(), folder / "thing")
    same = change(place / reader.name)
    return heard(lambda: reader.read(place), Outcome.HARMLESS if same else Outcome.SILENT)


def _mutated(names: tuple[str, ...], how: tuple[Mutation, ...]) -> Any:
    def attempt(rng: Rng, folder: Path) -> Outcome:
        reader = READERS[names[int(rng.integers(len(names)))]]

        def change(file: Path) -> bool:
            before = file.read_bytes()
            after = how[int(rng.integers(len(how)))](rng, before)
            replaced(file, after)
            try:
                return json.loads(before) == json.loads(after)
            except (ValueError, RecursionError):
                return False

        return _try(reader, folder, change)

    return attempt


def _not_plain(names: tuple[str, ...]) -> Any:
    def attempt(rng: Rng, folder: Path) -> Outcome:
        def change(file: Path) -> bool:
            no_file(rng, file)
            return False

        return _try(READERS[names[int(rng.integers(len(names)))]], folder, change)

    return attempt


def _gone(rng: Rng, folder: Path) -> Outcome:
    """A missing file of a run, checkpoint or dataset."""
    # without our manifest or statistics, a dataset is valid, like those of other programs
    names = (*OF_RUN, *OF_CHECKPOINT, "meta/info.json")
    reader = READERS[names[int(rng.integers(len(names)))]]

    def change(file: Path) -> bool:
        file.unlink()
        return False

    return _try(reader, folder, change)


def _crafted(rng: Rng, folder: Path) -> Outcome:
    """A checkpoint from a stranger: valid hashes, with arbitrary content in place of the policy."""
    trees: tuple[Any, ...] = (
        {},
        [],
        None,
        1,
        {"policy": None},
        {"policy": []},
        {"policy": {"description": {}}},
        {"policy": {"description": {"kind": 3}, "weights": {}, "fingerprint": {}}},
        {"policy": {"description": {"kind": "no-such"}, "weights": {}, "fingerprint": {}}},
        {"policy": {"description": {"kind": "flow"}, "weights": {}, "fingerprint": {}}},
        {"description": {"kind": "sight"}, "weights": {}, "fingerprint": {}},
    )
    tree = trees[int(rng.integers(len(trees)))]
    kind = str(rng.choice(["PpoLearner", "success-classifier", "process-reward", ""]))
    path = write_checkpoint(folder / "step_000000001", tree, step=1, kind=kind)
    read: Any = (load_policy, load_classifier, load_process, _sized)[int(rng.integers(4))]
    return heard(lambda: read(path))


def _sized(path: Path) -> None:
    stored = describe_policy(path).description
    with on_meta_device(stored["kind"]):
        described(stored)


def _policy_changed(rng: Rng, folder: Path) -> Outcome:
    """A mutated policy description in a checkpoint with valid hashes: its fields or fingerprint must reveal it."""
    tree = _tree()
    description: dict[str, Any] = json.loads(json.dumps(tree["policy"]["description"]))
    text = json.dumps(description).encode()
    how = (other_type, without_key)[int(rng.integers(2))]
    changed = json.loads(how(rng, text))
    path = write_checkpoint(
        folder / "step_000000001", {**tree, "policy": {**tree["policy"], "description": changed}}, step=1, kind="x"
    )
    return heard(lambda: load_policy(path), Outcome.HARMLESS if changed == description else Outcome.SILENT)


@cache
def _tree() -> Any:
    return read_checkpoint(_newest()).tree


def _text_mutated(source: Callable[[], Path], name: str, read: Callable[[Path], object], used: Outcome) -> Any:
    """A corrupted non-JSON file: bits, cuts, nesting, invalid UTF-8, or not a regular file."""

    def attempt(rng: Rng, folder: Path) -> Outcome:
        place = shutil.copytree(source(), folder / "thing")
        file = place / name
        data = file.read_bytes()
        way = int(rng.integers(6))
        if way == 0:
            no_file(rng, file)
        elif way == 1:
            file.write_bytes(b"<a>" * int(rng.integers(200, 100_000)))
        elif way == 2:
            file.write_bytes(bytes(rng.integers(0, 256, int(rng.integers(0, 4096)), dtype=np.uint8)))
        elif way == 3:
            file.write_bytes(data[: int(rng.integers(len(data)))] + b"\xff\xfe" + data[int(rng.integers(len(data))) :])
        elif way == 4:
            file.write_bytes(_odd_number(rng, data))
        else:
            file.write_bytes(truncated(rng, data))
        return heard(lambda: read(place), used)

    return attempt


def _odd_number(rng: Rng, data: bytes) -> bytes:
    """One number of the text is replaced by NaN, infinity, or a huge value."""
    import re

    found = list(re.finditer(rb'"-?\d+(?:\.\d+)?"', data))
    odd = (b'"nan"', b'"inf"', b'"-1e999"', b'"1e300"', b'""', b'"x"', b'"' + b"9" * 400 + b'"', b'"-1"')
    if not found:
        return data + odd[int(rng.integers(len(odd)))]
    match = found[int(rng.integers(len(found)))]
    return data[: match.start()] + odd[int(rng.integers(len(odd)))] + data[match.end() :]


REFUSED, WARNED, HARMLESS = Outcome.REFUSED, Outcome.WARNED, Outcome.HARMLESS
OF_RUN = (*RUN_FILES, "config.json, opened")
OF_CHECKPOINT = (
    "manifest.json",
    "manifest.json, as a policy",
    "state.json",
    "state.json, whole",
    "weights.safetensors",
    "a classifier's manifest",
    "a process reward's state",
)
JSON_OF_CHECKPOINT = tuple(name for name in OF_CHECKPOINT if name != "weights.safetensors")
OURS = ("meta/robotrl.json", "meta/robotrl.json, its digest")
THEIRS = ("meta/info.json", "meta/stats.json")
BROKEN: tuple[Mutation, ...] = (truncated, hostile, doubled_key)

KINDS: tuple[Kind, ...] = (
    Kind("JSON of a run mutated", (REFUSED, WARNED, HARMLESS), 400, _mutated(OF_RUN, MUTATIONS)),
    Kind("JSON of a checkpoint mutated", (REFUSED,), 500, _mutated(JSON_OF_CHECKPOINT, MUTATIONS)),
    Kind(
        "weights with a turned bit, or cut",
        (REFUSED,),
        150,
        _mutated(("weights.safetensors",), (turned_bit, truncated)),
    ),
    Kind("the manifest of a dataset mutated", (REFUSED, HARMLESS), 250, _mutated(OURS, MUTATIONS)),
    Kind("JSON of another writer's dataset broken", (REFUSED,), 250, _mutated(THEIRS, BROKEN)),
    Kind("no plain file in a run", (REFUSED,), 250, _not_plain(OF_RUN)),
    Kind("no plain file in a checkpoint", (REFUSED,), 250, _not_plain(OF_CHECKPOINT)),
    Kind("no plain file in a dataset", (REFUSED,), 200, _not_plain((*OURS, *THEIRS))),
    Kind("a file is missing", (REFUSED,), 200, _gone),
    Kind("a stranger's checkpoint, whole, of something else", (REFUSED,), 200, _crafted),
    Kind("a stored policy's description mutated", (REFUSED, HARMLESS), 200, _policy_changed),
    Kind(
        "an OpenDRIVE map mutated", (REFUSED, WARNED, HARMLESS), 300, _text_mutated(_map, "map.xodr", _xodr, HARMLESS)
    ),
    Kind("a vocabulary mutated", (REFUSED, HARMLESS), 300, _text_mutated(_words, "words.txt", _vocabulary, HARMLESS)),
)
