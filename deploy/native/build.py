"""Build of the native runtime: two programs and two libraries, compiled by g++ into the user's cache.

The folder's name is a hash of sources, flags, compiler and processor, so that an update of any of them builds anew and
a home directory may be shared by machines. A computer without a compiler takes a folder that was built on another of
the same processor: `$ROBOTRL_NATIVE` names it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from robotrl.errors import ConfigError
from robotrl.utils.files import cache_folder
from robotrl.utils.hardware import processor_features

GIVEN = "ROBOTRL_NATIVE"
"""Environment variable: a folder that was built before, in the place of a compiler."""
_STAMP = "sources.sha256"
SOURCES = Path(__file__).with_name("src")
FLAGS = ("-std=c++17", "-march=native", "-fPIC", "-Wall", "-Wextra")
"""Flags of every unit. Nowhere -ffast-math: it removes the tests for NaN."""
FAST = ("-O3",)
EXACT = ("-O3", "-ffp-contract=off")
"""Flags of the servo and of the noise: no fused arithmetic, since bits must equal numpy's, or those of another part."""
FAST_UNITS = ("tape.cpp", "engine_api.cpp")
"""Units of the engine, whose sums have an order of their own anyway."""
_ENGINE_UNITS = ("tape.cpp", "noise.cpp")
_SERVO_UNITS = (
    *("servo.cpp", "servo_parts.cpp", "settings.cpp", "block.cpp", "checks.cpp", "risk.cpp", "history.cpp"),
    *("safety.cpp", "sensors.cpp", "plan.cpp", "links.cpp"),
)
_INFER_UNITS = ("links.cpp", "block.cpp", "realtime.cpp", "ort_graph.cpp", "inference.cpp", "infer_main.cpp")
_BUILT = {
    "engine": (*_ENGINE_UNITS, "engine_api.cpp"),
    "servo": (*_SERVO_UNITS, "realtime.cpp", "main.cpp"),
    "infer": (
        *_ENGINE_UNITS,
        "links.cpp",
        "block.cpp",
        "realtime.cpp",
        "ort_graph.cpp",
        "inference.cpp",
        "infer_main.cpp",
    ),
    "conformance": (*_SERVO_UNITS, "conformance.cpp"),
}
_LIBRARIES = ("-ldl",)
"""Libraries of every part; newer systems have it in their C library."""
_PROGRAMS = ("servo", "infer")
"""The other parts are libraries."""


class NativeRuntime(NamedTuple):
    """Files of a build."""

    engine: Path
    """Library of the inference engine."""
    servo: Path
    """Program of the servo."""
    infer: Path
    """Program that infers."""
    conformance: Path
    """Library of the servo's parts, for tests that compare them with Python's."""


def native_runtime() -> NativeRuntime:
    """The files of the native runtime, compiled if they are not in the cache.

    Raises:
        ConfigError: there is no compiler, it failed, or the cache cannot be written; `$ROBOTRL_NATIVE` names a folder
            that was not built from this version.
    """
    given = os.environ.get(GIVEN, "")
    if given:
        return _given(Path(given))
    compiler = _compiler()
    root = cache_folder()
    if root is None:
        raise ConfigError("the cache folder cannot be written: expected $XDG_CACHE_HOME or ~/.cache to be writable")
    folder = root / f"native-{_key(compiler)}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="native-", dir=root) as scratch:
            made = Path(scratch) / "build"
            made.mkdir()
            _compile(compiler, made)
            try:
                made.rename(folder)
            except OSError:
                # another process has built the same meanwhile
                if not folder.is_dir():
                    raise
    return _files(folder)


def _files(folder: Path) -> NativeRuntime:
    return NativeRuntime(*(folder / _file(part) for part in ("engine", "servo", "infer", "conformance")))


def _given(folder: Path) -> NativeRuntime:
    """The files of a folder that was built elsewhere.

    Raises:
        ConfigError: it is none, or of other sources.
    """
    try:
        built_from = (folder / _STAMP).read_text()
    except OSError as error:
        raise ConfigError(f"{GIVEN} is {str(folder)!r}: expected a folder that robotrl build native made") from error
    if built_from != _sources():
        raise ConfigError(f"{GIVEN} is {str(folder)!r}: built by another version of robotrl, expected this one")
    return _files(folder)


def _sources() -> str:
    """Hash of the sources."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".cpp", ".hpp"):
            digest.update(f"\0{source.name}\0".encode() + source.read_bytes())
    return digest.hexdigest()


def _file(part: str) -> str:
    return f"robotrl-{part}" if part in _PROGRAMS else f"librobotrl-{part}.so"


def _compiler() -> list[str]:
    """Compiler command: `$CXX` if set, else g++.

    Raises:
        ConfigError: there is none.
    """
    words = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    found = shutil.which(words[0])
    if found is None:
        raise ConfigError(
            f"the native runtime needs a C++ compiler and {words[0]!r} was not found: expected g++ 9 or newer"
            " (apt install g++), or another compiler in $CXX"
        )
    return [found, *words[1:]]


def _key(compiler: list[str]) -> str:
    asked = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    words = [*compiler, asked.stdout, *FLAGS, *FAST, *EXACT, repr(_BUILT), platform.machine(), processor_features()]
    return hashlib.sha256("\0".join([*words, _sources()]).encode()).hexdigest()[:24]


def _compile(compiler: list[str], folder: Path) -> None:
    """Compile every unit once, and link the parts.

    Raises:
        ConfigError: the compiler failed; its first error is named.
    """
    for unit in sorted({unit for units in _BUILT.values() for unit in units}):
        more = FAST if unit in FAST_UNITS else EXACT
        _run([*compiler, *FLAGS, *more, "-c", str(SOURCES / unit), "-o", str(folder / f"{unit}.o")], unit)
    for part, units in _BUILT.items():
        objects = [str(folder / f"{unit}.o") for unit in units]
        kind = () if part in _PROGRAMS else ("-shared",)
        _run([*compiler, *kind, *objects, "-o", str(folder / _file(part)), *_LIBRARIES], _file(part))
    for made in folder.glob("*.o"):
        made.unlink()
    (folder / _STAMP).write_text(_sources())


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines()
    reason = next((line for line in lines if "error" in line), lines[0] if lines else f"exit code {done.returncode}")
    raise ConfigError(f"the native runtime: {Path(command[0]).name} cannot build {what}: {reason[:300]}")
