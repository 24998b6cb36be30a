"""From a trained policy to a robot: export (torch), and a runtime that needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "robotrl.deploy":
    raise ImportError(f"import this package as robotrl.deploy, not as {__name__}")

if TYPE_CHECKING:
    from robotrl.deploy.runtime import Controller

__all__ = ["Controller"]


def __getattr__(name: str) -> Any:
    # onnxruntime is imported when the controller is asked for, not with the package
    if name == "Controller":
        from robotrl.deploy.runtime import Controller

        return Controller
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
