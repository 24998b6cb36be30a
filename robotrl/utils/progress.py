"""Progress bars for all long operations.

On a terminal: a rich bar on stderr with elapsed and remaining time. Elsewhere (a log file, CI): a plain line at the
start, more lines at intervals that double, and one at the end. Nothing is printed to stdout.
A bar inside another one (an evaluation during training) is shown below it on a terminal, and prints no plain lines.
`waiting` reports one-time delays (compilation), which are excluded from the estimate of the remaining time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

FIRST_LINE_S = 5.0
"""Without a terminal, the first progress line comes after this time, the next after twice that, and so on."""
Clock = Callable[[], float]


class ProgressBar(Protocol):
    """Progress bar that `track` yields."""

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Add `amount` finished units; `note` replaces the short text beside the bar."""
        ...


class Pace:
    """Elapsed time, and an estimate of the remaining time from the units finished so far.

    The first unit includes one-time costs (imports, buffers), so the pace is that of the later units as soon as there
    are any. Waiting time counts as elapsed, but not for the pace.

    Args:
        total: number of units; None if unknown.
        done: number of units already finished.
        step: number of units in parallel, of which the first finish late and together.
        clock: clock function in seconds.
    """

    def __init__(self, total: float | None, done: float = 0.0, step: int = 1, clock: Clock = time.monotonic) -> None:
        self.total, self.done = total, done
        self._clock, self._began = clock, clock()
        self._waited_s = 0.0
        self._first: tuple[float, float] | None = None
        """Units finished after the first count, and the time of that count without waiting."""
        self._begun_with, self._step = done, step
        self._last_s = 0.0

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    def count(self, amount: float) -> None:
        """Add finished units."""
        self.done += amount
        if amount:
            self._last_s = self.passed_s - self._waited_s
            self._first = self._first or (self.done, self._last_s)

    def waited(self, seconds: float) -> None:
        """Exclude waiting time from the pace."""
        self._waited_s += seconds

    def left_s(self) -> float | None:
        """Remaining seconds; None if unknown."""
        if self.total is None or self._first is None or self.done >= self.total:
            return None
        first_done, first_s = self._first
        if self._step > 1:
            since_begun = self.done - self._begun_with
            if since_begun < self._step:
                return None
            unit_s = self._last_s / since_begun
        elif self.done > first_done:
            unit_s = (self._last_s - first_s) / (self.done - first_done)
        elif first_s < FIRST_LINE_S:
            # a short first unit consists mostly of one-time costs
            return None
        else:
            unit_s = first_s / (first_done - self._begun_with)
        # the estimate decreases while a unit is running
        since = max(0.0, self.passed_s - self._waited_s - self._last_s)
        return max(0.0, (self.total - self.done) * unit_s - min(since, unit_s))


class _Shown:
    """State of the present display, for nested bars and waits; only one thread shows progress."""

    display: Progress | None = None
    notice: str = ""
    """Text line above the bars of the display."""
    lines: PlainLines | None = None
    """Outermost bar, if there is no terminal."""
    paces: ClassVar[list[Pace]] = []
    """Pace of each bar, outermost first."""


def show_notice(text: str) -> bool:
    """Show a text line above the bars on the terminal, if there are any; may be called in a signal handler.

    Returns:
        False if there are no bars, so that the caller must print the text itself.
    """
    # the display redraws ten times a second; printing directly would shift its lines and duplicate its bars
    if _Shown.display is None:
        return False
    _Shown.notice = text
    return True


@contextmanager
def track(
    total: float | None,
    description: str,
    unit: str = "it",
    *,
    done: float = 0.0,
    step: int = 1,
    may_end_early: bool = False,
) -> Generator[ProgressBar]:
    """Show progress while the block runs.

    Args:
        total: number of units; None if unknown (no remaining time is shown then).
        description: operation, e.g. "collecting demonstrations".
        unit: unit, e.g. "episodes".
        done: number of units finished before, e.g. in a resumed run.
        step: number of units in parallel, e.g. the episodes of all envs.
        may_end_early: whether the block may end early; the remaining time is then shown as an upper limit.
    """
    pace = Pace(total, done, step)
    _Shown.paces.append(pace)
    try:
        if sys.stderr.isatty():
            with _bar(pace, description, unit, may_end_early) as bar:
                yield bar
        elif _Shown.lines is not None:
            yield _Silent(pace)
        else:
            lines = _Shown.lines = PlainLines(pace, description, unit, may_end_early)
            try:
                yield lines
                lines.close()
            finally:
                _Shown.lines = None
    finally:
        _Shown.paces.remove(pace)


@contextmanager
def waiting(what: str) -> Generator[None]:
    """Report a one-time delay and its duration while the block runs. Outside of bars nothing is shown.

    Args:
        what: reason, e.g. "compiling the update (about 40 s)".
    """
    began = time.monotonic()
    try:
        if _Shown.display is not None:
            task = _Shown.display.add_task(f"  {what}", total=None, count="", note="")
            try:
                yield
            finally:
                _Shown.display.remove_task(task)
        elif _Shown.lines is not None:
            with _counting(_Shown.lines, what):
                yield
        else:
            yield
    finally:
        for pace in _Shown.paces:
            pace.waited(time.monotonic() - began)


@contextmanager
def _counting(lines: PlainLines, what: str) -> Generator[None]:
    """Print a line at once, and more at intervals that double, from a thread because the block is busy."""
    began, over = time.monotonic(), threading.Event()
    lines.say(what)

    def count() -> None:
        after = FIRST_LINE_S
        while not over.wait(max(0.0, began + after - time.monotonic())):
            lines.say(f"{what}: {after:.0f} s passed")
            after *= 2

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        lines.say(f"{what}: took {time.monotonic() - began:.0f} s")


@contextmanager
def _bar(pace: Pace, description: str, unit: str, may_end_early: bool) -> Generator[_Rich]:
    outer = _Shown.display
    fields: dict[str, Any] = {
        "total": pace.total,
        "completed": pace.done,
        "note": "",
        "pace": pace,
        "most": may_end_early,
    }
    count = _count(pace.done, pace.total, unit)
    if outer is not None:
        # two displays would overwrite each other
        task = outer.add_task(f"  {description}", count=count, **fields)
        try:
            yield _Rich(outer, task, pace, unit)
        finally:
            outer.remove_task(task)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        _times(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    _Shown.notice = ""
    with _display()(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, count=count, **fields)
        _Shown.display = progress
        try:
            yield _Rich(progress, task, pace, unit)
        finally:
            _Shown.display = None


def _display() -> type[Progress]:
    """Display with the bars below the notice; built here because rich is imported only for a terminal."""
    from rich.console import RenderableType
    from rich.progress import Progress
    from rich.text import Text

    class Display(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            if _Shown.notice:
                yield Text(_Shown.notice)
            yield from super().get_renderables()

    return Display


def _times() -> ProgressColumn:
    """Column of elapsed and remaining time; built here because rich is imported only for a terminal."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Times(ProgressColumn):
        def render(self, task: Task) -> Text:
            pace: Pace | None = task.fields.get("pace")
            passed = f"{clock_text(task.elapsed or 0.0)} passed"
            return Text(passed if pace is None else passed + _left(pace, task.fields["most"]), style="progress.elapsed")

    return Times()


class _Silent:
    """A nested bar without a terminal, which shows nothing."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Nothing to show."""
        del note
        self._pace.count(amount)


class _Rich:
    """A bar on a terminal."""

    def __init__(self, progress: Progress, task: TaskID, pace: Pace, unit: str) -> None:
        self._progress, self._task, self._pace, self._unit = progress, task, pace, unit
        self._note = ""

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Count, and draw."""
        self._pace.count(amount)
        if note is not None:
            self._note = note
        count = _count(self._pace.done, self._pace.total, self._unit)
        self._progress.update(self._task, advance=amount, count=count, note=self._note)


class PlainLines:
    """Sparse plain lines where there is no terminal."""

    def __init__(self, pace: Pace, description: str, unit: str, may_end_early: bool = False) -> None:
        self._pace, self._description, self._unit, self._most = pace, description, unit, may_end_early
        self._note = ""
        self._next_s = FIRST_LINE_S
        self.say("started" if not pace.done else f"going on from {_count(pace.done, pace.total, unit)}")

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Count, and print a line if one is due."""
        pace = self._pace
        pace.count(amount)
        if note is not None:
            self._note = note
        passed = pace.passed_s
        if passed >= self._next_s:
            while self._next_s <= passed:
                self._next_s *= 2
            count = _count(pace.done, pace.total, self._unit)
            self.say(f"{count}, {clock_text(passed)} passed{_left(pace, self._most)}")

    def close(self) -> None:
        """Print the last line."""
        count = _count(self._pace.done, self._pace.total, self._unit)
        self.say(f"{count} in {clock_text(self._pace.passed_s)}")

    def say(self, text: str) -> None:
        """Print a line."""
        note = f"  {self._note}" if self._note else ""
        print(f"{self._description}: {text}{note}", file=sys.stderr, flush=True)


def _left(pace: Pace, most: bool) -> str:
    left = pace.left_s()
    if left is None:
        return ""
    return f", ends within {clock_text(left)}" if most else f", {clock_text(left)} left"


def _count(done: float, total: float | None, unit: str) -> str:
    return f"{done:,.0f} {unit}" if total is None else f"{done:,.0f}/{total:,.0f} {unit}"


def clock_text(seconds: float) -> str:
    """Time as minutes and seconds, 2:05; from an hour on 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
