"""Gripper and hand signals of a dataset, found by column names and units or chosen by the user."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.datasets.agreement.names import names_of
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, unknown
from robotrl.spec import Spec

Real = NDArray[np.float64]

GRIPPER_WORDS = frozenset({"gripper", "finger", "fingers", "jaw", "jaws"})
HAND_WORDS = frozenset({"tip", "tcp", "ee", "eef", "effector", "hand", "tool", "gripper", "flange", "wrist"})
NO_OPENING = frozenset({"vel", "velocity", "rate", "speed", "force", "torque", "effort", "current"})
"""Words of gripper columns that are no measure of the opening."""
LISTED = 24
"""Number of an array's columns that an error lists."""
LEAST_SPAN = 0.25
"""Minimum range of a gripper, as a fraction of its declared range, by which its opening is scaled: a smaller motion
hardly counts."""


class FrameNumber(NamedTuple):
    """One number per frame: a column of an array."""

    array: str
    """"action", or the key of an observation."""
    number: int
    name: str
    """Name of the column; its index if the dataset has no names."""
    unit: str
    """Unit of the column; "" if unknown."""
    span: float
    """Upper minus lower bound; infinite if the dataset has none."""

    @property
    def path(self) -> str:
        """Name in options and errors: ARRAY.NAME."""
        return f"{self.array}.{self.name}"


class Sources(NamedTuple):
    """Columns of the gripper and hand signals."""

    gripper: tuple[FrameNumber, ...]
    """Columns whose mean is the opening."""
    velocity: tuple[FrameNumber, ...]
    """Velocity of the hand along its axes; empty if it is computed from the position."""
    position: tuple[FrameNumber, ...]


class Signals(NamedTuple):
    """Gripper and hand signals of all F frames of a dataset."""

    opening: Real
    """(F,) opening of the gripper, relative to its range in this dataset; either end may be the open one."""
    speed_mps: Real
    """(F,) speed of the hand, m/s."""


def columns(dataset: Dataset) -> tuple[FrameNumber, ...]:
    """All numeric columns of a dataset's frames: of the action, and of vector observations."""
    specs: dict[str, Spec] = dict(dataset.observation_spec or {})
    if dataset.action_spec is not None:
        specs[ACTION] = dataset.action_spec
    found: list[FrameNumber] = []
    for field, feature in dataset.features.items():
        array = field.removeprefix("observation.")
        if (field != ACTION and array == field) or not feature.is_array or len(feature.shape) != 1:
            continue
        spec = specs.get(array)
        if spec is None:
            names = names_of(feature) or tuple(str(i) for i in range(feature.shape[0]))
            found += [FrameNumber(array, i, name, "", math.inf) for i, name in enumerate(names)]
        elif not spec.words:
            rows = zip(spec.names, spec.units, spec.low, spec.high, strict=True)
            found += [FrameNumber(array, i, name, unit, high - low) for i, (name, unit, low, high) in enumerate(rows)]
    return tuple(found)


def find_sources(
    dataset: Dataset, gripper: Sequence[str] = (), velocity: Sequence[str] = (), position: Sequence[str] = ()
) -> Sources:
    """Find the columns of the gripper and the hand.

    The gripper is an observation with such a name, or else an action with one. The hand's velocity is an observation in
    m/s along two or three axes; without one, its position in m is used, if the name says that it is the hand's.

    Args:
        dataset: of demonstrations.
        gripper: columns, as "ARRAY.NAME" or "ARRAY.NUMBER", instead of those found.
        velocity: of the hand along its axes, m/s, instead of those found.
        position: of the hand along its axes, m; instead of a velocity.

    Raises:
        ConfigError: a column is unknown, both `velocity` and `position` are given, or no column or several may be the
            gripper or the hand.
    """
    if velocity and position:
        raise ConfigError(f"position is {', '.join(position)}: expected none, since velocity is given")
    every = columns(dataset)
    by_name = tuple(_column("gripper", path, every) for path in gripper)
    grips = by_name or _find_gripper(dataset, every)
    if position:
        return Sources(grips, (), tuple(_column("position", path, every) for path in position))
    if velocity:
        return Sources(grips, tuple(_column("velocity", path, every) for path in velocity), ())
    return _find_hand(dataset, every, grips)


def signals(dataset: Dataset, sources: Sources) -> Signals:
    """Read a dataset's signals."""
    opening = np.mean([_share(dataset, column) for column in sources.gripper], axis=0)
    if sources.velocity:
        return Signals(opening, np.linalg.norm([values(dataset, c) for c in sources.velocity], axis=0))
    place = np.stack([values(dataset, column) for column in sources.position], axis=1)
    speed = np.zeros(dataset.num_frames)
    for first, last in zip(dataset.offsets[:-1], dataset.offsets[1:], strict=True):
        if last - first > 1:
            gone = np.linalg.norm(np.diff(place[first:last], axis=0), axis=1) * dataset.fps
            speed[first:last] = [*gone, gone[-1]]
    return Signals(opening, speed)


def values(dataset: Dataset, column: FrameNumber) -> Real:
    """Read (F,) a column over all frames."""
    field = ACTION if column.array == ACTION else observation_key(column.array)
    return dataset.frames(field).reshape(dataset.num_frames, -1)[:, column.number].astype(np.float64)


def _share(dataset: Dataset, column: FrameNumber) -> Real:
    found = values(dataset, column)
    least = LEAST_SPAN * column.span if math.isfinite(column.span) else 0.0
    span = max(float(np.ptp(found)), least)
    return (found - found.min()) / span if span > 0 else np.zeros_like(found)


def _column(field: str, path: str, every: Sequence[FrameNumber]) -> FrameNumber:
    for column in every:
        if path in (column.path, f"{column.array}.{column.number}"):
            return column
    array = path.partition(".")[0]
    raise unknown(field, path, [column.path for column in every if column.array == array] or {c.array for c in every})


def _words(name: str) -> set[str]:
    """Lower-case words and abbreviations in a name such as "leftFinger_pos" or "gripper.pos"."""
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))


def _find_gripper(dataset: Dataset, every: Sequence[FrameNumber]) -> tuple[FrameNumber, ...]:
    known = [c for c in every if _words(c.name) & GRIPPER_WORDS and not _words(c.name) & NO_OPENING]
    # measured before commanded: noisy commands flicker, but the fingers do not
    for commanded in (False, True):
        found = [c for c in known if (c.array == ACTION) is commanded and not _axis(c.name)]
        if found:
            return tuple(found)
    raise ConfigError(
        f"dataset {dataset.root}: no column is a gripper by its name: expected gripper to name columns of"
        f" {_arrays(every)}"
    )


def _find_hand(dataset: Dataset, every: Sequence[FrameNumber], gripper: tuple[FrameNumber, ...]) -> Sources:
    observed = [c for c in every if c.array != ACTION]
    fast = _along_axes([c for c in observed if c.unit == "m/s"])
    of_hand = [group for group in fast if _words(group[0].name) & HAND_WORDS] or fast
    if len(of_hand) == 1:
        return Sources(gripper, of_hand[0], ())
    axis_columns = _along_axes([c for c in observed if c.unit == "m" and _words(c.name) & HAND_WORDS])
    if not of_hand and len(axis_columns) == 1:
        return Sources(gripper, (), axis_columns[0])
    several = " or ".join(", ".join(c.path for c in group) for group in of_hand or axis_columns)
    raise ConfigError(
        f"dataset {dataset.root}: {several or 'no column'} {'may be' if several else 'is'} the hand's velocity or"
        f" position by name and unit: expected velocity (m/s) or position (m) to name columns of {_arrays(observed)}"
    )


def _axis(name: str) -> str:
    """Return the name without its axis; "" if it has none."""
    stem, count = re.subn(r"(^|[_.])[xyz](?=[_.]|$)", r"\1*", name.lower(), count=1)
    return stem if count else ""


def _along_axes(some: Sequence[FrameNumber]) -> list[tuple[FrameNumber, ...]]:
    """Group columns whose names differ only in their axis, two or three together."""
    groups: dict[tuple[str, str], list[FrameNumber]] = {}
    for column in some:
        if _axis(column.name):
            groups.setdefault((column.array, _axis(column.name)), []).append(column)
    return [tuple(group) for group in groups.values() if len(group) in (2, 3)]


def _arrays(some: Sequence[FrameNumber]) -> str:
    """List arrays and their columns, a few of each."""
    groups: dict[str, list[str]] = {}
    for column in some:
        groups.setdefault(column.array, []).append(column.name)
    shown = (
        f"{array} ({', '.join(names[:LISTED])}{', ...' * (len(names) > LISTED)})" for array, names in groups.items()
    )
    return "; ".join(shown)
