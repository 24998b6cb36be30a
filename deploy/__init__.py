"""Deployment: export of trained policies (with torch), and a runtime for robots (without torch)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "robotrl.deploy":
    raise ImportError(f"import this package as robotrl.deploy, not as {__name__}")

if TYPE_CHECKING:
    from robotrl.deploy.control.run import run_control
    from robotrl.deploy.runtime import Controller

_LAZY = {"Controller": "robotrl.deploy.runtime", "run_control": "robotrl.deploy.control.run"}

__all__ = ["Controller", "run_control"]


def __getattr__(name: str) -> Any:
    # import onnxruntime only when one of them is needed, not with the package
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
