"""How the kernels of the driving world are compiled: one source for CPU threads and for CUDA.

Every kernel works on one env and is a plain function over arrays. numba compiles it for the CPU here, without the
interpreter's lock, and a CUDA kernel may call the same function for the env of its thread. The compiled code is kept
between runs in a folder that is named after the source of *all* kernels: numba itself looks at one file only, and would
go on using a kernel whose helper in another file has changed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
numba: Any = importlib.import_module("numba")
"""It comes without types."""

SOURCES = (
    "backends.jit",
    "backends.kernels",
    "geometry",
    "judge",
    "plan",
    "render.raster",
    "render.vectors",
    "rewards",
    "roads.lanes",
    "roads.maps",
    "tables",
    "traffic.driver",
    "traffic.ego",
    "traffic.following",
    "traffic.lane_changes",
    "traffic.pedestrians",
    "traffic.right_of_way",
    "traffic.scenarios",
    "traffic.step",
    "world",
)
"""Modules of `sims/bev` with kernels, or with constants that kernels read."""
FOLDER = Path(__file__).resolve().parents[1]
MATHS = {"contract", "reassoc", "arcp", "nsz", "afn"}
"""Liberties that the compiler may take; NaN and infinity keep their meaning."""


@functools.cache
def cache_folder() -> Path:
    """Where compiled kernels of this very source are kept; made if it does not exist.

    `ROBOTRL_CACHE` names another place than the user's cache folder. Where that cannot be written, it is a temporary
    folder.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(FOLDER.joinpath(*name.split(".")).with_suffix(".py").read_bytes())
    home = os.environ.get("ROBOTRL_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "robotrl" / f"bev-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="robotrl-bev-"))
    return folder


def kernel(function: F) -> F:
    """Compile a function of one env, or a helper of such; callable from Python, from other kernels and from CUDA."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())
    try:
        compiled = numba.njit(
            cache=True, nogil=True, fastmath=MATHS, error_model="numpy", forceinline=True, _nrt=False
        )(function)
    finally:
        numba.config.CACHE_DIR = before
    return cast(F, compiled)
