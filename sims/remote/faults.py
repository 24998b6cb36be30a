"""Errors of remote sims: faults of served environments, and lost workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError, RobotrlError

_OURS = {kind.__name__: kind for kind in (CapabilityError, ConfigError, DataError, NumericsError)}
_OURS["NotFinite"] = NumericsError


class RemoteFault(RobotrlError):
    """A served environment raised or gave what it may not give, or its worker could not be kept alive."""


class WorkerLost(Exception):
    """A worker process ended or gave no answer in time; its episodes are lost, the others go on.

    Args:
        how: end of the sentence "the worker ...".
        may_pass: True if it was killed or hung, so that another one may come further.
    """

    def __init__(self, how: str, may_pass: bool = False) -> None:
        super().__init__(how)
        self.may_pass = may_pass


def fault_of(who: str, report: Mapping[str, Any]) -> RobotrlError:
    """The error that a worker reported.

    Args:
        who: sim and worker, for the message.
        report: type, message, place ("" if unknown) and method in which it was raised.
    """
    kind, message = str(report["type"]), str(report["message"]) or "no message"
    if kind in _OURS:
        return _OURS[kind](f"{who}: {message}")
    where = f" ({report['where']})" if report["where"] else ""
    verb = "" if kind == "Fault" else f"raised {kind}: "
    if report["doing"] == "making it" and message.startswith("No module named 'robotrl"):
        return ConfigError(
            f"{who}: that Python has no robotrl, which serves its sims: expected one that has it, or MODULE:FUNCTION of"
            " an environment (docs/sims/recipes.md has gym_rows.py for any environment of Gymnasium)"
        )
    if report["doing"] == "making it" and kind in ("ModuleNotFoundError", "ImportError", "AttributeError"):
        return ConfigError(f"{who}: {message}{where}: expected MODULE:FUNCTION that the worker can import: see path")
    return RemoteFault(f"{who}: {report['doing']} {verb}{message}{where}")
