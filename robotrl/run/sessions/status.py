"""State of a run, or of a folder of runs, from its files alone."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robotrl.errors import DataError
from robotrl.run.checkpoint_store import CheckpointStore
from robotrl.run.locking import is_being_written
from robotrl.run.logs import read_scalars
from robotrl.run.sessions.record import SessionRecord, read_session
from robotrl.utils.files import read_json

RunState = Literal["running", "finished", "stopped", "failed", "killed", "ended"]
"""State of a run; "ended" if it recorded no session: it was killed before its first iteration, or is of an earlier
version."""
TAIL_BYTES = 1 << 16
PACE_RECORDS = 20
"""Number of last records over which the time of an iteration is averaged."""
SILENT_S = 120.0
"""A run on another machine, whose lock cannot be seen from here, counts as killed after so many seconds without a line,
or after three times what its iterations take."""
DEEPEST = 4
"""Depth of folders in which runs are looked for."""


class RunStatus(NamedTuple):
    """Present state of a run."""

    path: str
    state: RunState
    why: str
    """Reason of a stop, or error of a failure."""
    host: str
    """Machine of the present or last session; "" if unknown."""
    iteration: int
    iterations: int | None
    """Iterations of the whole run; None if unknown."""
    env_steps: float
    env_steps_per_s: float | None
    evaluation: dict[str, float] | None
    """Last evaluation: `iteration`, `success` with `low` and `high` (Wilson's 95 % interval), and `return`."""
    best: float | None
    """Best evaluation, by the run's score."""
    score: str
    """ "success" or "return"."""
    since_line_s: float | None
    """Time since the last line of the log, s."""
    left_s: float | None
    """Time to the end of a run in training, by the pace of its last iterations, s."""
    checkpoint: int | None
    """Iteration of the newest checkpoint."""


def status_of(path: Path, now: float | None = None) -> RunStatus:
    """State of a run, read without changing it.

    Args:
        path: the run's directory.
        now: time by the clock of `time.time`, s; None is the present.

    Raises:
        DataError: there is no run at `path`, or its config or session record is damaged.
    """
    # first: a run that ends writes its record, and then releases the lock
    written = is_being_written(path)
    config = read_json(path / "config.json", "run config", 1).get("config")
    score = _score(config)
    log = path / "scalars.jsonl"
    records = read_scalars(log) if log.exists() else []
    last: Mapping[str, float] = records[-1] if records else {}
    session, pace_s = read_session(path), _pace_s(records)
    since = None if not records else max(0.0, (time.time() if now is None else now) - os.stat(log).st_mtime)
    state: RunState = "running" if written else _state(session, since, pace_s)
    evaluated = [record for record in records if "eval_success" in record]
    entries = CheckpointStore(path / "checkpoints", 1).entries()
    iteration, iterations = int(last.get("step", 0)), None if session is None else session.iterations
    left = None
    if state == "running" and pace_s is not None and iterations is not None:
        left = max(0.0, (iterations - iteration) * pace_s - min(since or 0.0, pace_s))
    return RunStatus(
        path=str(path),
        state=state,
        why="" if session is None or state == "running" else session.why,
        host="" if session is None else session.host,
        iteration=iteration,
        iterations=iterations,
        env_steps=last.get("env_steps", 0.0),
        env_steps_per_s=_finite(last.get("env_steps_per_s")),
        evaluation=_evaluation(evaluated[-1]) if evaluated else None,
        best=_best([record.get(f"eval_{score}", math.nan) for record in evaluated]),
        score=score,
        since_line_s=since,
        left_s=left,
        checkpoint=entries[-1].step if entries else None,
    )


def runs_below(folder: Path) -> list[Path]:
    """Directories of runs in a folder, the folder itself included, in the order of their paths."""
    if (folder / "config.json").exists():
        return [folder]
    found: list[Path] = []
    level = [folder]
    for _ in range(DEEPEST):
        inside = [path for parent in level for path in parent.iterdir() if path.is_dir() and path.name[:1] != "."]
        level = []
        for path in inside:
            (found if (path / "config.json").exists() else level).append(path)
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[Any]:
    """Sort key by which seed-10 comes after seed-9."""
    parted = [(part, *part.rpartition("-")[::2]) for part in path.parts]
    return [(head, int(tail)) if tail.isdecimal() else (part, -1) for part, head, tail in parted]


def iterations_done(path: Path) -> tuple[int, int | None]:
    """Iterations of a run that are done, by the end of its log, and their total; None if it is unknown."""
    try:
        session = read_session(path)
        last = _last_record(path / "scalars.jsonl")
    except (DataError, OSError):
        return 0, None
    return int(last.get("step", 0)), None if session is None else session.iterations


def _last_record(log: Path) -> dict[str, Any]:
    """Last whole record of a `scalars.jsonl`, without reading all of it."""
    if not log.exists():
        return {}
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _state(session: SessionRecord | None, since: float | None, pace_s: float | None) -> RunState:
    """State of a run whose lock nobody holds, as far as can be seen from this machine."""
    if session is None:
        return "ended"
    if session.end:
        return session.end
    silent = max(SILENT_S, 3 * (pace_s or 0.0))
    if session.host != socket.gethostname() and since is not None and since < silent:
        return "running"
    return "killed"


def _pace_s(records: Sequence[Mapping[str, float]]) -> float | None:
    """Seconds of an iteration, evaluations included, over the last records."""
    tail = records[-PACE_RECORDS - 1 :]
    if len(tail) < 2 or tail[-1]["step"] <= tail[0]["step"]:
        return None
    return (tail[-1]["wall_s"] - tail[0]["wall_s"]) / (tail[-1]["step"] - tail[0]["step"])


def _evaluation(record: Mapping[str, float]) -> dict[str, float]:
    named = {
        "success": record["eval_success"],
        "low": record.get("eval_low", math.nan),
        "high": record.get("eval_high", math.nan),
        "return": record.get("eval_return", math.nan),
    }
    return {"iteration": record["step"]} | {name: value for name, value in named.items() if math.isfinite(value)}


def _best(scores: Sequence[float]) -> float | None:
    return max((score for score in scores if math.isfinite(score)), default=None)


def _score(config: Any) -> str:
    evaluation: Any = config.get("evaluation") if isinstance(config, Mapping) else None
    score: Any = evaluation.get("score") if isinstance(evaluation, Mapping) else None
    return score if score in ("success", "return") else "success"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
