"""A run's directory: what was asked for, what it was made with, its scalars, its checkpoints.

    runs/NAME/
        config.json      the resolved config, written first and never changed
        run.json         seed, and one entry a session: when, which command, from which step
        versions.json    python, platform, packages, processor, threads
        git.json         commit and what differed from it
        scalars.jsonl    one line a log call
        tb/              the same numbers for TensorBoard
        checkpoints/     step_000000123/ each, latest.json, best.json

Write it like this, and a kill at any moment loses nothing that was saved:

    run = Run.create(Path("runs/a"), config, seed=0, command=sys.argv)   # or Run.open(...), then run.resume()
    with run:
        for step in range(start, steps):
            scalars = update()
            run.log(step, scalars)           # first log, then save
            if due(step) or run.stop_requested:
                run.save(state(), step=step, score=rate)
            if run.stop_requested:
                break
    sys.exit(run.exit_code)
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from robotrl.checkpoint import Checkpoint
from robotrl.errors import ConfigError, DataError, RobotrlError, check_at_least, nearest, out_of_range
from robotrl.files import dump_json, read_json, replace_file, sync_directory, write_synced
from robotrl.locking import StopSignals, WriteLock
from robotrl.logs import ScalarLog
from robotrl.provenance import changes_since, git_state, versions
from robotrl.store import CheckpointStore, Entry, warn

SCHEMA_VERSION = 1
KEEP = 3


class Run:
    """One run's directory. Made by `Run.create` (new) or `Run.open` (existing), not by its constructor.

    An opened run is for reading: many processes may have it open. `resume` makes it writable; one process at a time.
    """

    def __init__(self, path: Path, config: dict[str, Any], seed: int, keep: int) -> None:
        check_at_least("keep", keep, 1)
        self.path = path
        self.config = config
        """The resolved config, as JSON."""
        self.seed = seed
        self._store = CheckpointStore(path / "checkpoints", keep)
        self._lock: WriteLock | None = None
        self._log: ScalarLog | None = None
        self._signals = StopSignals()
        self._stop_reason: str | None = None

    @classmethod
    def create(
        cls, path: Path, config: Mapping[str, Any], *, seed: int, command: Sequence[str], keep: int = KEEP
    ) -> Run:
        """Start a new run, open for writing.

        The directory appears whole, by one rename.

        Args:
            path: the run's directory, absent or empty.
            config: the resolved config; JSON values only (tuples become lists), no NaN or infinity.
            seed: the run's seed.
            command: the command line.
            keep: how many of the newest checkpoints to keep, 1 or more; the best is kept besides.

        Raises:
            ConfigError: the directory is not empty, or the config is not JSON (the field is named).
            RobotrlError: the disk refused, or another process writes there.
        """
        check_json(config, "config")
        resolved = json.loads(json.dumps(config))
        run = cls(path, resolved, seed, keep)
        files = {
            "config.json": {"schema_version": SCHEMA_VERSION, "config": resolved},
            "run.json": {"schema_version": SCHEMA_VERSION, "seed": seed, "sessions": [_session(command, None)]},
            "versions.json": versions(),
            "git.json": git_state(),
        }
        _refuse_used(path)
        temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "checkpoints").mkdir(parents=True)
            try:
                for name, data in files.items():
                    write_synced(temporary / name, dump_json(data))
                sync_directory(temporary)
                os.rename(temporary, path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_directory(path.parent)
        except OSError as error:
            _refuse_used(path)
            raise RobotrlError(f"cannot create run {path}: {error.strerror}") from error
        run._lock = WriteLock(path)
        try:
            run._log = ScalarLog(path)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path, *, keep: int = KEEP) -> Run:
        """Open an existing run for reading.

        Raises:
            DataError: there is no run at `path`, or its files are damaged or of another schema version.
        """
        if not (path / "config.json").exists():
            raise DataError(f"run {path} does not exist: it has no config.json" + _nearby_runs(path))
        stored = read_json(path / "config.json", "run config", SCHEMA_VERSION)
        record = read_json(path / "run.json", "run record", SCHEMA_VERSION)
        try:
            return cls(path, dict(stored["config"]), int(record["seed"]), keep)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"run {path}: config.json or run.json lacks what it should hold ({error!r})") from error

    def resume(self, command: Sequence[str] = ()) -> Checkpoint | None:
        """Take an opened run up again: lock it, tidy it, and cut the logs back to the checkpoint to go on from.

        Args:
            command: the command line of this session, for the record.

        Returns:
            The newest whole checkpoint, None if the run was killed before its first one (then start from the seed).

        Raises:
            DataError: there are checkpoints and none is whole.
            RobotrlError: another process writes this run, or the disk refused.
        """
        if self._lock is not None:
            raise RobotrlError(f"run {self.path} is already open for writing")
        lock = WriteLock(self.path)
        try:
            self._store.clean()
            checkpoint = self._store.latest()
            step = checkpoint.step if checkpoint else -1
            self._store.set_aside_after(step)
            self._record_session(command, step)
            self._log = ScalarLog(self.path, resume_step=step)
        except OSError as error:
            lock.release()
            raise RobotrlError(f"cannot resume run {self.path}: {error.strerror}; {self._store.survivor()}") from error
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return checkpoint

    def log(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Write scalars to `scalars.jsonl` and TensorBoard; on the same step, log before you save.

        Raises:
            ConfigError: a value is no number, or a name is "step" or "wall_s".
            RobotrlError: the disk refused, or the run is open for reading only.
        """
        log = self._writable()
        try:
            log.log(step, scalars)
        except RobotrlError as error:
            if isinstance(error.__cause__, OSError):
                raise RobotrlError(f"{error}; {self._store.survivor()}") from error.__cause__
            raise

    def save(self, tree: Any, *, step: int, score: float | None = None, kind: str = "train") -> Path:
        """Save a checkpoint; keep the newest few and the one with the highest score (the earliest of equals).

        Args:
            tree: the state, a `robotrl.tree.Tree`.
            step: training step; an existing checkpoint of this step is replaced.
            score: figure of merit, higher being better; None when this step was not evaluated.
            kind: what writes it, e.g. the algorithm's name.

        Returns:
            The checkpoint's directory.

        Raises:
            ConfigError: a leaf of the tree cannot be saved (it is named).
            RobotrlError: the disk refused (the message names the checkpoint that survives), or the run is open for
                reading only.
        """
        log = self._writable()
        try:
            log.sync()
        except OSError as error:
            raise RobotrlError(f"cannot log to {self.path}: {error.strerror}; {self._store.survivor()}") from error
        return self._store.save(tree, step=step, kind=kind, score=None if score is None else float(score))

    def entries(self) -> list[Entry]:
        """All checkpoints, oldest first, damaged ones included."""
        return self._store.entries()

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; None when none was saved. Damaged newer ones are reported loudly.

        Raises:
            DataError: there are checkpoints and none is whole.
        """
        return self._store.latest()

    def best(self) -> Checkpoint | None:
        """The checkpoint with the highest score; None when none was scored; the newest whole one, loudly, if damaged.

        Raises:
            DataError: no checkpoint is whole.
        """
        return self._store.best()

    @property
    def stop_requested(self) -> bool:
        """Whether the loop should save and end: after a SIGINT or SIGTERM inside `with run:`, or `request_stop`."""
        return self._signals.received is not None or self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Why `request_stop` was called; None if it was not."""
        return self._stop_reason

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 128 + signal after a signal (130 for Ctrl-C), else 0."""
        return 0 if self._signals.received is None else 128 + self._signals.received

    def request_stop(self, reason: str) -> None:
        """Ask the loop to save and end, as Ctrl-C does; the first reason stays."""
        self._stop_reason = self._stop_reason or reason

    def close(self) -> None:
        """Close the logs and let others write; calling it again does nothing."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def discard(self) -> None:
        """Close the run and remove its directory; for one that was refused before anything was saved.

        Raises:
            ConfigError: it holds a checkpoint.
        """
        if self._store.latest() is not None:
            raise ConfigError(f"run {self.path} holds checkpoints: expected none in a run that is discarded")
        self.close()
        shutil.rmtree(self.path)

    def __enter__(self) -> Run:
        self._writable()
        self._signals.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._signals.restore()

    def _writable(self) -> ScalarLog:
        if self._log is None:
            raise RobotrlError(f"run {self.path} is open for reading only: call resume() to write to it")
        return self._log

    def _record_session(self, command: Sequence[str], step: int) -> None:
        record = read_json(self.path / "run.json", "run record", SCHEMA_VERSION)
        session = _session(command, step)
        before = read_json(self.path / "versions.json", "run versions", SCHEMA_VERSION)
        changes = changes_since(before)
        if changes:
            warn(f"run {self.path} goes on with other software or hardware, so not bit for bit: {'; '.join(changes)}")
            session["changed"] = changes
        record["sessions"].append(session)
        replace_file(self.path / "run.json", dump_json(record))


def check_json(value: Any, name: str) -> None:
    """Check that a config can be saved as it is.

    Raises:
        ConfigError: a field is not a JSON value; it is named.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            if not isinstance(key, str):
                raise ConfigError(f"{name} has the key {key!r}: expected text")
            check_json(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            check_json(item, f"{name}[{index}]")
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise out_of_range(name, value, "a finite number")
    elif value is not None and not isinstance(value, (bool, int, str)):
        raise ConfigError(f"{name} is a {type(value).__name__}: expected null, text, a number, a list or an object")


def _session(command: Sequence[str], from_step: int | None) -> dict[str, Any]:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"started": started, "command": list(command), "from_step": from_step}


def _refuse_used(path: Path) -> None:
    if (path / "config.json").exists():
        raise ConfigError(f"run {path} exists already: resume it, or choose another directory")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run path {path} is a file: expected an absent or empty directory")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(f"run path {path} is not empty: expected an absent or empty directory")


def _nearby_runs(path: Path) -> str:
    parent = path.parent
    names = [found.parent.name for found in parent.glob("[!.]*/config.json")] if parent.is_dir() else []
    close = nearest(path.name, names)
    return f"; did you mean {parent / close}?" if close else ""
