"""Error classes. A message names the field, the value, the expectation and the nearest valid choice."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable


class RobotrlError(Exception):
    """Base class of errors that the user can fix; the command line prints one line and exits with 2."""


class ConfigError(RobotrlError):
    """A config field or a call's argument is invalid."""


class DataError(RobotrlError):
    """A file (dataset, checkpoint, bundle) is missing, truncated, altered or of another schema."""


class NumericsError(RobotrlError):
    """A number that must be finite is NaN or infinite."""


class CapabilityError(RobotrlError):
    """A sim or policy lacks a capability that the run needs."""


LISTED, NEAREST = 30, 6
"""An error lists up to so many choices, of more than that the nearest few."""
BEGINS_ALIKE = 0.2
"""Weight of the common beginning beside the similarity (0 to 1), so that "mujoco/pegg" is nearer to
"mujoco/peg-insert" than to "mujoco/hopper"."""
SHOWN = 120
"""Maximum number of characters of a value in an error."""


def short(value: object, most: int = SHOWN) -> str:
    """Text of a value in an error; the middle of a long text is left out.

    Args:
        value: text is taken as it is, anything else by its `repr`.
        most: maximum number of characters, 20 or more.
    """
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def nearest(value: str, choices: Iterable[str]) -> str | None:
    """The choice most similar to `value`; None if none is similar."""
    if len(value) > SHOWN:  # the search time grows with the product of both lengths
        return None
    found = difflib.get_close_matches(value, list(choices), n=NEAREST, cutoff=0.4)
    return max(found, key=lambda name: _alike(value, name), default=None)


def _alike(value: str, name: str) -> tuple[bool, float]:
    """Likeness of a name; those of the family that `value` states come first, and what follows it is compared."""
    family = name[: name.rfind("/") + 1]
    same = bool(family) and value.startswith(family)
    typed, own = (value.removeprefix(family), name.removeprefix(family)) if same else (value, name)
    return same, _ratio(typed, own) + BEGINS_ALIKE * _shared(typed, own)


def _ratio(value: str, name: str) -> float:
    return difflib.SequenceMatcher(a=name, b=value).ratio()


def _shared(value: str, name: str) -> float:
    """Share of `value` with which `name` begins as well."""
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(value, name, strict=False))
    return sum(1 for _ in alike) / max(len(value), 1)


def unknown(field: str, value: str, choices: Iterable[str]) -> ConfigError:
    """Error for a name that is not among `choices`: lists them, the nearest of many, and suggests the nearest one."""
    names = sorted(choices)
    close = nearest(value, names)
    hint = f"did you mean {close!r}? " if close else ""
    known = ", ".join(names)
    if len(names) > LISTED:
        some = difflib.get_close_matches(value, names, n=NEAREST, cutoff=0.0)
        known = f"{', '.join(some)} and {len(names) - len(some)} more"
    return ConfigError(f"{field} {short(repr(value))} is unknown: {hint}known: {known}")


def check_number(field: str, value: object, low: float, high: float, unit: str = "") -> None:
    """Check that a value is a number from `low` to `high`.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise out_of_range(field, value, f"a number from {low:g} to {high:g}{unit and f' {unit}'}")


def check_count(field: str, value: object, low: int, high: int, what: str = "") -> None:
    """Check that a value is an integer from `low` to `high`.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise out_of_range(field, value, f"{what or 'a whole number'} from {low} to {high}")


def check_at_least(field: str, value: int, least: int) -> None:
    """Check that a value is at least `least`.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    if value < least:
        raise out_of_range(field, value, f"{least} or more")


def check_positive(field: str, value: float) -> None:
    """Check that a value is positive and finite.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    if not 0 < value < math.inf:
        raise out_of_range(field, value, "above 0")


def check_decay(field: str, value: float) -> None:
    """Check that a value is a decay factor of a moving average, in [0, 1).

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    if not 0 <= value < 1:
        raise out_of_range(field, value, "0 or more and below 1")


def out_of_range(field: str, value: object, expected: str) -> ConfigError:
    """Error for a value outside the range that `expected` describes."""
    return ConfigError(f"{field} is {short(repr(value))}: expected {expected}")
