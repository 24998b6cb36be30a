"""`robotrl status`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.errors import ConfigError, DataError, check_number

if TYPE_CHECKING:
    from robotrl.run.sessions.status import RunStatus

SCHEMA_VERSION = 1
CLEAR = "\x1b[H\x1b[2J"
"""Clears a terminal."""


@dataclass(frozen=True)
class Args:
    """State of training runs, from their files alone: of one run, or of all runs in folders, such as a sweep's.

    No process is asked, so it works on a shared folder, too.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Directories of runs, and folders that hold some."""
    watch: bool = False
    """Show it again and again until no run is in training."""
    every_s: float = 2.0
    """Time between two looks of --watch, s, 0.1 to 3600."""
    json: bool = False
    """Print JSON; with --watch one line a look."""


class RunsLook(NamedTuple):
    """State of runs at a moment."""

    runs: tuple[RunStatus, ...]
    not_begun: int
    """Number of runs of sweeps that have not begun."""
    sweeping: bool
    """True if a sweep is running, which may begin runs."""

    @property
    def going(self) -> bool:
        """True if something may still change."""
        return self.sweeping or any(run.state == "running" for run in self.runs)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl status", argv)
    if not args.paths:
        raise ConfigError("missing: RUN, the directories of one or more runs, or folders of runs")
    check_number("--every-s", args.every_s, 0.1, 3600)
    while True:
        look = _look(args.paths)
        if args.json:
            print(json.dumps(_json(look), indent=None if args.watch else 1), flush=True)
        else:
            clear = CLEAR if args.watch and sys.stdout.isatty() else ""
            print(clear + "\n".join(_lines(look)), flush=True)
        if not args.watch or not look.going:
            return 0
        time.sleep(args.every_s)


def _look(paths: Sequence[Path]) -> RunsLook:
    """State of all runs at or below paths.

    Raises:
        DataError: a path does not exist or holds no run, or a run is damaged.
    """
    from robotrl.run.locking import is_being_written
    from robotrl.run.sessions.status import runs_below, status_of
    from robotrl.sweeps.plan import load_plan

    found: dict[Path, RunStatus] = {}
    not_begun, sweeping = 0, False
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path} {'is no folder' if path.exists() else 'does not exist'}: expected one of a run")
        runs, plan = runs_below(path), load_plan(path)
        if not runs and plan is None:
            raise DataError(f"{path} holds no run: expected the directory of a run, or a folder of runs")
        found |= {run: status_of(run) for run in runs if run not in found}
        if plan is not None:
            not_begun += sum(run not in found for run in plan.paths(path))
            sweeping = sweeping or is_being_written(path)
    return RunsLook(tuple(found.values()), not_begun, sweeping)


def _json(look: RunsLook) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": [run._asdict() for run in look.runs],
        "not_begun": look.not_begun,
        "sweeping": look.sweeping,
    }


def _lines(look: RunsLook) -> list[str]:
    """Text of a look: a few lines of a single run, a table of several."""
    from robotrl.api.comparing import aligned

    if len(look.runs) == 1 and not look.not_begun:
        return _single(look.runs[0])
    heads = ("run", "state", "iteration", "env steps", "per s", "last evaluation", "best", "last line", "left")
    table = [heads] + [
        (
            run.path,
            run.state,
            _iteration(run),
            f"{run.env_steps:,.0f}",
            _rate(run),
            _evaluation(run),
            _score(run, run.best),
            _ago(run),
            _left(run),
        )
        for run in look.runs
    ]
    states = [run.state for run in look.runs]
    parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    parts += [f"{look.not_begun} not begun"] if look.not_begun else []
    return [*aligned(table), "", f"{len(states) + look.not_begun} runs: {', '.join(parts)}"]


def _single(run: RunStatus) -> list[str]:
    where = f" on {run.host}" if run.host else ""
    why = f" ({run.why})" if run.why else ""
    left = f", {_left(run)} left" if run.left_s is not None else ""
    rows = [
        ("env steps", f"{run.env_steps:,.0f}" + (f", {_rate(run)} a second" if run.env_steps_per_s else "")),
        ("last evaluation", _evaluation(run)),
        ("best", _score(run, run.best)),
        ("last line", f"{_ago(run)} ago" if run.since_line_s is not None else "none"),
        ("newest checkpoint", "none" if run.checkpoint is None else f"iteration {run.checkpoint:,}"),
    ]
    return [f"{run.path}: {run.state}{where}{why}, iteration {_iteration(run)}{left}"] + [
        f"  {name:<19}{value}" for name, value in rows
    ]


def _iteration(run: RunStatus) -> str:
    return f"{run.iteration:,}" + ("" if run.iterations is None else f" of {run.iterations:,}")


def _rate(run: RunStatus) -> str:
    return "" if run.env_steps_per_s is None else f"{run.env_steps_per_s:,.0f}"


def _evaluation(run: RunStatus) -> str:
    """ "81.2 % [73.5 % to 87.1 %] at 30", with the return before it if the run goes by that."""
    from robotrl.report.text import number, percent

    found = run.evaluation
    if found is None:
        return "none"
    at = f"at {found['iteration']:,.0f}"
    before = f"{number(found['return'])}, success " if run.score == "return" and "return" in found else ""
    ends = f" [{percent(found['low'])} to {percent(found['high'])}]" if {"low", "high"} <= found.keys() else ""
    return f"{before}{percent(found['success'])}{ends} {at}"


def _score(run: RunStatus, value: float | None) -> str:
    from robotrl.report.text import number, percent

    if value is None:
        return "none"
    return number(value) if run.score == "return" else percent(value)


def _ago(run: RunStatus) -> str:
    from robotrl.report.text import seconds

    return "" if run.since_line_s is None else seconds(run.since_line_s)


def _left(run: RunStatus) -> str:
    from robotrl.utils.progress import clock_text

    return "" if run.left_s is None else clock_text(run.left_s)
