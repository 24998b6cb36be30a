"""Provenance of a run: versions, machine, git state."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
GIT_TIMEOUT_S = 20.0
DECISIVE = ("robotrl", "torch", "numpy", "mujoco", "gymnasium")
"""Packages whose version can change a run's results."""


def versions() -> dict[str, Any]:
    """Python, platform, every installed package, processor and thread counts."""
    packages = dict(found for found in map(_name_and_version, distributions()) if found[0])
    torch = sys.modules.get("torch")
    return {
        "schema_version": SCHEMA_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "threads": {
            "torch": torch.get_num_threads() if torch is not None else None,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "gpus": _gpus(),
    }


def git_state(directory: Path | None = None) -> dict[str, Any]:
    """Git commit of a directory (default: the working directory), and the state of its tracked files.

    `commit` is null outside git and before the first commit; `dirty` says whether tracked files differ from the commit,
    and `diff_sha256` is the SHA-256 of `git diff HEAD` when they do. Untracked files are ignored.
    """
    where = directory or Path.cwd()
    commit = _git(where, "rev-parse", "--verify", "HEAD")
    diff = _git(where, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD") if commit is not None else None
    return {
        "schema_version": SCHEMA_VERSION,
        "commit": commit.decode().strip() if commit is not None else None,
        "dirty": bool(diff) if diff is not None else None,
        "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
    }


def changes_since(before: dict[str, Any]) -> list[str]:
    """Differences of software and hardware that can change results, one phrase each ("torch 2.13.0 -> 2.14.0")."""
    pairs: list[tuple[str, str | None, str | None]] = [
        ("python", before["python"], platform.python_version()),
        ("processor", before["cpu"], _cpu_model()),
    ]
    for name in DECISIVE:
        try:
            now = version(name)
        except PackageNotFoundError:
            now = None
        pairs.append((name, before["packages"].get(name), now))
    return [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]


def _name_and_version(package: Distribution) -> tuple[str, str]:
    """Name and version of an installed package; an empty name if it has none.

    Read from the head of its metadata: `Distribution.metadata` parses the whole description too, in a fifth of a second
    for 170 packages.
    """
    text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    lines = (line.partition(": ") for line in text.partition("\n\n")[0].splitlines())
    fields = {field: value for field, _, value in lines}
    return fields.get("Name", ""), fields.get("Version", "")


def _git(where: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            # a repository's own config may name a program to watch its files
            ["git", "-c", "core.fsmonitor=false", "-C", str(where), *arguments],
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # without git, a repository or a commit there is no state
        return None
    return done.stdout


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
