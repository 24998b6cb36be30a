"""Real-time control of a robot: supervision, safety chain, log, report and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robotrl.utils.lazy import lazy_names

if TYPE_CHECKING:
    from robotrl.deploy.control.run import run_control

__all__ = ["run_control"]

# the safety chain and the log are imported without the processes
__getattr__ = lazy_names(__name__, {"run_control": "robotrl.deploy.control.run"})
