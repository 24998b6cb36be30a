"""Machine information of a bench, and a check that the machine was idle enough for timings."""

from __future__ import annotations

import importlib
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.kit.figures import have
from robotrl.utils.provenance import git_state, versions

PACKAGES = (
    *("robotrl", "numpy", "torch", "mujoco", "gymnasium", "onnxruntime", "numba"),
    *("stable-baselines3", "rsl-rl-lib", "envpool", "highway-env"),
)
"""Packages whose versions are reported; those that are not installed are left out."""

BUSY_SHARE = 0.25
"""Initial load, as a fraction of the cores, above which a warning is given."""


def machine_info() -> dict[str, Any]:
    """Processor, usable cores, memory, kernel, accelerators, and the load before the bench."""
    if have("torch"):
        # torch reports the GPUs
        importlib.import_module("torch")
    found = versions()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": found["cpu"],
        "cores": usable,
        "ram_gib": _ram_gib(),
        "kernel": f"{platform.system()} {platform.release()}",
        "gpus": found["gpus"],
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and the installed packages of `PACKAGES`, and the git commit of this code if there is one."""
    found = versions()
    git = git_state(Path(__file__).parent)
    out = {"python": str(found["python"])}
    out |= {name: found["packages"][name] for name in PACKAGES if name in found["packages"]}
    if git["commit"] is not None:
        out["commit"] = git["commit"][:12] + ("+changes" if git["dirty"] else "")
    return out


def busy(machine: dict[str, Any]) -> str | None:
    """A warning if other processes were running; None if the machine was idle."""
    load, cores = machine["load_at_start"], machine["cores"]
    if load <= BUSY_SHARE * cores:
        return None
    return f"load was {load} on {cores} cores before the bench began: trust ratios of pairs, not absolute numbers"


def _ram_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
