"""One progress bar for everything that lasts.

On a terminal: a rich bar with elapsed time and time left, on stderr. Elsewhere (a log file, CI): a plain line at the
start, then one now and then, at intervals that double, and one at the end. Nothing is ever printed to stdout.
What goes on inside another bar (an evaluation during training) shows beneath it while it lasts, and prints no lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

FIRST_LINE_S = 5.0
"""Without a terminal, the first line about progress comes after this long, the next after twice that, and so on."""


class Bar(Protocol):
    """What `track` hands out."""

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Count `amount` more units as done; `note` replaces the short text shown beside the bar."""
        ...


class _Outer:
    """What is being shown now, for bars inside it; progress is shown by one thread."""

    depth = 0
    display: Progress | None = None


@contextmanager
def track(total: float | None, description: str, unit: str = "it") -> Generator[Bar]:
    """Show progress while the block runs.

    Args:
        total: how many units there will be; None where nobody knows (no time left is shown then).
        description: what is being done, e.g. "collecting demonstrations".
        unit: what is counted, e.g. "episodes".
    """
    _Outer.depth += 1
    try:
        if sys.stderr.isatty():
            with _bar(total, description, unit) as bar:
                yield bar
        elif _Outer.depth > 1:
            yield _Silent()
        else:
            lines = PlainLines(total, description, unit)
            yield lines
            lines.close()
    finally:
        _Outer.depth -= 1


@contextmanager
def _bar(total: float | None, description: str, unit: str) -> Generator[_Rich]:
    outer = _Outer.display
    if outer is not None:
        # two displays would write over each other
        task = outer.add_task(f"  {description}", total=total, count=_count(0, total, unit), note="")
        try:
            yield _Rich(outer, task, total, unit)
        finally:
            outer.remove_task(task)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total, count=_count(0, total, unit), note="")
        _Outer.display = progress
        try:
            yield _Rich(progress, task, total, unit)
        finally:
            _Outer.display = None


class _Silent:
    """A bar inside another one where there is no terminal."""

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Nothing to show."""


class _Rich:
    """A bar on a terminal."""

    def __init__(self, progress: Progress, task: TaskID, total: float | None, unit: str) -> None:
        self._progress, self._task, self._total, self._unit = progress, task, total, unit
        self._done, self._note = 0.0, ""

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Count, and draw."""
        self._done += amount
        if note is not None:
            self._note = note
        count = _count(self._done, self._total, self._unit)
        self._progress.update(self._task, advance=amount, count=count, note=self._note)


class PlainLines:
    """Sparse plain lines where there is no terminal."""

    def __init__(
        self, total: float | None, description: str, unit: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._description, self._unit = total, description, unit
        self._done, self._note = 0.0, ""
        self._clock = clock
        self._started = clock()
        self._next_s = FIRST_LINE_S
        self._say("started")

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Count, and print a line if one is due."""
        self._done += amount
        if note is not None:
            self._note = note
        passed = self._clock() - self._started
        if passed >= self._next_s:
            while self._next_s <= passed:
                self._next_s *= 2
            left = ""
            if self._total is not None and 0 < self._done < self._total:
                left = f", {_clock(passed * (self._total - self._done) / self._done)} left"
            self._say(f"{_count(self._done, self._total, self._unit)}, {_clock(passed)} passed{left}")

    def close(self) -> None:
        """Print the last line."""
        passed = self._clock() - self._started
        self._say(f"{_count(self._done, self._total, self._unit)} in {_clock(passed)}")

    def _say(self, text: str) -> None:
        note = f"  {self._note}" if self._note else ""
        print(f"{self._description}: {text}{note}", file=sys.stderr, flush=True)


def _count(done: float, total: float | None, unit: str) -> str:
    return f"{done:,.0f} {unit}" if total is None else f"{done:,.0f}/{total:,.0f} {unit}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
