"""Run directories: checkpoints, logs, locks, random state, inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robotrl.utils.lazy import lazy_names

if TYPE_CHECKING:
    from robotrl.run.directory import Run

__all__ = ["Run"]

# the modules of this package are imported one by one: some of them need no torch
__getattr__ = lazy_names(__name__, {"Run": "robotrl.run.directory"})
