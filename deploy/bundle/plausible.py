"""Plausible observations, from what a policy has seen: ranges of elements, and how long a port may stand still.

The exporter writes both into the bundle, so that the controller can tell a sensor that is broken, in another unit, or
frozen. The ranges are wide on purpose: they are there for what cannot be, and a robot in an unusual place is not that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from robotrl.deploy.bundle.manifest import Limit
from robotrl.spec import Spec, is_picture
from robotrl.transforms import Affine, TransformGroup

MARGIN = 2.0
"""A range is widened on each side by so many times its own width."""
DEVIATIONS = 4.0
"""Standard deviations around the mean of a normaliser that count as seen."""
LONGEST_STILL_S = 0.5
"""A port that stood still for longer while the policy was exported is never called frozen."""
_CONSTANT = 100.0
"""An element that never changed may come to so many times its magnitude (that of 1 where it is less)."""
_LARGEST = 1e30


class _Range(NamedTuple):
    unit: str
    low: float
    high: float


def plausible(
    specs: Mapping[str, Spec], transforms: TransformGroup, recorded: Mapping[str, np.ndarray], known: tuple[Limit, ...]
) -> tuple[Limit, ...]:
    """Limits of the observations, one entry for each name of an element that `known` does not name.

    An element's range is what was recorded, what its normaliser was made from (mean plus and minus 4 deviations) and
    what its spec allows, all together, widened on each side by twice its width. Elements of one name share one range.
    Pictures and word numbers are left out: what they may hold is known exactly, and always checked.

    Args:
        specs: of the observations.
        transforms: of the policy; its normalisers tell of the data that it learnt from.
        recorded: (n, ...) for each key.
        known: limits that somebody has stated.
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
    """How long a port may stand still: twice as long as it did; None where it stood still for long.

    Args:
        recorded: (n, ...) consecutive ticks.
        period_s: seconds between two of them.
    """
    flat = recorded.reshape(len(recorded), -1)
    changes = np.flatnonzero((flat[1:] != flat[:-1]).any(axis=1))
    # places of the first and last tick stand for changes there
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
        # an element that was constant is scaled by 1, which says nothing about it
        usable &= scale != 1.0
        low = np.where(usable, np.minimum(low, mean - reach), low)
        high = np.where(usable, np.maximum(high, mean + reach), high)
    for i, unit in enumerate(spec.units):
        # a bound beyond what anything measures is none
        bounds = [bound for bound in (spec.low[i], spec.high[i]) if abs(bound) < _LARGEST]
        least, most = min(float(low[i]), *bounds, float(high[i])), max(float(high[i]), *bounds, float(low[i]))
        if least == most:
            beyond = _CONSTANT * max(1.0, abs(least))
            yield _Range(unit, least - beyond, most + beyond)
        else:
            yield _Range(unit, least - MARGIN * (most - least), most + MARGIN * (most - least))


def _normalizer(transforms: TransformGroup, key: str) -> Affine | None:
    return next((t for t in transforms.inputs if isinstance(t, Affine) and t.key == key), None)
