"""Compiles a small C file of ours at first use and loads it; the result is kept in the user's cache directory."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""No contraction, and nothing that reorders arithmetic: results are those of the same operations in numpy."""
COMPILERS = ("cc", "gcc", "clang")


class NoCompiler(Exception):
    """There is no C compiler, or it fails: one line that says which."""


def compiled(source: Path) -> ctypes.CDLL:
    """The shared library of a C file.

    It is compiled once for each text of the file, compiler, flags and processor.

    Args:
        source: the file.

    Raises:
        NoCompiler: none of `$CC`, cc, gcc and clang is there, or the one found fails.
    """
    command = _compiler()
    text = source.read_bytes()
    words = [*command, *FLAGS, platform.machine(), _processor()]
    key = hashlib.sha256(text + "\0".join(words).encode()).hexdigest()[:24]
    name = f"{source.stem}-{key}.so"
    folder = _cache()
    if folder is not None and (folder / name).is_file():
        try:
            return ctypes.CDLL(str(folder / name))
        except OSError:
            pass  # a damaged file: it is made anew
    # without a cache directory it lives as long as the process has it loaded
    with tempfile.TemporaryDirectory(prefix="robotrl-", dir=folder) as scratch:
        target = Path(scratch) / name
        done = subprocess.run([*command, *FLAGS, str(source), "-o", str(target), "-lm"], capture_output=True, text=True)
        if done.returncode != 0 or not target.is_file():
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
            raise NoCompiler(f"{command[0]} cannot compile {source.name}: {reason}")
        if folder is not None:
            # whole or not at all: other processes may be doing the same
            target = target.replace(folder / name)
        return ctypes.CDLL(str(target))


def _compiler() -> list[str]:
    """`$CC` if it is set, else the first of the usual names."""
    asked = shlex.split(os.environ.get("CC", ""))
    for words in [asked] if asked else [[name] for name in COMPILERS]:
        found = shutil.which(words[0])
        if found is not None:
            return [found, *words[1:]]
    raise NoCompiler(f"no C compiler found ({shlex.join(asked) if asked else ', '.join(COMPILERS)})")


def _cache() -> Path | None:
    """`robotrl` in the user's cache directory, made if need be; None where it cannot be written."""
    fallback = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or fallback).expanduser() / "robotrl"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


def _processor() -> str:
    """What tells processors with different instructions apart: a home directory may be shared by several."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()
