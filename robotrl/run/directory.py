"""Run directory: config, versions, scalars and checkpoints of a training run.

    runs/NAME/
        config.json      the resolved config, written first and never changed
        run.json         seed, and one entry a session: when, which command, from which step
        inputs.json      digests of the config, and of each dataset, policy, file or module that the run reads
        versions.json    python, platform, packages, processor, threads
        git.json         commit and what differed from it
        session.json     the present or last session: where, how many iterations, how it ended
        scalars.jsonl    one line a log call
        tb/              the same numbers for TensorBoard
        checkpoints/     step_000000123/ each, latest.json, best.json

Usage; a kill at any moment loses nothing that was saved:

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

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from robotrl.errors import ConfigError, DataError, RobotrlError, check_at_least, nearest, out_of_range, short
from robotrl.run.checkpoint import Checkpoint
from robotrl.run.checkpoint_store import CheckpointStore, Entry, warn
from robotrl.run.inputs import NAME as INPUTS
from robotrl.run.inputs import OWN, Changes, Digest, Sealed, altered_files, changes, read_sealed, sealed
from robotrl.run.locking import StopSignals, WriteLock
from robotrl.run.logs import ScalarLog
from robotrl.run.sessions.record import SessionEnd, SessionRecord, new_session, write_session
from robotrl.spec.json_fields import migrated
from robotrl.utils.files import dump_json, read_json, read_plain, replace_file, sync_directory, write_synced
from robotrl.utils.provenance import changes_since, git_state, versions

SCHEMA_VERSION = 1
KEEP = 3
SHOWN = 3
"""Number of changes that an error names."""


class Run:
    """A run's directory. Made by `Run.create` (new) or `Run.open` (existing), not by its constructor.

    An opened run is read-only, and many processes may open it. `resume` makes it writable for one process at a time.
    """

    def __init__(self, path: Path, config: dict[str, Any], seed: int, keep: int, inputs: Sequence[Digest] = ()) -> None:
        check_at_least("keep", keep, 1)
        self.path = path
        self.config = config
        """Resolved config, as JSON."""
        self.seed = seed
        self.inputs = tuple(inputs)
        """Inputs from outside the run, with their digests at its beginning; empty if the run recorded none."""
        self.altered: tuple[str, ...] = ()
        """Changed files of an opened run, one phrase each."""
        self._made: tuple[Path, ...] = ()
        self._store = CheckpointStore(path / "checkpoints", keep)
        self._lock: WriteLock | None = None
        self._log: ScalarLog | None = None
        self._signals = StopSignals()
        self._stop_reason: str | None = None
        self._session: SessionRecord | None = None

    @classmethod
    def create(
        cls,
        path: Path,
        config: Mapping[str, Any],
        *,
        seed: int,
        command: Sequence[str],
        keep: int = KEEP,
        inputs: Sequence[Digest] = (),
    ) -> Run:
        """Start a new run, open for writing.

        The directory appears whole, by one rename.

        Args:
            path: the run's directory, absent or empty.
            config: the resolved config; JSON values only (tuples become lists), no NaN or infinity.
            seed: the run's seed.
            command: the command line.
            keep: number of newest checkpoints to keep, 1 or more; the best is kept in addition.
            inputs: digests of the run's inputs (`robotrl.run.input_digests`), which `resume` compares.

        Raises:
            ConfigError: the directory is not empty, or the config is not JSON (the field is named).
            RobotrlError: writing failed, or another process writes there.
        """
        check_json(config, "config")
        resolved = json.loads(json.dumps(config))
        run = cls(path, resolved, seed, keep, inputs)
        files = {
            "config.json": dump_json({"schema_version": SCHEMA_VERSION, "config": resolved}),
            "versions.json": dump_json(versions()),
            "git.json": dump_json(git_state()),
        }
        seal = sealed(files, seed, inputs)
        record = {"schema_version": SCHEMA_VERSION, "seed": seed, "sessions": [_session(command, None)]}
        files |= {INPUTS: dump_json(seal), "run.json": _run_json(record, seal["digest"])}
        try:
            temporary = path.absolute().with_name(f".tmp-{path.name}-{os.getpid()}")
            _refuse_used(path)
            run._made = tuple(folder for folder in path.absolute().parents if not folder.exists())
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "checkpoints").mkdir(parents=True)
            try:
                for name, data in files.items():
                    write_synced(temporary / name, data)
                sync_directory(temporary)
                os.rename(temporary, path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_directory(path.parent)
        except (OSError, ValueError) as error:  # UnicodeEncodeError and ValueError: a name that no file can have
            _remove_empty(run._made)
            why = error.strerror if isinstance(error, OSError) else error
            if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                _refuse_used(path)
            raise RobotrlError(f"cannot create run {short(str(path))}: {why}") from error
        run._lock = WriteLock(path)
        try:
            run._log = ScalarLog(path)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path, *, keep: int = KEEP) -> Run:
        """Open an existing run for reading. A warning names files that were altered.

        Raises:
            DataError: there is no run at `path`, or its files are damaged or of another schema version.
        """
        if not (path / "config.json").exists():
            raise DataError(f"run {path} does not exist: it has no config.json" + _nearby_runs(path))
        stored = read_json(path / "config.json", "run config", SCHEMA_VERSION)
        record = read_json(path / "run.json", "run record", SCHEMA_VERSION)
        seal, altered = _verified(path, record)
        try:
            config: Any = stored["config"]
            if not isinstance(config, dict):
                raise TypeError(f"config is a {type(config).__name__}")
            run = cls(path, migrated(config), int(record["seed"]), keep, seal.inputs if seal else ())
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"run {path}: config.json or run.json lacks what it should hold ({short(repr(error))})"
            ) from error
        run.altered = tuple(altered.blocking)
        if altered.blocking or altered.said:
            warn(f"run {path}: {_listed([*altered.blocking, *altered.said])}")
        return run

    def refuse_changed(self, changed: Sequence[str]) -> None:
        """Raise if the run was altered.

        Args:
            changed: descriptions of changes, one phrase each, such as `altered`.

        Raises:
            DataError: `changed` is not empty.
        """
        if changed:
            raise DataError(
                f"run {self.path} did not begin with what is there now: {_listed(changed)}; put back what it began"
                " with, or go on knowingly with --accept-changed-inputs"
            )

    def keep_newest(self, count: int) -> None:
        """Change the number of newest checkpoints to keep, 1 or more."""
        check_at_least("keep", count, 1)
        self._store.keep = count

    def resume(
        self,
        command: Sequence[str] = (),
        *,
        inputs: Sequence[Digest] | None = None,
        accept_changed_inputs: bool = False,
    ) -> Checkpoint | None:
        """Resume an opened run: lock it, clean it, and cut the logs back to the newest undamaged checkpoint.

        Args:
            command: the command line of this session, for the record.
            inputs: present digests of the run's inputs; None skips the comparison.
            accept_changed_inputs: continue although the run's own config, its seed or its inputs have changed; the
                present ones count from then on, and the session's entry in `run.json` records this.

        Returns:
            The newest undamaged checkpoint; None if the run was killed before its first one (then start from the seed).

        Raises:
            DataError: all checkpoints are damaged, or inputs have changed (they are named).
            RobotrlError: another process writes this run, or writing failed.
        """
        if self._lock is not None:
            raise RobotrlError(f"run {self.path} is already open for writing")
        lock = WriteLock(self.path)
        try:
            changed = self._changed(inputs)
            if not accept_changed_inputs:
                self.refuse_changed(changed)
            self._store.clean()
            checkpoint = self._store.latest()
            step = checkpoint.step if checkpoint else -1
            self._store.set_aside_after(step)
            self._record_session(command, step, changed, inputs)
            self._log = ScalarLog(self.path, resume_step=step)
        except OSError as error:
            lock.release()
            raise RobotrlError(f"cannot resume run {self.path}: {error.strerror}; {self._store.survivor()}") from error
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return checkpoint

    def begin_session(self, iterations: int, first: int) -> None:
        """Record that the iterations of this session begin; the end of `with run:` records how it ended.

        Args:
            iterations: iterations of the whole run.
            first: iterations that were done before.

        Raises:
            RobotrlError: writing failed, or the run is open for reading only.
        """
        self._writable()
        self._session = new_session(iterations, first)
        try:
            write_session(self.path, self._session)
        except OSError as error:
            raise RobotrlError(f"cannot write to {self.path}: {error.strerror}; {self._store.survivor()}") from error

    def log(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Write scalars to `scalars.jsonl` and TensorBoard; for the same step, log before you save.

        Raises:
            ConfigError: a value is no number, or a name is "step" or "wall_s".
            RobotrlError: writing failed, or the run is open for reading only.
        """
        log = self._writable()
        try:
            log.log(step, scalars)
        except RobotrlError as error:
            if isinstance(error.__cause__, OSError):
                raise RobotrlError(f"{error}; {self._store.survivor()}") from error.__cause__
            raise

    def save(self, tree: Any, *, step: int, score: float | None = None, kind: str = "train") -> Path:
        """Save a checkpoint; keeps the newest few and the best one, see `best`.

        Args:
            tree: the state, a `robotrl.run.state_tree.Tree`.
            step: training step; an existing checkpoint of this step is replaced.
            score: score, higher is better; None if this step was not evaluated.
            kind: writer, e.g. the algorithm's name.

        Returns:
            The checkpoint's directory.

        Raises:
            ConfigError: a leaf of the tree cannot be saved (it is named).
            RobotrlError: writing failed (the message names the checkpoint that survives), or the run is open for
                reading only.
        """
        log = self._writable()
        try:
            log.sync()
        except OSError as error:
            raise RobotrlError(f"cannot log to {self.path}: {error.strerror}; {self._store.survivor()}") from error
        return self._store.save(tree, step=step, kind=kind, score=None if score is None else float(score))

    def best_entry(self) -> Entry | None:
        """Entry of the checkpoint with the highest score, not yet read; None if none was scored."""
        return self._store.best_entry()

    def entries(self) -> list[Entry]:
        """All checkpoints, oldest first, including damaged ones."""
        return self._store.entries()

    def scores(self) -> dict[int, float]:
        """Step to score of the kept, evaluated checkpoints, oldest first."""
        return self._store.scores()

    def choose(self, step: int, rates: Mapping[int, float], starts: int) -> None:
        """Make a checkpoint the best one, after a comparison; see `CheckpointStore.choose`.

        Raises:
            RobotrlError: writing failed, or the run is open for reading only.
        """
        self._writable()
        self._store.choose(step, rates, starts)

    def latest(self) -> Checkpoint | None:
        """Newest undamaged checkpoint; None if none was saved. Newer damaged ones are reported.

        Raises:
            DataError: there are checkpoints and none is whole.
        """
        return self._store.latest()

    def best(self) -> Checkpoint | None:
        """Checkpoint of the final selection, else the one with the highest score (the newest of equals).

        None if none was scored; if it is damaged, this is reported and the newest undamaged one is returned.

        Raises:
            DataError: no checkpoint is whole.
        """
        return self._store.best()

    @property
    def stop_requested(self) -> bool:
        """True if the loop should save and end: after SIGINT or SIGTERM inside `with run:`, or after `request_stop`."""
        return self._signals.received is not None or self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Reason given to `request_stop`; None if it was not called."""
        return self._stop_reason

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 128 + signal after a signal (130 for Ctrl-C), else 0."""
        return 0 if self._signals.received is None else 128 + self._signals.received

    def request_stop(self, reason: str) -> None:
        """Ask the loop to save and end, as Ctrl-C does; the first reason is kept."""
        self._stop_reason = self._stop_reason or reason

    def close(self) -> None:
        """Close the logs and release the write lock; may be called repeatedly."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def empty(self) -> bool:
        """True if nothing was saved or logged yet."""
        log = self.path / "scalars.jsonl"
        return not self._store.entries() and (not log.exists() or log.stat().st_size == 0)

    def discard(self) -> None:
        """Close the run, and remove its directory and the empty parent folders that it made.

        Use it for a run that was refused before anything was saved.

        Raises:
            ConfigError: it holds a checkpoint.
        """
        if self._store.entries():
            raise ConfigError(f"run {self.path} holds checkpoints: expected none in a run that is discarded")
        self.close()
        shutil.rmtree(self.path)
        _remove_empty(self._made)

    def __enter__(self) -> Run:
        self._writable()
        self._signals.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_session(error)
        self.close()
        self._signals.restore()

    def _end_session(self, error: BaseException | None) -> None:
        """Record how the session ended; an error of that is not worth more than `error`."""
        if self._session is None:
            return
        end: SessionEnd = "stopped" if self.stop_requested or error is not None else "finished"
        why = self._stop_reason or ""
        if self._signals.received is not None:
            why = signal.Signals(self._signals.received).name
        if isinstance(error, Exception):
            end, why = "failed", f"{type(error).__name__}: {short(str(error))}"
        with contextlib.suppress(OSError):
            write_session(self.path, self._session._replace(end=end, why=why))

    def _writable(self) -> ScalarLog:
        if self._log is None:
            raise RobotrlError(f"run {self.path} is open for reading only: call resume() to write to it")
        return self._log

    def _changed(self, inputs: Sequence[Digest] | None) -> list[str]:
        """Changes that block a resume, one phrase each; harmless ones are reported as a warning."""
        found = changes(self.inputs, inputs or ())
        if found.said:
            warn(f"run {self.path}: {_listed(found.said)}")
        return [*self.altered, *found.blocking]

    def _record_session(
        self, command: Sequence[str], step: int, accepted: Sequence[str], inputs: Sequence[Digest] | None
    ) -> None:
        record = read_json(self.path / "run.json", "run record", SCHEMA_VERSION)
        session = _session(command, step)
        before = read_json(self.path / "versions.json", "run versions", SCHEMA_VERSION)
        try:
            differs = changes_since(before)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"run {self.path}: versions.json lacks what it should hold ({short(repr(error))})"
            ) from error
        if differs:
            warn(f"run {self.path} goes on with other software or hardware, so not bit for bit: {'; '.join(differs)}")
            session["changed"] = differs
        seal = record.get("inputs")
        if accepted:
            warn(f"run {self.path} goes on knowingly: {_listed(accepted)}")
            session["accepted"] = list(accepted)
            files = {name: read_plain(self.path / name, name) for name in OWN}
            content = sealed(files, self.seed, self.inputs if inputs is None else inputs)
            replace_file(self.path / INPUTS, dump_json(content))
            seal = content["digest"]
        try:
            record["sessions"].append(session)
        except (KeyError, AttributeError) as error:
            raise DataError(f"run {self.path}: run.json lacks its list of sessions") from error
        replace_file(self.path / "run.json", _run_json(record, seal))


def check_json(value: Any, name: str) -> None:
    """Check that a config can be saved as it is.

    Raises:
        ConfigError: a field is not a JSON value; it is named.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            if not isinstance(key, str):
                raise ConfigError(f"{name} has the key {short(repr(key))}: expected text")
            check_json(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            check_json(item, f"{name}[{index}]")
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise out_of_range(name, value, "a finite number")
    elif isinstance(value, str) and not value.isprintable() and not _is_text(value):
        raise ConfigError(f"{name} is {short(ascii(value))}: expected text, which UTF-8 can hold")
    elif value is not None and not isinstance(value, (bool, int, str)):
        raise ConfigError(f"{name} is a {type(value).__name__}: expected null, text, a number, a list or an object")


def _run_json(record: Mapping[str, Any], seal: str | None) -> bytes:
    """The text of `run.json`.

    Args:
        record: its content.
        seal: the digest in `inputs.json`; None if the run has no such file.
    """
    body = {key: value for key, value in record.items() if key not in ("inputs", "digest")}
    if seal is not None:
        body["inputs"] = seal
    return dump_json({**body, "digest": hashlib.sha256(dump_json(body)).hexdigest()})


def _verified(path: Path, record: Mapping[str, Any]) -> tuple[Sealed | None, Changes]:
    """Content of `inputs.json`, and changes of the run's own files."""
    altered = Changes([], [])
    body = {key: value for key, value in record.items() if key != "digest"}
    if ("digest" in record or "inputs" in record) and record.get("digest") != hashlib.sha256(
        dump_json(body)
    ).hexdigest():
        altered.blocking.append("run.json was altered: it does not match its digest")
    try:
        seal = read_sealed(path)
    except DataError as error:
        altered.blocking.append(str(error))
        return None, altered
    if seal is None:
        if "inputs" in record:
            altered.blocking.append(f"{INPUTS} is missing")
        return None, altered
    found = altered_files(path, seal)
    altered.blocking.extend(found.blocking)
    altered.said.extend(found.said)
    if record.get("inputs") != seal.digest:
        altered.blocking.append(f"{INPUTS} is not the one that run.json names")
    if record.get("seed") != seal.seed:
        altered.blocking.append(f"the seed in run.json is {short(repr(record.get('seed')))}: {INPUTS} has {seal.seed}")
    return seal, altered


def _listed(phrases: Sequence[str]) -> str:
    more = f"; and {len(phrases) - SHOWN} more" if len(phrases) > SHOWN else ""
    return "; ".join(phrases[:SHOWN]) + more


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove empty folders, innermost first, up to the first that is not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _session(command: Sequence[str], from_step: int | None) -> dict[str, Any]:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = [word.encode("utf-8", "backslashreplace").decode() for word in command]
    return {"started": started, "command": words, "from_step": from_step}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes of a command line that are not valid text
        return False
    return True


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
