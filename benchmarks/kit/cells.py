"""Tables of long experiments: cells (method, task, seed) that are run one by one and resumed after a stop.

Each cell is one process. Its result is a file that is written atomically, so a kill loses at most the running cell, or
nothing of a cell with `goes_on`. A cell that has a result with the same config hash is not run again.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit.machine import machine_info, package_versions
from robotrl.errors import ConfigError, DataError, nearest
from robotrl.jobs.job import Job, last_line
from robotrl.jobs.local import LocalPlace
from robotrl.jobs.pool import EndedJob, run_jobs
from robotrl.rollout.evaluate import RULE
from robotrl.run.locking import StopSignals, WriteLock
from robotrl.utils.files import dump_json, read_json, replace_file
from robotrl.utils.progress import track

SCHEMA_VERSION = 1
GRACE_S = 20.0
"""Time that a cell's process gets to stop before it is killed, s."""
NOTE = "attempt.json"
"""File in the folder of an unfinished cell: when it began, and how long it ran."""
EVALUATED = f"{RULE}, newest of equals"
"""`Cell.rule` of cells that select the best checkpoint by evaluations with noise."""
OUT = "{out}"
"""Placeholder in a cell's command for its output folder, which is empty at the start; but see `Cell.goes_on`."""


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Args:
        method: name of the method ("quickstart", "clone_converged").
        task: name of the task.
        seed: random seed.
        command: argument list; "robotrl" and "python" as the first word mean this installation's, `{out}` its folder.
        result_file: JSON file that the process writes in `{out}`.
        revision: raise it when the meaning of the result changes, so that old results are run again.
        goes_on: whether the process continues from files that a stopped or failed one left in `{out}`.
        rule: how policies are evaluated and the best checkpoint is chosen; "" if irrelevant. It is stored with the
            result but not in the hash: results by an earlier rule are kept, and are labeled with that rule.
    """

    method: str
    task: str
    seed: int
    command: tuple[str, ...]
    result_file: str
    revision: int = 1
    goes_on: bool = False
    rule: str = ""

    @property
    def key(self) -> str:
        """Name of the cell and of its files: "quickstart--mujoco-peg-insert--0"."""
        return f"{self.method}--{self.task.replace('/', '-')}--{self.seed}"

    @property
    def config_hash(self) -> str:
        """Hash of everything that determines the measurement."""
        config = [self.method, self.task, self.seed, list(self.command), self.result_file, self.revision]
        return hashlib.sha256(json.dumps(config).encode()).hexdigest()[:16]


CellResult = dict[str, Any]
"""Result of a finished cell: `method`, `task`, `seed`, `config_hash`, `command`, `machine`, `versions`, `started`,
`wall_s`, `result` (the process's JSON), and `rule` if the cell has one. `started` is the start of the first process;
`wall_s` is the total time of all processes that were not killed."""


class Outcome(NamedTuple):
    """Result of `fill`."""

    results: dict[str, CellResult]
    """All finished cells of the table, by key, in the table's order."""
    failed: tuple[str, ...]
    """Keys of cells whose process failed in this call."""
    stopped: bool
    """True if a signal stopped the filling."""


def select(cells: Sequence[Cell], patterns: str | None) -> list[Cell]:
    """Cells whose key matches one of the comma-separated patterns ("quickstart--*--0,clone*"); None selects all.

    Raises:
        ConfigError: a pattern matches no cell.
    """
    if patterns is None:
        return list(cells)
    chosen: set[str] = set()
    for pattern in patterns.split(","):
        found = {cell.key for cell in cells if fnmatch.fnmatchcase(cell.key, pattern.strip())}
        if not found:
            keys = [cell.key for cell in cells]
            of_method = {cell.method: cell.key for cell in reversed(cells)}
            close = nearest(pattern, keys) or of_method.get(nearest(pattern.split("--")[0].strip(), of_method) or "")
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(f"cells pattern {pattern!r} matches nothing: {hint}the first cell is {keys[0]!r}")
        chosen |= found
    return [cell for cell in cells if cell.key in chosen]


def finished(cells: Sequence[Cell], work: Path, known: Mapping[str, CellResult]) -> dict[str, CellResult]:
    """Existing results in the table's order: from the work folder, else from `known`.

    Args:
        cells: the table.
        work: the work folder; need not exist.
        known: other results by key (the committed file); those with another config hash are left out.
    """
    results: dict[str, CellResult] = {}
    for cell in cells:
        path = work / f"{cell.key}.json"
        found = read_json(path, "cell result", SCHEMA_VERSION) if path.is_file() else None
        if found is None or found.get("config_hash") != cell.config_hash:
            found = known.get(cell.key)
        if found is not None and found.get("config_hash") == cell.config_hash:
            results[cell.key] = {key: value for key, value in found.items() if key != "schema_version"}
    return results


def outdated(cells: Sequence[Cell], known: Mapping[str, CellResult]) -> dict[str, CellResult]:
    """Results of a table's cells by another config, such as an earlier revision, by key."""
    return {
        cell.key: known[cell.key]
        for cell in cells
        if cell.key in known and known[cell.key].get("config_hash") != cell.config_hash
    }


def fill(
    cells: Sequence[Cell],
    chosen: Sequence[Cell],
    work: Path,
    known: Mapping[str, CellResult],
    on_done: Callable[[dict[str, CellResult]], None],
) -> Outcome:
    """Run the chosen cells without results, in sequence.

    A failing cell is reported, and the next one is run. SIGINT and SIGTERM stop the running cell and the table.

    Args:
        cells: the whole table.
        chosen: the cells to fill.
        work: folder for results, logs and files of the processes; made if absent.
        known: other results, see `finished`.
        on_done: called with all results so far after each cell.

    Raises:
        RobotrlError: another process is filling this table.
    """
    work.mkdir(parents=True, exist_ok=True)
    lock = WriteLock(work, "work folder")
    signals = StopSignals()
    signals.install()
    failed: list[str] = []
    try:
        results = finished(cells, work, known)
        going = {_attempt_path(cell, work) for cell in cells if cell.goes_on and cell.key not in results}
        for stale in set(work.glob("attempt-*")) - going:
            shutil.rmtree(stale)
        missing = [cell for cell in chosen if cell.key not in results]
        with track(len(missing), "filling cells", "cells") as bar:
            started: dict[str, _Attempt] = {}

            def jobs() -> Iterator[Job]:
                for cell in missing:
                    bar.advance(0, cell.key)
                    attempt = started[cell.key] = _attempt(cell, work)
                    yield Job(cell.key, _command(cell, attempt.out), attempt.log)

            def on_end(ended: EndedJob) -> bool:
                attempt = started[ended.job.key]
                attempt = attempt._replace(wall_s=attempt.wall_s + ended.wall_s)
                if ended.stopped:
                    _keep(attempt)
                    return False
                if not _store(attempt, ended.code, work):
                    failed.append(attempt.cell.key)
                bar.advance(1)
                on_done(finished(cells, work, known))
                return True

            # one at a time: cells measure times
            run_jobs(jobs(), LocalPlace(1), signals, on_end, grace_s=GRACE_S)
        results = finished(cells, work, known)
    finally:
        signals.restore()
        lock.release()
    return Outcome(results, tuple(failed), signals.received is not None)


class _Attempt(NamedTuple):
    """Folder and progress of a cell's processes."""

    cell: Cell
    path: Path
    started: str
    wall_s: float
    machine: dict[str, Any]
    """Machine before the process of this call started."""

    @property
    def out(self) -> Path:
        """Output folder of the processes."""
        return self.path / "out"

    @property
    def log(self) -> Path:
        """Log file of the processes."""
        return self.path / "log.txt"


def _attempt_path(cell: Cell, work: Path) -> Path:
    return work / f"attempt-{cell.key}"


def _attempt(cell: Cell, work: Path) -> _Attempt:
    """Continue the attempt of a cell with `goes_on`, or begin a new one."""
    path = _attempt_path(cell, work)
    note = path / NOTE
    if cell.goes_on and note.is_file():
        found = read_json(note, "attempt", SCHEMA_VERSION)
        if found["config_hash"] == cell.config_hash:
            return _Attempt(cell, path, found["started"], found["wall_s"], machine_info())
    shutil.rmtree(path, ignore_errors=True)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    attempt = _Attempt(cell, path, started, 0.0, machine_info())
    attempt.out.mkdir(parents=True)
    _keep(attempt)
    return attempt


def _keep(attempt: _Attempt) -> None:
    note = {"schema_version": SCHEMA_VERSION, "config_hash": attempt.cell.config_hash}
    replace_file(attempt.path / NOTE, dump_json({**note, "started": attempt.started, "wall_s": attempt.wall_s}))


def _command(cell: Cell, out: Path) -> tuple[str, ...]:
    own = {"robotrl": [sys.executable, "-m", "robotrl.cli"], "python": [sys.executable]}
    words = (word.replace(OUT, str(out)) for word in cell.command[1:])
    return (*own.get(cell.command[0], [cell.command[0]]), *words)


def _store(attempt: _Attempt, code: int, work: Path) -> bool:
    """Store the result of an attempt whose process has ended; False if it failed."""
    cell = attempt.cell
    try:
        if code != 0:
            raise DataError(f"its process ended with code {code}")
        result = json.loads((attempt.out / cell.result_file).read_text(encoding="utf-8"))
    except (DataError, OSError, ValueError) as error:
        kept = work / f"{cell.key}.failed.txt"
        shutil.copyfile(attempt.log, kept)
        # after a full disk, or beside a process that outlived its table, hours of work can still be used
        again = f"; what it left is kept, to begin anew remove {attempt.path}" if cell.goes_on else ""
        if cell.goes_on:
            _keep(attempt)
        else:
            shutil.rmtree(attempt.path)
        print(f"cell {cell.key} failed: {error}; last line: {last_line(kept)!r}; log: {kept}{again}", file=sys.stderr)
        return False
    record: CellResult = {
        "schema_version": SCHEMA_VERSION,
        "method": cell.method,
        "task": cell.task,
        "seed": cell.seed,
        "config_hash": cell.config_hash,
        "command": shlex.join(word.replace(OUT, "OUT") for word in cell.command),
        "machine": attempt.machine,
        "versions": package_versions(),
        "started": attempt.started,
        "wall_s": round(attempt.wall_s, 2),
        **({"rule": cell.rule} if cell.rule else {}),
        "result": result,
    }
    place = work / cell.key
    shutil.rmtree(place, ignore_errors=True)
    attempt.path.rename(place)
    replace_file(work / f"{cell.key}.json", dump_json(record))
    return True
