"""Deployment: export of trained policies (with torch), and a runtime for robots (without torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robotrl.utils.lazy import lazy_names

if __name__ != "robotrl.deploy":
    raise ImportError(f"import this package as robotrl.deploy, not as {__name__}")

if TYPE_CHECKING:
    from robotrl.deploy.control.run import run_control
    from robotrl.deploy.runtime import Controller

_LAZY = {"Controller": "robotrl.deploy.runtime", "run_control": "robotrl.deploy.control.run"}

__all__ = ["Controller", "run_control"]

# import onnxruntime only when one of them is needed, not with the package
__getattr__ = lazy_names(__name__, _LAZY)
