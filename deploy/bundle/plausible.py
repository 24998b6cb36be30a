"""Plausible observations, from training data: ranges of elements, and the longest time without a change.

The exporter writes both into the bundle, so that the controller can detect a sensor that is broken, in another unit, or
frozen. The ranges are deliberately wide: they exclude impossible values, not a robot in an unusual place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from robotrl.deploy.bundle.manifest import Limit
from robotrl.spec import Spec, is_picture
from robotrl.transforms import Affine, TransformGroup

MARGIN = 2.0
"""Margin on each side of a range, as a multiple of its width."""
DEVIATIONS = 4.0
"""Standard deviations around a normalizer's mean that count as training data."""
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
        for name, one in zip(spec.names, _ranges(spec, _normalizer(transforms, key), recorded[key]), strict=True):
            other = found.get(name, one)
            found[name] = _Range(other.unit, min(one.low, other.low), max(one.high, other.high))
    kept = {name: one for name, one in found.items() if name not in stated}
    if not kept:
        return known
    units, low, high = zip(*kept.values(), strict=True)
    return *known, Limit("observation", tuple(kept), units, low, high)


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


def _ranges(spec: Spec, normalizer: Affine | None, recorded: np.ndarray) -> Iterator[_Range]:
    flat = recorded.reshape(-1, spec.shape[-1]).astype(np.float64)
    low, high = flat.min(axis=0), flat.max(axis=0)
    if normalizer is not None:
        scale = np.asarray(normalizer.scale)
        usable = scale != 0
        scale = np.where(usable, scale, 1.0)
        mean, reach = -np.asarray(normalizer.offset) / scale, DEVIATIONS / np.abs(scale)
        # a constant element has scale 1, which carries no information
        usable &= scale != 1.0
        low = np.where(usable, np.minimum(low, mean - reach), low)
        high = np.where(usable, np.maximum(high, mean + reach), high)
    for i, unit in enumerate(spec.units):
        # a bound beyond any measurable value counts as no bound
        bounds = [bound for bound in (spec.low[i], spec.high[i]) if abs(bound) < _LARGEST]
        least, most = min(float(low[i]), *bounds, float(high[i])), max(float(high[i]), *bounds, float(low[i]))
        if least == most:
            beyond = _CONSTANT * max(1.0, abs(least))
            yield _Range(unit, least - beyond, most + beyond)
        else:
            yield _Range(unit, least - MARGIN * (most - least), most + MARGIN * (most - least))


def _normalizer(transforms: TransformGroup, key: str) -> Affine | None:
    return next((t for t in transforms.inputs if isinstance(t, Affine) and t.key == key), None)
