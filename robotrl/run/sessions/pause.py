"""Pauses of a run: it saves and stops at a number of env steps or iterations, and `resume` continues it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from robotrl.errors import check_at_least
from robotrl.run.callbacks import Callback
from robotrl.run.directory import Run
from robotrl.run.sessions.record import read_session

PAUSED = "paused"


class PauseAt(Callback):
    """Stops a run after the first iteration that reaches a mark; the run is then as one that a signal stopped.

    Args:
        env_steps: env steps of training; None for no such mark.
        iteration: iterations; None for no such mark.

    Raises:
        ConfigError: a mark below 1.
    """

    def __init__(self, env_steps: int | None, iteration: int | None) -> None:
        for name, mark in (("--pause-at-env-steps", env_steps), ("--pause-at-iteration", iteration)):
            if mark is not None:
                check_at_least(name, mark, 1)
        self._marks = {"env steps": env_steps, "iterations": iteration}
        self._run: Run | None = None
        self._last: int | None = None

    def on_start(self, run: Run) -> None:
        """See `Callback.on_start`."""
        session = read_session(run.path)
        self._run, self._last = run, None if session is None else session.iterations

    def on_iteration(self, step: int, scalars: Mapping[str, float]) -> None:
        """See `Callback.on_iteration`."""
        if self._run is None or step == self._last:  # a run that is done has nothing to go on with
            return
        reached = {"env steps": scalars.get("env_steps", 0.0), "iterations": step}
        for unit, mark in self._marks.items():
            if mark is not None and reached[unit] >= mark:
                self._run.request_stop(f"{PAUSED} at {reached[unit]:,.0f} {unit}")

    def on_end(self, run: Run) -> None:
        """See `Callback.on_end`."""
        if run.stop_reason is not None and run.stop_reason.startswith(PAUSED):
            print(f"{run.stop_reason}: go on with: robotrl train --resume {run.path}", file=sys.stderr)
