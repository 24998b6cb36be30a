"""Errors raised by third-party environments, with the place where they occurred."""

from __future__ import annotations

from collections.abc import Callable

from robotrl.errors import RobotrlError


class EnvironmentFault(RobotrlError):
    """A Gymnasium environment raised an exception or returned a value outside its spaces."""


class Foreign:
    """Context manager around calls of environment methods: turns any exception into an error that names the place.

    Errors of robotrl pass unchanged. One instance may be entered any number of times, which is cheaper than a new one
    for each step.

    Args:
        name: name of the method.
        fault: creates the error from the text "NAME() raised ...".
    """

    def __init__(self, name: str, fault: Callable[[str], EnvironmentFault]) -> None:
        self._name, self._fault = name, fault

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Convert an exception that is not robotrl's own."""
        if isinstance(error, Exception) and not isinstance(error, RobotrlError):
            raise self._fault(f"{self._name}() raised {type(error).__name__}: {line(error)}") from error


def line(error: BaseException) -> str:
    """Message of an error in one line."""
    return " ".join(str(error).split()) or "no message"
