"""The package as installed: applies pyproject's package-dir map without building anything."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def setuptools_config() -> dict[str, Any]:
    """The `[tool.setuptools]` table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def folder_of(package: str) -> Path:
    """The folder of an importable package, relative to the repository ("robotrl.sims.mujoco" -> sims/mujoco)."""
    mapped = setuptools_config()["package-dir"]
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in mapped:
            return Path(mapped[prefix], *parts[length:])
    raise KeyError(package)


def stage(target: Path) -> dict[Path, Path]:
    """Copy every listed package to `target` in the layout of a wheel, and the benchmarks beside it.

    Returns:
        Staged Python files to their sources, both as relative paths.
    """
    shutil.rmtree(target, ignore_errors=True)
    origin: dict[Path, Path] = {}
    folders = {Path(*package.split(".")): ROOT / folder_of(package) for package in setuptools_config()["packages"]}
    benches = [path.parent for path in (ROOT / "benchmarks").rglob("__init__.py")]
    folders |= {path.relative_to(ROOT): path for path in benches}
    for folder, path in folders.items():
        (target / folder).mkdir(parents=True, exist_ok=True)
        for source in sorted(path.iterdir()):
            if source.suffix in (".py", ".pyi") or source.name == "py.typed":
                shutil.copyfile(source, target / folder / source.name)
                origin[folder / source.name] = source.relative_to(ROOT)
    return origin
