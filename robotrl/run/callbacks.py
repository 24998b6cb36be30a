"""User callbacks in a training run: subclass `Callback` and override the methods you need.

    class StopWhenGood(Callback):
        def on_start(self, run):
            self.run = run

        def on_evaluation(self, step, result):
            if result.rate.low > 0.95:
                self.run.request_stop("good enough")

An exception in a callback ends the run like Ctrl-C does: the loop saves first, then the error names the callback.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robotrl.errors import ConfigError, RobotrlError, nearest
from robotrl.run.directory import Run
from robotrl.utils.user_module import user_module

LOGGER = logging.getLogger("robotrl")


class Callback:
    """Base class of callbacks; every method does nothing until you override it."""

    def on_start(self, run: Run) -> None:
        """Called once before the first iteration; use `run.path`, `run.config` and `run.request_stop(reason)`."""

    def on_iteration(self, step: int, scalars: Mapping[str, float]) -> None:
        """Called after each iteration, with the logged scalars."""

    def on_evaluation(self, step: int, result: Any) -> None:
        """Called after each periodic evaluation, with its `EvalResult`."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Called after each checkpoint, with its directory."""

    def on_end(self, run: Run) -> None:
        """Called once after the last checkpoint, also when the run was stopped."""


class CallbackList:
    """Calls several callbacks in order; the first failure stops the run in an orderly way.

    A callback that failed is not called again; the others are. The loop sees `run.stop_requested`, saves, and calls
    `on_end`, which raises the failure.

    Args:
        run: the run, which is stopped when a callback fails.
        callbacks: called in this order.
    """

    def __init__(self, run: Run, callbacks: Sequence[Callback] = ()) -> None:
        self._run = run
        self._callbacks = list(callbacks)
        self._failure: tuple[str, Exception] | None = None

    def on_start(self) -> None:
        """See `Callback.on_start`."""
        self._call("on_start", self._run)

    def on_iteration(self, step: int, scalars: Mapping[str, float]) -> None:
        """See `Callback.on_iteration`."""
        self._call("on_iteration", step, scalars)

    def on_evaluation(self, step: int, result: Any) -> None:
        """See `Callback.on_evaluation`."""
        self._call("on_evaluation", step, result)

    def on_checkpoint(self, step: int, path: Path) -> None:
        """See `Callback.on_checkpoint`."""
        self._call("on_checkpoint", step, path)

    def on_end(self) -> None:
        """See `Callback.on_end`.

        Raises:
            RobotrlError: a callback failed, now or earlier; its own exception is the cause.
        """
        self._call("on_end", self._run)
        if self._failure is not None:
            where, error = self._failure
            raise RobotrlError(f"callback {where} failed: {type(error).__name__}: {error}") from error

    def _call(self, method: str, *arguments: Any) -> None:
        for callback in list(self._callbacks):
            try:
                getattr(callback, method)(*arguments)
            except Exception as error:
                where = f"{type(callback).__name__}.{method}"
                LOGGER.error("callback %s failed; saving and stopping", where, exc_info=error)
                self._callbacks.remove(callback)
                self._failure = self._failure or (where, error)
                self._run.request_stop(f"callback {where} failed")


def load_callback(target: str) -> Callback:
    """Import a callback's class, from an installed package or a file in the present folder, and make it.

    Args:
        target: "module:Class".

    Raises:
        ConfigError: there is no such module or class, it is no `Callback`, or it cannot be made.
    """
    field = f"--callback {target}"
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"--callback is {target!r}: expected MODULE:CLASS")
    found: Any = user_module(module, field)
    known = [key for key, value in vars(found).items() if _is_callback(value)]
    if name not in vars(found):
        close = nearest(name, known)
        hint = f"did you mean {module}:{close}? " if close else ""
        raise ConfigError(f"{field}: {module} has no {name}: {hint}its callbacks: {', '.join(known) or 'none'}")
    cls = vars(found)[name]
    if not _is_callback(cls):
        raise ConfigError(
            f"{field}: {name} does not derive from robotrl.run.callbacks.Callback: expected one that does"
        )
    try:
        return cls()
    except TypeError as error:
        raise ConfigError(f"{field}: {name} cannot be made without arguments ({error})") from error


def _is_callback(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Callback) and value is not Callback
