"""Which columns of a dataset are the gripper's and the hand's: found by their names and units, or as the user says."""

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
"""Words of a gripper's columns that do not say how far it is open."""
LISTED = 24
"""Columns of an array that an error names."""
LEAST_SPAN = 0.25
"""A gripper that moves over less than this share of its declared range is measured by that share: it hardly moved."""


class FrameNumber(NamedTuple):
    """One number of each frame."""

    array: str
    """"action", or the key of an observation."""
    number: int
    name: str
    """Its number where the dataset has no names."""
    unit: str
    """"" where the dataset does not tell."""
    span: float
    """High less low bound; infinite where the dataset has none."""

    @property
    def path(self) -> str:
        """As options and errors name it."""
        return f"{self.array}.{self.name}"


class Sources(NamedTuple):
    """Where the signals are."""

    gripper: tuple[FrameNumber, ...]
    """The mean over them is the opening."""
    velocity: tuple[FrameNumber, ...]
    """The hand's, along its axes; empty where it is taken from the position."""
    position: tuple[FrameNumber, ...]


class Signals(NamedTuple):
    """What all F frames of a dataset say."""

    opening: Real
    """(F,) of the gripper, in shares of the way that it goes in this dataset; either end may be the open one."""
    speed_mps: Real
    """(F,) of the hand."""


def columns(dataset: Dataset) -> tuple[FrameNumber, ...]:
    """All numbers that a dataset has of each frame: of the action, and of observations that are vectors of numbers."""
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
    """Where gripper and hand are.

    The gripper is what an observation calls so, or else the action; the hand's velocity is what is in m/s along two or
    three axes, and else its position in m, where the name says that it is the hand's.

    Args:
        dataset: of demonstrations.
        gripper: columns, as "ARRAY.NAME" or "ARRAY.NUMBER", instead of those found.
        velocity: of the hand along its axes, m/s, instead of those found.
        position: of the hand along its axes, m; instead of a velocity.

    Raises:
        ConfigError: a column is unknown, both `velocity` and `position` are given, or nothing, or more than one thing,
            looks like the gripper or the hand.
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
    """(F,) a column over all frames."""
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
    """Lower-case words and abbreviations that a name is put together from: "leftFinger_pos", "gripper.pos"."""
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))


def _find_gripper(dataset: Dataset, every: Sequence[FrameNumber]) -> tuple[FrameNumber, ...]:
    known = [c for c in every if _words(c.name) & GRIPPER_WORDS and not _words(c.name) & NO_OPENING]
    # measured before commanded: a noisy command flickers, the fingers do not follow
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
    placed = _along_axes([c for c in observed if c.unit == "m" and _words(c.name) & HAND_WORDS])
    if not of_hand and len(placed) == 1:
        return Sources(gripper, (), placed[0])
    several = " or ".join(", ".join(c.path for c in group) for group in of_hand or placed)
    raise ConfigError(
        f"dataset {dataset.root}: {several or 'no column'} {'may be' if several else 'is'} the hand's velocity or"
        f" position by name and unit: expected velocity (m/s) or position (m) to name columns of {_arrays(observed)}"
    )


def _axis(name: str) -> str:
    """The name without its axis; "" where it has none."""
    stem, count = re.subn(r"(^|[_.])[xyz](?=[_.]|$)", r"\1*", name.lower(), count=1)
    return stem if count else ""


def _along_axes(some: Sequence[FrameNumber]) -> list[tuple[FrameNumber, ...]]:
    """Columns whose names differ in their axis alone, two or three together."""
    groups: dict[tuple[str, str], list[FrameNumber]] = {}
    for column in some:
        if _axis(column.name):
            groups.setdefault((column.array, _axis(column.name)), []).append(column)
    return [tuple(group) for group in groups.values() if len(group) in (2, 3)]


def _arrays(some: Sequence[FrameNumber]) -> str:
    """Arrays and their columns, a few of each."""
    groups: dict[str, list[str]] = {}
    for column in some:
        groups.setdefault(column.array, []).append(column.name)
    shown = (
        f"{array} ({', '.join(names[:LISTED])}{', ...' * (len(names) > LISTED)})" for array, names in groups.items()
    )
    return "; ".join(shown)
