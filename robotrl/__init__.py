"""robotrl: train, fine-tune and deploy robot policies.

Importing this package is fast: the names below are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from robotrl import moved

__version__ = "0.1.0"
moved.install()

if TYPE_CHECKING:
    from robotrl.api.exporting import export
    from robotrl.registry import make_sim
    from robotrl.rollout.evaluate import evaluate
    from robotrl.run.policy_checkpoint import load_policy

_LAZY = {
    "make_sim": "robotrl.registry",
    "load_policy": "robotrl.run.policy_checkpoint",
    "evaluate": "robotrl.rollout.evaluate",
    "export": "robotrl.api.exporting",
}

__all__ = ["__version__", "evaluate", "export", "load_policy", "make_sim"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in ("sims", "policies", "deploy", "configs"):
        return importlib.import_module(f"robotrl.{name}")
    raise AttributeError(f"module 'robotrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
