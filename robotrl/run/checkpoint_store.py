"""Checkpoint store of a run: keeps the newest few and the best, and skips damaged ones."""

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
    """Log a warning and, if the log goes elsewhere, also print it on the terminal."""
    LOGGER.warning(message)
    if LOGGER.hasHandlers():  # without handlers, logging itself prints warnings to stderr
        print(f"warning: {message}", file=sys.stderr, flush=True)


class Entry(NamedTuple):
    """A checkpoint on the disk, not yet read."""

    step: int
    path: Path


class CheckpointStore:
    """The directory `checkpoints/` of a run: `step_000000123/` each, `latest.json` and `best.json`.

    The two pointer files are for people and other tools; this class reads the manifests, and `choice.json` if the final
    selection at the end of the run has chosen the best checkpoint. Only the process that holds the run's lock may call
    the writing methods.

    Args:
        directory: `checkpoints/`.
        keep: number of newest checkpoints to keep, 1 or more; the best is kept in addition.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep

    def entries(self) -> list[Entry]:
        """All checkpoints, oldest first, including damaged ones."""
        if not self.directory.is_dir():
            return []
        matches = [(STEP_NAME.fullmatch(path.name), path) for path in self.directory.iterdir()]
        return sorted(Entry(int(match[1]), path) for match, path in matches if match)

    def clean(self) -> None:
        """Remove the leftovers of a killed writer and update the pointer files."""
        clean_leftovers(self.directory)
        self._point()

    def save(self, tree: Any, *, step: int, kind: str, score: float | None) -> Path:
        """Write a checkpoint, update the pointer files, and remove checkpoints that are no longer kept.

        Raises:
            ConfigError: the tree cannot be saved.
            RobotrlError: writing failed; the message names the newest checkpoint that survives.
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
        """Text for errors that names the newest checkpoint with an intact manifest."""
        intact = [entry for entry, _ in self._manifests()]
        return f"{intact[-1].path} is intact: resume from it" if intact else "no checkpoint was saved before"

    def latest(self) -> Checkpoint | None:
        """Newest undamaged checkpoint; None if there is no checkpoint. Damaged ones are reported.

        Raises:
            DataError: all checkpoints are damaged.
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
        """Chosen checkpoint, or the one with the highest score (the newest of equals); None if none was scored.

        If it is damaged, the damage is reported and the newest undamaged one is returned.

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
                # A running writer may have removed this checkpoint after finding a better one: try once more.
                if attempt == 1 and not entry.path.exists():
                    continue
                warn(f"best checkpoint is damaged: {error}; using the newest whole one instead")
                break
        return self.latest()

    def best_entry(self) -> Entry | None:
        """Entry of the checkpoint with the highest score, not yet read; None if none was scored."""
        return self._best_entry()

    def set_aside_after(self, step: int) -> None:
        """Rename checkpoints later than `step` (-1: all) to `damaged_...`, so that they are ignored."""
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
            except DataError:  # reported when somebody reads this checkpoint
                continue
        return found

    def scores(self) -> dict[int, float]:
        """Step to score of the kept, evaluated checkpoints, oldest first."""
        return {entry.step: score for entry, score in self._scored().items()}

    def choose(self, step: int, rates: Mapping[int, float], starts: int) -> None:
        """Make a checkpoint the best one, independently of the scores of periodic evaluations.

        Args:
            step: step of the checkpoint.
            rates: step to success rate of all compared checkpoints, this one included.
            starts: number of starts behind each rate.

        Raises:
            RobotrlError: writing failed.
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
        """Step that the final selection chose; None if there was none or its file cannot be read."""
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
                # Rename first: a kill while removing then leaves no half checkpoint under the original name.
                doomed = self.directory / f"{TEMPORARY}{entry.path.name}"
                shutil.rmtree(doomed, ignore_errors=True)
                entry.path.rename(doomed)
                shutil.rmtree(doomed)
