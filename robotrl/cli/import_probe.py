"""Tries to import modules in separate processes, and reports the results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SCRIPT = """
import importlib, importlib.util, json, os, sys
sys.path[:] = json.loads(sys.argv[1])
names = sys.argv[2:]
out = {"versions": {}, "absent": [], "failed": {}, "torch": None}
for name in names:
    if importlib.util.find_spec(name.split(".")[0]) is None:
        out["absent"].append(name)
        continue
    try:
        module = importlib.import_module(name)
    except Exception as error:
        out["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
        continue
    if "." not in name:
        out["versions"][name] = str(getattr(module, "__version__", "present"))
if "torch" in out["versions"]:
    import torch
    out["torch"] = {
        "version": torch.__version__,
        "built_for_cuda": torch.version.cuda,
        "sees_gpu": torch.cuda.is_available(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }
print("\\n" + json.dumps(out))
"""


@dataclass(frozen=True)
class ImportProbe:
    """Result of importing some modules."""

    versions: dict[str, str] = field(default_factory=dict[str, str])
    """Versions of the imported modules, without submodules."""
    absent: tuple[str, ...] = ()
    """Modules that are not installed."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Installed modules that do not import, with the first line of the reason."""
    torch: dict[str, str | int | bool | None] | None = None
    """Facts about torch, if it was among them."""
    crash: str | None = None
    """Cause of death of the process, if it crashed."""


def probe_modules(groups: Mapping[str, Sequence[str]], limit_s: float = 120.0) -> dict[str, ImportProbe]:
    """Import each group of modules in a fresh process, all groups at the same time.

    Args:
        groups: name of a group to modules, imported in this order.
        limit_s: seconds after which a process that does not end counts as crashed.
    """
    command = [sys.executable, "-c", _SCRIPT, json.dumps(sys.path)]
    running = {
        name: subprocess.Popen([*command, *modules], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name, modules in groups.items()
    }
    return {name: _collect(process, limit_s) for name, process in running.items()}


def _collect(process: subprocess.Popen[str], limit_s: float) -> ImportProbe:
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return ImportProbe(crash=f"importing it took more than {limit_s:.0f} s")
    if process.returncode != 0:
        last = err.strip().splitlines()[-1:] or [""]
        return ImportProbe(crash=f"importing it ended the process with code {process.returncode}: {last[0]}")
    data: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return ImportProbe(data["versions"], tuple(data["absent"]), data["failed"], data["torch"])
