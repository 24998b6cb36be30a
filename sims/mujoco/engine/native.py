"""Compiles and loads a small C file at first use; the library is cached in the user's cache directory."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from robotrl.utils.files import cache_folder
from robotrl.utils.hardware import processor_features

FLAGS = ("-O3", "-march=native", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""Compiler flags without contraction or reordering of arithmetic, so that results equal those of numpy."""
COMPILERS = ("cc", "gcc", "clang")


class NoCompiler(Exception):
    """No C compiler was found, or it failed; the message is one line."""


def compiled(source: Path) -> ctypes.CDLL:
    """Compile a C file and load it as a shared library.

    Cached for each combination of source text, compiler, flags and processor.

    Args:
        source: the file.

    Raises:
        NoCompiler: no compiler (`$CC`, cc, gcc, clang) was found, or it failed.
    """
    command = _compiler()
    text = source.read_bytes()
    words = [*command, *FLAGS, platform.machine(), processor_features()]
    key = hashlib.sha256(text + "\0".join(words).encode()).hexdigest()[:24]
    name = f"{source.stem}-{key}.so"
    folder = cache_folder()
    if folder is not None and (folder / name).is_file():
        try:
            return ctypes.CDLL(str(folder / name))
        except OSError:
            pass  # a damaged file is compiled again
    # without a cache directory the library exists only while it is loaded
    with tempfile.TemporaryDirectory(prefix="robotrl-", dir=folder) as scratch:
        target = Path(scratch) / name
        done = subprocess.run([*command, *FLAGS, str(source), "-o", str(target), "-lm"], capture_output=True, text=True)
        if done.returncode != 0 or not target.is_file():
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
            raise NoCompiler(f"{command[0]} cannot compile {source.name}: {reason}")
        if folder is not None:
            # atomic rename: other processes may be compiling the same file
            target = target.replace(folder / name)
        return ctypes.CDLL(str(target))


def _compiler() -> list[str]:
    """Compiler command: `$CC` if set, else the first of the usual compilers that exists."""
    asked = shlex.split(os.environ.get("CC", ""))
    for words in [asked] if asked else [[name] for name in COMPILERS]:
        found = shutil.which(words[0])
        if found is not None:
            return [found, *words[1:]]
    raise NoCompiler(f"no C compiler found ({shlex.join(asked) if asked else ', '.join(COMPILERS)})")
