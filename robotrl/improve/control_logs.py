"""Episodes of a control log of `robotrl deploy --log`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.deploy.analysis.summary import meaning_of_header
from robotrl.deploy.analysis.ticks import ControlTicks, LoggedEpisode, read_ticks
from robotrl.deploy.control.log import array_of
from robotrl.deploy.control.safety import Mode
from robotrl.errors import DataError, short
from robotrl.improve.logged import FaultKind, LogBook, LogFault, OwnEpisode
from robotrl.improve.target import Target
from robotrl.spec import Spec, is_picture
from robotrl.utils.files import read_json

CUT, GAPS, UNSEEN = "cut short by a fault or a stop", "missed control periods", "no observation at a tick"
"""Reasons to leave an episode out."""
MARKS = ".corrections.json"
"""Ending of the file beside a log that marks a person's corrections."""
RATE_TOLERANCE = 1e-6
SIM = "sim:"
"""Beginning of the name of a robot that is a sim."""


def marks_path(log: Path) -> Path:
    """Path of the marks of a log: its name and ".corrections.json"."""
    return log.with_name(log.name + MARKS)


def read_control_log(path: Path, target: Target) -> LogBook:
    """Read the episodes of a control log, and check them against the policy.

    Episodes that a fault or a stop cut short are no failures of the policy: they are left out and counted, as are those
    with missed control periods, whose frames are not evenly spaced.

    Raises:
        DataError: no control log, or marks that are none.
    """
    ticks = read_ticks(path)
    faults = header_faults(path, ticks, target)
    bundles = frozenset({str(ticks.header["bundle_id"])})
    if faults:
        return LogBook(faults=tuple(faults), bundles=bundles)
    marks = read_marks(path, ticks)
    left_out: Counter[str] = Counter()
    found: list[OwnEpisode] = []
    robot = str(ticks.header["robot"])
    sim = robot.removeprefix(SIM).partition(",")[0] if robot.startswith(SIM) else ""
    for logged in ticks.episodes:
        rows = np.flatnonzero(ticks.episode == logged.number)
        if why := _unusable(ticks, rows, logged):
            left_out[why] += 1
            continue
        origin = f"{path.name} episode {logged.number}"
        person = marks.get(logged.number, np.zeros(len(rows), np.bool_))
        if not person.any() and (tick := overruled(ticks, rows)) is not None:
            text = (
                f"{origin}: at tick {tick} the robot was sent another action than the policy's, and no reason of the"
                f" safety chain says why: expected a person's corrections to be marked in {marks_path(path).name}"
            )
            faults.append(LogFault("corrections without marks", text))
            continue
        found.append(
            OwnEpisode(
                {key: _observed(ticks, rows, key, spec) for key, spec in target.observation_spec.items()},
                ticks.sent[rows],
                bool(logged.success),
                not logged.success,
                person,
                -1 if logged.state_id is None else logged.state_id,
                sim,
                "",
                origin,
            )
        )
    return LogBook(tuple(found), dict(left_out), tuple(faults[:1]), bundles)


def header_faults(path: Path, ticks: ControlTicks, target: Target) -> list[LogFault]:
    """Differences between a log's header and the policy: bundle, robot, rate, order of joints, units, pictures."""
    header = ticks.header
    out: list[LogFault] = []

    def add(kind: FaultKind, found: Any, expected: Any, what: str) -> None:
        out.append(LogFault(kind, f"{path.name}: {what} is {short(str(found))}: expected {short(str(expected))}"))

    if header.get("dry_run"):
        add("nothing was sent", "true", "false, a dry run sends no action", "dry_run")
    if target.bundle_id is not None and header["bundle_id"] != target.bundle_id:
        add("another bundle", header["bundle_id"][:12], f"{target.bundle_id[:12]}, that of {target.given}", "bundle_id")
    robot = str(header["robot"])
    if robot.startswith(SIM) and (name := robot.removeprefix(SIM).partition(",")[0]) != target.sim:
        add("another robot", name, f"{target.sim}, the policy's", "the sim that stood for the robot")
    if abs(ticks.period_s - target.control_dt_s) > RATE_TOLERANCE:
        add("another rate", f"{ticks.period_s:g} s", f"{target.control_dt_s:g} s, the policy's", "control_period_s")
    out += name_faults(path.name, "action", ticks.names, list(target.action_spec.names))
    for key, spec in target.observation_spec.items():
        names = header["observations"].get(key)
        if names is None:
            there = ", ".join(header["observations"])
            out.append(
                LogFault("another observation", f"{path.name}: observation {key!r} is missing, there is {there}")
            )
        elif is_picture(spec):
            text = f"{path.name}: {key!r} is a camera, whose pictures a control log keeps at inferences only"
            out.append(LogFault("pictures", f"{text}: expected a dataset, which has one for each step"))
        else:
            out += name_faults(path.name, f"observation {key!r}", list(names), list(spec.names))
    return out or unit_faults(path.name, ticks, target)


def name_faults(log: str, what: str, found: list[str], expected: list[str]) -> list[LogFault]:
    """Elements that are others than the policy's, or in another order."""
    if found == expected:
        return []
    if sorted(found) != sorted(expected):
        other = sorted(set(found) ^ set(expected))
        text = f"{log}: {what} differs in {', '.join(map(repr, other[:4]))}: expected {short(', '.join(expected))}"
        return [LogFault("another robot", text)]
    place = next(i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
    text = f"{log}: element {place} of {what} is {found[place]!r}: expected {expected[place]!r}, in the policy's order"
    return [LogFault("another order", text)]


def unit_faults(log: str, ticks: ControlTicks, target: Target) -> list[LogFault]:
    """Units that are others than the policy's, where the log states them."""
    meaning = meaning_of_header(ticks)
    if meaning is None:
        return []
    pairs = [("action", meaning.units, target.action_spec)]
    pairs += [
        (f"observation {key!r}", meaning.observation_units[key], spec) for key, spec in target.observation_spec.items()
    ]
    return [
        LogFault("another unit", f"{log}: {name!r} of {what} is in {found!r}: expected {expected!r}, the policy's")
        for what, units, spec in pairs
        for name, found, expected in zip(spec.names, units, spec.units, strict=True)
        if found != expected
    ][:1]


def overruled(ticks: ControlTicks, rows: NDArray[np.int64]) -> int | None:
    """First tick at which something else than the policy's action was sent without a reason; None if there is none."""
    plain = (ticks.mode[rows] == Mode.ACTIVE) & (ticks.reason[rows] == 0) & ticks.has_policy[rows]
    other = plain & (ticks.sent[rows] != ticks.policy[rows]).any(axis=1)
    return int(ticks.tick[rows[int(np.argmax(other))]]) if other.any() else None


def read_marks(log: Path, ticks: ControlTicks) -> dict[int, NDArray[np.bool_]]:
    """Ticks of a person's corrections by episode, from the file beside a log; empty without that file.

    Raises:
        DataError: the file is none of these, or marks ticks that the log does not have.
    """
    path = marks_path(log)
    if not path.exists():
        return {}
    out: dict[int, NDArray[np.bool_]] = {}
    marks = read_json(path, "marks of corrections", 1).get("corrections")
    for number, mark in enumerate(marks if isinstance(marks, list) else [None]):
        fields: Any = mark
        try:
            episode, first, last = (int(fields[name]) for name in ("episode", "first_tick", "last_tick"))
        except (TypeError, KeyError, ValueError) as error:
            expected = '"episode", "first_tick" and "last_tick", whole numbers'
            raise DataError(f"{path}: corrections[{number}] is {short(str(mark))}: expected {expected}") from error
        at = ticks.tick[ticks.episode == episode]
        if not len(at) or not at[0] <= first <= last <= at[-1]:
            there = f"ticks {at[0]} to {at[-1]}" if len(at) else "no such episode"
            raise DataError(f"{path}: corrections[{number}] marks {episode}:{first} to {last}: the log has {there}")
        out[episode] = out.get(episode, np.zeros(len(at), np.bool_)) | ((at >= first) & (at <= last))
    return out


def _unusable(ticks: ControlTicks, rows: NDArray[np.int64], logged: LoggedEpisode) -> str:
    """Reason to leave an episode out; empty if there is none."""
    if logged.success is None or (ticks.mode[rows] == Mode.DAMP).any():
        return CUT
    if (np.diff(ticks.tick[rows]) != 1).any():
        return GAPS
    if any(values is None for row in rows.tolist() for values in ticks.records[row]["obs"].values()):
        return UNSEEN
    return ""


def _observed(ticks: ControlTicks, rows: NDArray[np.int64], key: str, spec: Spec) -> np.ndarray:
    """(T, ...) an observation in the policy's shape and type.

    Raises:
        DataError: it has another number of values, as one that stacks several ticks.
    """
    values = np.stack([array_of(ticks.records[row]["obs"][key]) for row in rows.tolist()])
    if values[0].size != int(np.prod(spec.shape)):
        raise DataError(
            f"observation {key!r} of the log has {values[0].size} values a tick: expected {int(np.prod(spec.shape))},"
            " the policy's; one that stacks several ticks is read from a dataset"
        )
    return values.reshape(len(rows), *spec.shape).astype(spec.dtype)
