"""Plausible observations, from training data: ranges of elements, and the longest time without a change.

The exporter writes both into the bundle, so that the controller can detect a sensor that is broken, in another unit, or
frozen. These ranges are deliberately wide: they exclude impossible values, not a robot in an unusual place. The start
envelope does: it is as wide as the training data, and an episode does not begin outside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from robotrl.deploy.bundle.manifest import Limit, Port
from robotrl.spec import Spec, is_picture
from robotrl.transforms import Affine, TransformGroup

MARGIN = 2.0
"""Margin on each side of a range, as a multiple of its width."""
DEVIATIONS = 4.0
"""Standard deviations around a normalizer's mean that count as training data."""
START_MARGIN, START_DEVIATIONS = 0.25, 2.0
"""The same of the start envelope."""
LONGEST_STILL_S = 0.5
"""A port that was constant for longer in the recorded data is never considered frozen."""
_CONSTANT = 100.0
"""A constant element may deviate by this many times its magnitude (at least 1)."""
_LARGEST = 1e30


class _Range(NamedTuple):
    unit: str
    low: float
    high: float


def plausible(
    specs: Mapping[str, Spec], transforms: TransformGroup, recorded: Mapping[str, np.ndarray], known: tuple[Limit, ...]
) -> tuple[Limit, ...]:
    """Plausible limits of the observations, for each element name that `known` does not contain.

    An element's range is the union of its recorded values, its normalizer's data (mean plus and minus 4 stds) and its
    spec's bounds, widened on each side by twice its width. Elements with the same name share one range. Images and word
    numbers are left out: their values are always checked exactly.

    Args:
        specs: specs of the observations.
        transforms: transforms of the policy; its normalizers describe the training data.
        recorded: (n, ...) for each key.
        known: limits given by the user.
    """
    stated = {name for limit in known for name in limit.names}
    found: dict[str, _Range] = {}
    for key, spec in specs.items():
        if is_picture(spec) or spec.words:
            continue
        seen = _seen(spec, _normalizer(transforms, key, len(spec.names)), recorded[key], DEVIATIONS)
        for name, one in zip(spec.names, _with_bounds(spec, seen), strict=True):
            _join(found, name, _widened(one, MARGIN))
    kept = {name: one for name, one in found.items() if name not in stated}
    return *known, *_limit(kept)


def start_envelope(
    specs: Mapping[str, Spec], transforms: TransformGroup, recorded: Mapping[str, np.ndarray]
) -> tuple[Limit, ...]:
    """Ranges of the observations that training saw; an episode does not begin outside them.

    An element's range is the union of its recorded values and its normalizer's data (mean plus and minus 2 stds),
    widened on each side by a quarter of its width. An element that never changed has a range as in `plausible`.

    Args:
        specs: specs of the observations that the robot measures.
        transforms: transforms of the policy; its normalizers describe the training data.
        recorded: (n, ...) for each key.
    """
    found: dict[str, _Range] = {}
    for key, spec in specs.items():
        if is_picture(spec) or spec.words:
            continue
        seen = _seen(spec, _normalizer(transforms, key, len(spec.names)), recorded[key], START_DEVIATIONS)
        for name, one in zip(spec.names, seen, strict=True):
            _join(found, name, _widened(one, START_MARGIN))
    return _limit(found)


def outside_start(envelope: tuple[Limit, ...], observations: tuple[Port, ...], obs: Mapping[str, np.ndarray]) -> str:
    """Description of the first element that is outside the start envelope; "" if there is none.

    Args:
        envelope: the bundle's start envelope.
        observations: the bundle's observations.
        obs: (...,) arrays of numbers by key. Numbers that are not finite are left to the safety chain.
    """
    place = place_outside_start(envelope, observations, obs)
    if place is None:
        return ""
    key, at = place
    port = next(port for port in observations if port.name == key)
    name = port.names[at % len(port.names)]
    known = _ranges(envelope)[name]
    return (
        f"{name!r} of observation {key!r} is {obs[key].flat[at]:.6g} {known.unit}: training saw"
        f" {known.low:.6g} to {known.high:.6g}"
    )


def place_outside_start(
    envelope: tuple[Limit, ...], observations: tuple[Port, ...], obs: Mapping[str, np.ndarray]
) -> tuple[str, int] | None:
    """Key and place, in the flat array, of the first element that is outside the start envelope; None if there is none.

    Args:
        envelope: the bundle's start envelope.
        observations: the bundle's observations.
        obs: (...,) arrays of numbers by key.
    """
    for key, low, high in start_ranges(envelope, observations):
        if key not in obs:
            continue
        flat = obs[key].reshape(-1, len(low))
        wrong = np.isfinite(flat) & ~((flat >= low) & (flat <= high))
        if wrong.any():
            # element by element, and each from its oldest row on
            element = int(np.argmax(wrong.any(axis=0)))
            return key, int(np.argmax(wrong[:, element])) * len(low) + element
    return None


def start_ranges(
    envelope: tuple[Limit, ...], observations: tuple[Port, ...]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The start envelope by observation: its key, and (D,) float32 lowest and highest values, infinite for no limit."""
    ranges = _ranges(envelope)
    for port in observations:
        known = [ranges.get(name) for name in port.names]
        if any(one is not None for one in known):
            low = np.asarray([-np.inf if one is None else one.low for one in known], np.float32)
            high = np.asarray([np.inf if one is None else one.high for one in known], np.float32)
            yield port.name, low, high


def _ranges(envelope: tuple[Limit, ...]) -> dict[str, _Range]:
    """The ranges of an envelope by name."""
    return {
        name: _Range(unit, low, high)
        for limit in envelope
        for name, unit, low, high in zip(limit.names, limit.units, limit.low, limit.high, strict=True)
    }


def _join(found: dict[str, _Range], name: str, one: _Range) -> None:
    """Add the range of an element; elements with the same name share one range."""
    other = found.get(name, one)
    found[name] = _Range(other.unit, min(one.low, other.low), max(one.high, other.high))


def _limit(found: Mapping[str, _Range]) -> tuple[Limit, ...]:
    if not found:
        return ()
    units, low, high = zip(*found.values(), strict=True)
    return (Limit("observation", tuple(found), units, low, high),)


def max_still_s(recorded: np.ndarray, period_s: float) -> float | None:
    """Longest plausible time without a change: twice the recorded one, or None if that was above `LONGEST_STILL_S`.

    Args:
        recorded: (n, ...) consecutive ticks.
        period_s: seconds between two of them.
    """
    flat = recorded.reshape(len(recorded), -1)
    changes = np.flatnonzero((flat[1:] != flat[:-1]).any(axis=1))
    # the first and last tick count as changes
    longest = int(np.diff(np.concatenate(([-1], changes, [len(flat) - 1]))).max(initial=0))
    return None if longest * period_s > LONGEST_STILL_S else 2 * longest * period_s


def _seen(spec: Spec, normalizer: Affine | None, recorded: np.ndarray, deviations: float) -> Iterator[_Range]:
    """Range of each element's recorded values and its normalizer's data."""
    flat = recorded.reshape(-1, spec.shape[-1]).astype(np.float64)
    low, high = flat.min(axis=0), flat.max(axis=0)
    if normalizer is not None:
        scale = np.asarray(normalizer.scale)
        usable = scale != 0
        scale = np.where(usable, scale, 1.0)
        mean, reach = -np.asarray(normalizer.offset) / scale, deviations / np.abs(scale)
        # a constant element has scale 1, which carries no information
        usable &= scale != 1.0
        low = np.where(usable, np.minimum(low, mean - reach), low)
        high = np.where(usable, np.maximum(high, mean + reach), high)
    for unit, least, most in zip(spec.units, low, high, strict=True):
        yield _Range(unit, float(least), float(most))


def _with_bounds(spec: Spec, seen: Iterable[_Range]) -> Iterator[_Range]:
    """The ranges with the spec's bounds; a bound beyond any measurable value counts as none."""
    for one, low, high in zip(seen, spec.low, spec.high, strict=True):
        bounds = [bound for bound in (low, high) if abs(bound) < _LARGEST]
        yield _Range(one.unit, min(one.low, *bounds, one.high), max(one.high, *bounds, one.low))


def _widened(one: _Range, margin: float) -> _Range:
    """A range that is wider by a multiple of its width; one without width may deviate by far."""
    width = one.high - one.low
    beyond = margin * width if width else _CONSTANT * max(1.0, abs(one.low))
    return _Range(one.unit, one.low - beyond, one.high + beyond)


def _normalizer(transforms: TransformGroup, key: str, width: int) -> Affine | None:
    """Normalizer of an observation's last `width` elements: those of the present tick, where several are stacked."""
    found = next((t for t in transforms.inputs if isinstance(t, Affine) and t.key == key), None)
    if found is None or len(found.scale) == width:
        return found
    return replace(found, scale=found.scale[-width:], offset=found.offset[-width:])
