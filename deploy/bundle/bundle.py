"""Reading and verification of bundles.

A bundle contains no code, nothing is unpickled, and no file is read that the manifest does not list. Files are read
once, into memory, so that the hashed bytes are those that run.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import onnx_scan
from robotrl.deploy.bundle.manifest import MANIFEST_FILE, Manifest
from robotrl.deploy.bundle.signature import MAX_SIGNATURE_BYTES, SIGNATURE_FILE, check_signature
from robotrl.errors import DataError, nearest, short

MAX_MANIFEST_BYTES = 4 << 20
MAX_FILE_BYTES = 1 << 30
MAX_FILES = 16
STEERED_NOISE = "steered_noise"
"""Name of the steering graph's output, and of its golden ticks."""
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_\-]*(\.[a-z0-9]+)+")


@dataclass(frozen=True)
class GoldenTicks:
    """Recorded ticks, each array with the tick as first axis.

    Args:
        observations: (n, ...) float32 for each observation key.
        noise: (n, H, A) float32, or None for a policy without noise.
        actions: (n, H, A) float32, in the robot's units.
        normalized_action: (n, H, A) float32, normalised.
        states: (n, ...) float32 for each input of recurrent state, before the tick.
        next_states: the same after it, by the name of the input that it feeds.
        steered_noise: (n, H, A) float32, the noise that the steering graph chose; None without one.
    """

    observations: dict[str, np.ndarray]
    noise: np.ndarray | None
    actions: np.ndarray
    normalized_action: np.ndarray
    states: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    next_states: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    steered_noise: np.ndarray | None = None

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the file by name."""
        arrays = {f"obs/{key}": value for key, value in self.observations.items()}
        arrays |= {"actions": self.actions, "raw_action": self.normalized_action}
        arrays |= {f"state/{key}": value for key, value in self.states.items()}
        arrays |= {f"next_state/{key}": value for key, value in self.next_states.items()}
        given = {"noise": self.noise, STEERED_NOISE: self.steered_noise}
        return arrays | {name: array for name, array in given.items() if array is not None}


@dataclass(frozen=True)
class Bundle:
    """A verified bundle in memory."""

    path: Path
    manifest: Manifest
    files: dict[str, bytes]
    golden: GoldenTicks
    facts: onnx_scan.Facts

    @property
    def graph(self) -> bytes:
        """The policy graph."""
        return self.files[self.manifest.graphs.policy]

    @property
    def steer(self) -> bytes | None:
        """The steering graph; None in a bundle without one."""
        name = self.manifest.graphs.steer
        return None if name is None else self.files[name]

    @property
    def risk(self) -> bytes | None:
        """The risk graph; None in a bundle without a reflex."""
        name = self.manifest.graphs.risk
        return None if name is None else self.files[name]


def open_bundle(path: str | os.PathLike[str], signed_by: str | os.PathLike[str] | None = None) -> Bundle:
    """Read and verify a bundle.

    Args:
        path: the bundle's directory.
        signed_by: public Ed25519 key by which it must be signed, a PEM file; None for any bundle.

    Raises:
        ConfigError: the file of the key holds none.
        DataError: names the file or field and what is wrong: no bundle there, a newer schema, a file that is missing,
            extra, a link, of another size or content, a graph that is not self-contained, golden ticks that do not fit
            the manifest, or a signature that is missing or wrong.
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"bundle {str(root)!r} is not a directory: expected what `robotrl export` wrote")
    try:
        entries = _listing(root)
    except OSError as error:
        raise DataError(f"bundle {str(root)!r} cannot be read: {error.strerror}") from error
    if MANIFEST_FILE not in entries:
        raise DataError(f"bundle {str(root)!r} has no {MANIFEST_FILE}: expected what `robotrl export` wrote")
    text = _read(root, MANIFEST_FILE, None, MAX_MANIFEST_BYTES)
    if signed_by is not None:
        # before anything of it is parsed
        signed = SIGNATURE_FILE in entries
        signature = _read(root, SIGNATURE_FILE, None, MAX_SIGNATURE_BYTES) if signed else None
        check_signature(f"bundle {str(root)!r}", text, signature, signed_by)
    manifest = schema.parse(text)
    for name in manifest.files:
        # Checked by form, not by resolving: a name that could leave the directory never reaches the file system.
        if not _FILE_NAME.fullmatch(name) or name in (MANIFEST_FILE, SIGNATURE_FILE):
            raise DataError(f"manifest.files names {short(repr(name))}: expected a plain lower-case file name")
    _compare(root, entries, manifest)
    files = {name: _verified(root, name, manifest) for name in sorted(manifest.files)}
    graphs = [g for g in (manifest.graphs.policy, manifest.graphs.steer, manifest.graphs.risk) if g is not None]
    facts = {name: onnx_scan.scan(files[name], name) for name in graphs}
    golden = _golden(files[manifest.golden.file], manifest)
    return Bundle(root, manifest, files, golden, facts[manifest.graphs.policy])


def _listing(root: Path) -> set[str]:
    names: set[str] = set()
    with os.scandir(root) as found:
        for entry in found:
            if entry.is_symlink():
                raise DataError(f"bundle {str(root)!r}: {entry.name!r} is a symbolic link: expected plain files only")
            if not entry.is_file(follow_symlinks=False):
                raise DataError(f"bundle {str(root)!r}: {entry.name!r} is not a plain file")
            names.add(entry.name)
            if len(names) > MAX_FILES:
                raise DataError(f"bundle {str(root)!r} holds more than {MAX_FILES} files: not a bundle")
    return names


def _compare(root: Path, entries: set[str], manifest: Manifest) -> None:
    wanted = {MANIFEST_FILE, *manifest.files}
    for name in sorted(entries - wanted - {SIGNATURE_FILE}):
        close = nearest(name, wanted - entries)
        hint = f" (did you rename {close!r}?)" if close else ""
        raise DataError(f"bundle {str(root)!r}: file {name!r} is not listed in its manifest{hint}")
    for name in sorted(wanted - entries):
        raise DataError(f"bundle {str(root)!r}: file {name!r} is missing")


def _read(root: Path, name: str, size: int | None, cap: int) -> bytes:
    """The content of one file, opened without following links, at most `cap` bytes."""
    try:
        handle = os.open(root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"bundle {str(root)!r}: {name!r} cannot be opened: {error.strerror}") from error
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"bundle {str(root)!r}: {name!r} is not a plain file")
        if size is not None and status.st_size != size:
            kind = "truncated" if status.st_size < size else "longer than it was"
            raise DataError(
                f"bundle {str(root)!r}: {name!r} has {status.st_size} bytes: expected {size}, the file is {kind}"
            )
        if status.st_size > cap:
            raise DataError(f"bundle {str(root)!r}: {name!r} has {status.st_size} bytes: at most {cap} are accepted")
        data = file.read(status.st_size + 1)
    if len(data) != status.st_size:
        raise DataError(f"bundle {str(root)!r}: {name!r} changed while it was read")
    return data


def _verified(root: Path, name: str, manifest: Manifest) -> bytes:
    entry = manifest.files[name]
    data = _read(root, name, entry.bytes, MAX_FILE_BYTES)
    found = hashlib.sha256(data).hexdigest()
    if found != entry.sha256:
        raise DataError(
            f"bundle {str(root)!r}: {name!r} has SHA-256 {found[:12]}...: expected {entry.sha256[:12]}..., "
            "the file was altered"
        )
    return data


def _golden(data: bytes, manifest: Manifest) -> GoldenTicks:
    name, ticks = manifest.golden.file, manifest.golden.ticks
    try:
        arrays: dict[str, np.ndarray] = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name}: not readable as safetensors: {short(str(error))}") from error
    chunk = (manifest.timing.chunk_length, len(manifest.action.names))
    wanted = {f"obs/{port.name}": port.shape for port in manifest.read}
    wanted |= {"actions": chunk, "raw_action": chunk}
    for port in manifest.states:
        wanted |= {f"state/{port.name}": port.shape, f"next_state/{port.name}": port.shape}
    if manifest.sampler.noise_shape is not None:
        wanted["noise"] = manifest.sampler.noise_shape
    if manifest.steer is not None and manifest.sampler.noise_shape is not None:
        wanted[STEERED_NOISE] = manifest.sampler.noise_shape
    if set(arrays) != set(wanted):
        raise DataError(f"{name}: holds {short(repr(sorted(arrays)))}: expected {short(repr(sorted(wanted)))}")
    for key, shape in wanted.items():
        array = arrays[key]
        if array.shape != (ticks, *shape) or array.dtype != np.float32:
            raise DataError(
                f"{name}: {key!r} is {array.dtype} of shape {array.shape}: expected float32 of {(ticks, *shape)}"
            )
        if not np.isfinite(array).all():
            raise DataError(f"{name}: {key!r} holds a number that is not finite")
    observations = {port.name: arrays[f"obs/{port.name}"] for port in manifest.read}
    states, after = (
        {port.name: arrays[f"{side}/{port.name}"] for port in manifest.states} for side in ("state", "next_state")
    )
    noise, chosen = arrays.get("noise"), arrays.get(STEERED_NOISE)
    return GoldenTicks(observations, noise, arrays["actions"], arrays["raw_action"], states, after, chosen)
