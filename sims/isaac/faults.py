"""Errors raised by Isaac environments, with the place where they occurred."""

from __future__ import annotations

from types import TracebackType

from robotrl.errors import RobotrlError


class IsaacFault(RobotrlError):
    """An Isaac environment raised an exception or returned what its surface does not allow."""


class Guard:
    """Context manager around calls of an environment: any exception becomes an error that names the method.

    Errors of robotrl pass unchanged.

    Args:
        sim: name of the sim, for the message.
        method: name of the method.
    """

    def __init__(self, sim: str, method: str) -> None:
        self._sim, self._method = sim, method

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Convert an exception of the environment."""
        if isinstance(error, Exception) and not isinstance(error, RobotrlError):
            text = " ".join(str(error).split()) or "no message"
            raise IsaacFault(f"{self._sim}: {self._method}() raised {type(error).__name__}: {text}") from error
