"""Compilation of the driving kernels with numba: one source for CPU threads and CUDA.

Every kernel is a plain function over arrays that processes one env. numba compiles it for the CPU here (without the
GIL), and a CUDA kernel may call the same function for the env of its thread. Compiled code is cached between runs in a
folder named after a hash of *all* kernel sources: numba's own check covers one file only, and would keep using a kernel
whose helper in another file has changed.
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
"""The numba module, untyped."""

SOURCES = (
    "bev.kernels",
    "bev.traffic.lane_changes",
    "bev.traffic.learned.driving",
    "bev.traffic.learned.features",
    "bev.traffic.learned.forward",
    "bev.traffic.learned.layout",
    "bev.traffic.learned.network",
    "bev.traffic.learned.probe",
    "bev.traffic.pedestrians",
    "bev.traffic.placing",
    "bev.traffic.scenarios",
    "bev.traffic.step",
    "bev.traffic.surroundings",
    "bev.traffic.whims",
    "carla.kernels",
    "driving.backends.jit",
    "driving.geometry",
    "driving.judge",
    "driving.kernels",
    "driving.plan",
    "driving.render.localization",
    "driving.render.raster",
    "driving.render.vectors",
    "driving.rewards",
    "driving.roads.lane_index",
    "driving.roads.lanes",
    "driving.roads.levels",
    "driving.roads.maps",
    "driving.roads.spots",
    "driving.scene",
    "driving.tables",
    "driving.traffic.asked_speed",
    "driving.traffic.driver",
    "driving.traffic.ego",
    "driving.traffic.following",
    "driving.traffic.heights",
    "driving.traffic.right_of_way",
    "driving.world",
    "warp.replay",
    "warp.steps",
    "warp.tracing",
    "warp.warping",
)
"""Modules of `sims` with driving kernels or with constants that these use."""
FOLDER = Path(__file__).resolve().parents[2]
MATHS = {"contract", "reassoc", "arcp", "nsz", "afn"}
"""Fast-math flags of the compiler; NaN and infinity keep their semantics."""


@functools.cache
def cache_folder() -> Path:
    """Cache folder for the compiled kernels of the present source, created if missing.

    It is inside `ROBOTRL_CACHE` if set, else inside the user's cache folder, or a temporary folder if that is not
    writable.
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
    """Compile a per-env function or helper; callable from Python, from other kernels and from CUDA."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())
    try:
        compiled = numba.njit(
            cache=True, nogil=True, fastmath=MATHS, error_model="numpy", forceinline=True, _nrt=False
        )(function)
    finally:
        numba.config.CACHE_DIR = before
    return cast(F, compiled)
