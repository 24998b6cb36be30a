"""The real-time control loop: observe, infer, check, send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robotrl.deploy.control.run import run_control

__all__ = ["run_control"]


def __getattr__(name: str) -> Any:
    # the safety chain and the log are imported without the loop
    if name == "run_control":
        from robotrl.deploy.control.run import run_control

        return run_control
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
