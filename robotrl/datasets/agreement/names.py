"""Compares the element names of an array between a dataset and a sim: equal, reordered, or different."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from robotrl.datasets.layout import PICTURE_AXES, Feature
from robotrl.errors import nearest

NAMED = 4
"""Number of names that a message lists before it only counts them."""
AXES = (frozenset(PICTURE_AXES), frozenset(("height", "width", "channel")), frozenset("hwc"))
"""Sets of names that describe the axes of an image, not its elements."""


class NameOrder(NamedTuple):
    """Result of comparing a dataset's element names with a sim's."""

    taken: tuple[int, ...] | None
    """Dataset elements to take, in the sim's order; None if no reordering is needed."""
    unchecked: str = ""
    """Reason why the names could not be compared; "" if they could."""
    wrong: str = ""
    """Contradiction between the names; "" if there is none."""
    sure: bool = True
    """True if the contradiction is certain, so that it is an error and not a doubt."""


def names_of(feature: Feature) -> tuple[str, ...] | None:
    """Element names of a column, a list or a list inside an object; None if the dataset has none.

    LeRobot's recorders write {"motors": [...]} or {"axes": [...]}, others {"x": 0, "y": 1}.
    """
    given: Any = feature.names
    if isinstance(given, dict):
        if len(given) == 1 and isinstance(next(iter(given.values())), list | tuple):
            given = next(iter(given.values()))
        elif sorted(map(str, given.values())) == sorted(map(str, range(len(given)))):
            given = sorted(given, key=lambda name: int(feature.names[name]))
    if not isinstance(given, list | tuple) or len(given) != feature.shape[-1]:
        return None
    names = tuple(str(name) for name in given)
    picture = frozenset(name.lower() for name in names) in AXES
    return None if picture or len(set(names)) != len(names) else names


def order_of(theirs: Sequence[str] | None, ours: Sequence[str], stated: bool) -> NameOrder:
    """Compare a dataset's element names with a sim's.

    Args:
        theirs: the dataset's names; None if it has none.
        ours: the sim's or policy's names, of the same number.
        stated: whether robotrl wrote the dataset, so that its names are those of a sim; other writers choose theirs
            freely.
    """
    if theirs is None:
        return NameOrder(None, "has no names")
    if tuple(theirs) == tuple(ours):
        return NameOrder(None)
    mine, other = ([plain(name) for name in names] for names in (ours, theirs))
    if len(set(mine)) != len(mine) or len(set(other)) != len(other):
        mine, other = list(ours), list(theirs)
    if sorted(mine) == sorted(other):
        taken = tuple(other.index(name) for name in mine)
        return NameOrder(None if taken == tuple(range(len(taken))) else taken)
    if numbered(theirs) or numbered(ours):
        return NameOrder(None, f"has {_some(theirs)} for {_some(ours)}")
    moved = [name for i, name in enumerate(other) if name in mine and mine[i] != name]
    if stated:
        return NameOrder(None, wrong=difference(theirs, ours))
    if moved:
        at = other.index(moved[0])
        text = f"has {theirs[at]!r} as element {at}, the sim {ours[mine.index(moved[0])]!r} as {mine.index(moved[0])}"
        return NameOrder(None, wrong=f"{text}; {difference(theirs, ours)}", sure=False)
    return NameOrder(None, f"has {_some(theirs)} for {_some(ours)}")


def difference(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Missing and unexpected names, as text for an error."""
    missing = [name for name in ours if name not in theirs]
    extra = [name for name in theirs if name not in ours]
    parts: list[str] = []
    if missing:
        close = nearest(missing[0], extra)
        parts.append(f"lacks {_some(missing)}" + (f" (nearest: {close!r})" if close else ""))
    if extra:
        parts.append(f"has {_some(extra)}, which the sim does not have")
    return " and ".join(parts)


def numbered(names: Sequence[str]) -> bool:
    """True if names only number the elements: action_0, action_1, ... or 0, 1, ..."""
    stems = {re.sub(r"[_.\- ]?\d+$", "", name) for name in names}
    return all(re.search(r"\d+$", name) for name in names) and len(stems) == 1


def plain(name: str) -> str:
    """A name in lower case, with underscores for dots, dashes and spaces."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(repr(name) for name in names[:NAMED]) + more
