"""Faults of foreign environments, and where they came from."""

from __future__ import annotations

from collections.abc import Callable

from robotrl.errors import RobotrlError


class EnvironmentFault(RobotrlError):
    """A Gymnasium environment raised, or gave what its spaces do not allow."""


class Foreign:
    """Surrounds a call of an environment's method: what it raises, whatever that is, becomes a fault that says where.

    Errors of ours say already what is wrong, and pass. It may be entered any number of times; one that is made anew for
    each step would cost as much again.

    Args:
        name: of the method.
        fault: makes an error of "NAME() raised ...".
    """

    def __init__(self, name: str, fault: Callable[[str], EnvironmentFault]) -> None:
        self._name, self._fault = name, fault

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Name an error."""
        if isinstance(error, Exception) and not isinstance(error, RobotrlError):
            raise self._fault(f"{self._name}() raised {type(error).__name__}: {line(error)}") from error


def line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or "no message"
