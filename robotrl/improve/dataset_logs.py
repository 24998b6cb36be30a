"""Episodes of a dataset in the LeRobot layout that a robot recorded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.datasets.agreement.flags import flags
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.merging import stated_specs
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.errors import DataError, short
from robotrl.improve.control_logs import CUT, RATE_TOLERANCE, name_faults
from robotrl.improve.logged import LogBook, LogFault, OwnEpisode
from robotrl.improve.target import Target
from robotrl.labels.corrections import CORRECTIONS, spans_mask

INTERVENED, FAULT, ORIGIN = "intervened", "fault", "origin"
"""Columns of the episodes table: whether a person took over, whether a fault ended the episode, and the log that it
comes from."""


def read_dataset_log(path: Path, target: Target) -> LogBook:
    """Read the episodes of a dataset, and check them against the policy.

    Raises:
        DataError: no dataset, one that states no units, or marks that are none.
    """
    dataset = read_dataset(path)
    if faults := dataset_faults(dataset, target):
        return LogBook(faults=tuple(faults))
    left_out: Counter[str] = Counter()
    found: list[OwnEpisode] = []
    unmarked: list[LogFault] = []
    succeeded = flags(dataset, "next.success")
    for index in range(dataset.num_episodes):
        rows = slice(int(dataset.offsets[index]), int(dataset.offsets[index + 1]))
        if _said(dataset, FAULT, index):
            left_out[CUT] += 1
            continue
        origin = str(_said(dataset, ORIGIN, index) or f"{path.name} episode {index}")
        stated = bool(dataset.episodes["success"][index])
        if wrong := contradiction(stated, succeeded[rows]):
            return LogBook(faults=(LogFault("contradicted success", f"{origin}: {wrong}"),))
        person = _person(dataset, index, origin)
        if _said(dataset, INTERVENED, index) and not person.any():
            text = f"{origin}: a person took over ({INTERVENED} is true), and no frames are marked"
            fault = LogFault("corrections without marks", f"{text}: expected the column {CORRECTIONS!r}, e.g. '12-30'")
            unmarked = unmarked or [fault]
            continue
        found.append(
            OwnEpisode(
                {
                    # the reader gives a feature of one number without its axis
                    key: dataset.frames(observation_key(key))[rows].reshape(-1, *spec.shape)
                    for key, spec in target.observation_spec.items()
                },
                np.asarray(dataset.frames(ACTION)[rows], np.float32).reshape(rows.stop - rows.start, -1),
                stated,
                bool(flags(dataset, "next.truncated")[rows][-1]),
                person,
                int(_said(dataset, "state_id", index, -1)),
                str(dataset.provenance.get("sim", "")),
                dataset.tasks[int(dataset.frames("task_index")[rows][0])],
                origin,
            )
        )
    return LogBook(tuple(found), dict(left_out), tuple(unmarked))


def dataset_faults(dataset: Dataset, target: Target) -> list[LogFault]:
    """Differences between a dataset and the policy: robot, rate, order of joints, units, and what its actions are.

    Raises:
        DataError: it states no names and units.
    """
    specs, action = stated_specs(dataset)
    name = dataset.root.name
    out: list[LogFault] = []
    sim = dataset.provenance.get("sim")
    if sim is not None and sim != target.sim:
        out.append(LogFault("another robot", f"{name}: sim is {sim!r}: expected {target.sim!r}, the policy's"))
    rate_hz = 1.0 / target.control_dt_s
    if abs(1.0 / dataset.fps - target.control_dt_s) > RATE_TOLERANCE:
        out.append(LogFault("another rate", f"{name}: is at {dataset.fps:g} Hz: expected {rate_hz:g} Hz, the policy's"))
    expert: Any = dataset.provenance.get("expert")
    if isinstance(expert, dict) and expert.get("labels") == "intended":
        text = f"{name}: labels is 'intended': expected 'executed', for what was not done has no outcome"
        out.append(LogFault("other actions", text))
    pairs = [("action", action, target.action_spec)]
    for key, expected in target.observation_spec.items():
        if key not in specs:
            text = f"{name}: observation {key!r} is missing, there is {', '.join(specs)}"
            out.append(LogFault("another observation", text))
        else:
            pairs.append((f"observation {key!r}", specs[key], expected))
    for what, found, expected in pairs:
        out += name_faults(name, what, list(found.names), list(expected.names))
        if found.names != expected.names:
            continue
        if found.shape != expected.shape:
            text = f"{name}: {what} has shape {found.shape}: expected {expected.shape}, the policy's"
            out.append(LogFault("another observation", text))
        if found.units != expected.units:
            place = next(i for i, unit in enumerate(found.units) if unit != expected.units[i])
            text = f"{name}: {found.names[place]!r} of {what} is in {found.units[place]!r}"
            out.append(LogFault("another unit", f"{text}: expected {expected.units[place]!r}, the policy's"))
    return out


def contradiction(stated: bool, flagged: NDArray[np.bool_]) -> str:
    """Sentence on an episode whose success is stated in two ways; empty if they agree.

    Args:
        stated: success in the episodes table.
        flagged: (T,) success of each frame.
    """
    if stated == bool(flagged[-1]) and not flagged[:-1].any():
        return ""
    if flagged[:-1].any():
        return f"next.success is set at frame {int(np.argmax(flagged))}, and {len(flagged) - 1} is the last one"
    return f"success is {stated} in meta/episodes, and next.success of the last frame is {bool(flagged[-1])}"


def _said(dataset: Dataset, column: str, index: int, otherwise: Any = None) -> Any:
    """Value of an episode in a column that only some datasets have."""
    return dataset.episodes[column][index] if column in dataset.episodes else otherwise


def _person(dataset: Dataset, index: int, origin: str) -> NDArray[np.bool_]:
    text, length = str(_said(dataset, CORRECTIONS, index, "")), int(dataset.episodes["length"][index])
    try:
        return spans_mask(text, length)
    except ValueError as error:
        raise DataError(f"{origin}: {CORRECTIONS} is {short(repr(text))}: {error}") from error
