"""Run directories: checkpoints, logs, locks, random state, inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robotrl.run.directory import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    # the modules of this package are imported one by one: some of them need no torch
    if name == "Run":
        from robotrl.run.directory import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
