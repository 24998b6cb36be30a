"""A run's checkpoints: the last few and the best are kept; a damaged one is never mistaken for a good one."""

from __future__ import annotations

import logging
import math
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.errors import DataError, RobotrlError
from robotrl.run.checkpoint import (
    TEMPORARY,
    Checkpoint,
    CheckpointManifest,
    clean_leftovers,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from robotrl.utils.files import dump_json, read_json, replace_file

LOGGER = logging.getLogger("robotrl")
SCHEMA_VERSION = 1
CHOICE = "choice.json"
STEP_NAME = re.compile(r"step_(\d{9,})")


def warn(message: str) -> None:
    """Say it in the log and, where the log goes elsewhere, on the terminal too."""
    LOGGER.warning(message)
    if LOGGER.hasHandlers():  # without handlers, logging itself prints warnings to stderr
        print(f"warning: {message}", file=sys.stderr, flush=True)


class Entry(NamedTuple):
    """A checkpoint on the disk, not yet read."""

    step: int
    path: Path


class CheckpointStore:
    """The directory `checkpoints/` of a run: `step_000000123/` each, `latest.json` and `best.json`.

    The two pointer files are for people and other tools; this class trusts the manifests, and `choice.json` where a
    second look at the end of the run has chosen the best checkpoint. Writing methods are only for the one process that
    holds the run's lock.

    Args:
        directory: `checkpoints/`.
        keep: how many of the newest to keep, 1 or more; the best is kept besides.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep

    def entries(self) -> list[Entry]:
        """All checkpoints, oldest first, damaged ones included."""
        if not self.directory.is_dir():
            return []
        matches = [(STEP_NAME.fullmatch(path.name), path) for path in self.directory.iterdir()]
        return sorted(Entry(int(match[1]), path) for match, path in matches if match)

    def clean(self) -> None:
        """Remove what a killed writer left behind and bring the pointers up to date."""
        clean_leftovers(self.directory)
        self._point()

    def save(self, tree: Any, *, step: int, kind: str, score: float | None) -> Path:
        """Write a checkpoint, move the pointers, remove what is no longer kept.

        Raises:
            ConfigError: the tree cannot be saved.
            RobotrlError: the disk refused; the message names the newest checkpoint that survives.
        """
        if score is not None and not math.isfinite(score):
            warn(f"checkpoint score at step {step} is {score}: saved as not evaluated")
            score = None
        path = self.directory / f"step_{step:09d}"
        try:
            write_checkpoint(path, tree, step=step, kind=kind, score=score)
            self._point()
        except (OSError, RobotrlError) as error:
            cause = error.__cause__ if isinstance(error, RobotrlError) else error
            if not isinstance(cause, OSError):
                raise
            said = error if isinstance(error, RobotrlError) else f"cannot write to {self.directory}: {error.strerror}"
            raise RobotrlError(f"{said}; {self.survivor()}") from cause
        self._prune()
        return path

    def survivor(self) -> str:
        """One clause that names the newest checkpoint whose manifest is intact, for error messages."""
        intact = [entry for entry, _ in self._manifests()]
        return f"{intact[-1].path} is intact: resume from it" if intact else "no checkpoint was saved before"

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None when there is none at all. Damaged ones are reported.

        Raises:
            DataError: there are checkpoints and none of them is whole.
        """
        entries = self.entries()
        damage: list[str] = []
        for entry in reversed(entries):
            try:
                found = read_checkpoint(entry.path)
            except DataError as error:
                damage.append(str(error))
                continue
            for message in damage:
                warn(f"{message}; using {found.path} instead")
            return found
        if entries:
            raise DataError(f"none of the {len(entries)} checkpoints in {self.directory} is whole; newest: {damage[0]}")
        return None

    def best(self) -> Checkpoint | None:
        """The checkpoint that was chosen, or has the highest score (the newest of equals); None when none was scored.

        If it is damaged, that is reported and the newest whole one is given.

        Raises:
            DataError: no checkpoint is whole.
        """
        for attempt in (1, 2):
            entry = self._best_entry()
            if entry is None:
                return None
            try:
                return read_checkpoint(entry.path)
            except DataError as error:
                # A running writer may have found a better one and removed this one under our eyes: look again, once.
                if attempt == 1 and not entry.path.exists():
                    continue
                warn(f"best checkpoint is damaged: {error}; using the newest whole one instead")
                break
        return self.latest()

    def best_entry(self) -> Entry | None:
        """Where the checkpoint with the highest score is, unread; None when none was ever scored."""
        return self._best_entry()

    def set_aside_after(self, step: int) -> None:
        """Rename checkpoints later than `step` (-1: all) to `damaged_...`, to be neither used nor counted."""
        for entry in self.entries():
            if entry.step > step:
                target = self.directory / f"damaged_{entry.path.name}"
                shutil.rmtree(target, ignore_errors=True)
                entry.path.rename(target)

    def _manifests(self) -> list[tuple[Entry, CheckpointManifest]]:
        found: list[tuple[Entry, CheckpointManifest]] = []
        for entry in self.entries():
            try:
                found.append((entry, read_manifest(entry.path)))
            except DataError:  # reported by whoever wants to read this one
                continue
        return found

    def scores(self) -> dict[int, float]:
        """Step to score of the checkpoints that were evaluated and are kept, oldest first."""
        return {entry.step: score for entry, score in self._scored().items()}

    def choose(self, step: int, rates: Mapping[int, float], starts: int) -> None:
        """Make a checkpoint the best one, whatever the scores of periodic evaluations say.

        Args:
            step: of the checkpoint.
            rates: success of those that it was compared with, by step, and its own.
            starts: how many starts each rate is of.

        Raises:
            RobotrlError: the disk refused.
        """
        among = [{"step": at, "success": rate, "starts": starts} for at, rate in sorted(rates.items())]
        try:
            replace_file(
                self.directory / CHOICE, dump_json({"schema_version": SCHEMA_VERSION, "step": step, "among": among})
            )
            self._point()
        except OSError as error:
            raise RobotrlError(f"cannot write to {self.directory}: {error.strerror}; {self.survivor()}") from error

    def _scored(self) -> dict[Entry, float]:
        return {entry: manifest.score for entry, manifest in self._manifests() if manifest.score is not None}

    def _chosen(self) -> int | None:
        """The step that a second look chose, None without one or where its file cannot be read."""
        path = self.directory / CHOICE
        if not path.exists():
            return None
        try:
            step = read_json(path, "choice of the best checkpoint", SCHEMA_VERSION).get("step")
            if not isinstance(step, int):
                raise DataError(f"choice of the best checkpoint {path}: step is {step!r}, expected a whole number")
        except DataError as error:
            warn(f"{error}; the best checkpoint is that with the highest score")
            return None
        return step

    def _best_entry(self) -> Entry | None:
        scored, chosen = self._scored(), self._chosen()
        if not scored:
            return None
        return max(scored, key=lambda entry: (entry.step == chosen, scored[entry], entry.step))

    def _point(self) -> None:
        manifests = self._manifests()
        best = self._best_entry()
        targets = {"latest.json": manifests[-1][0] if manifests else None, "best.json": best}
        scores = {entry: manifest.score for entry, manifest in manifests}
        for name, entry in targets.items():
            path = self.directory / name
            if entry is None:
                path.unlink(missing_ok=True)
                continue
            data = {"checkpoint": entry.path.name, "step": entry.step, "score": scores[entry]}
            content = dump_json({"schema_version": SCHEMA_VERSION, **data})
            if not path.exists() or path.read_bytes() != content:
                replace_file(path, content)

    def _prune(self) -> None:
        best = self._best_entry()
        for entry in self.entries()[: -self.keep]:
            if entry != best:
                # Renamed first: killed halfway through removing it, no half checkpoint stands there under its name.
                doomed = self.directory / f"{TEMPORARY}{entry.path.name}"
                shutil.rmtree(doomed, ignore_errors=True)
                entry.path.rename(doomed)
                shutil.rmtree(doomed)
