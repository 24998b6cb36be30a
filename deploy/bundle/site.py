"""Limits of a robot's site: `robot.json`, schema 1, which tighten those of any bundle.

A bundle's limits are a claim of whoever trained it. Those of the site, where people and things are, are authoritative:
for every number the tighter of the two holds. Reading is strict (`robotrl.deploy.bundle.strict`); `docs/deploy.md`
explains each field to users. Everything but `SiteLimits.read` is pure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.control.safety import SafetyLimits
from robotrl.errors import ConfigError, DataError, short, unknown
from robotrl.spec import is_picture

SITE_SCHEMA_VERSION = 1
MAX_SITE_BYTES = 1 << 20


@dataclass(frozen=True)
class SiteActionLimits:
    """Limits of one action element; None leaves the bundle's.

    Args:
        low: lowest value that may be sent.
        high: highest value that may be sent.
        max_step: largest change between two control periods, above 0.
        unit: unit of the numbers, which must be the bundle's; None states none.
    """

    low: float | None = None
    high: float | None = None
    max_step: float | None = None
    unit: str | None = None


@dataclass(frozen=True)
class SiteObservationLimits:
    """Plausible range of one observation element; None leaves the bundle's.

    Args:
        low: lowest plausible value.
        high: highest plausible value.
        unit: unit of the numbers, which must be the bundle's; None states none.
    """

    low: float | None = None
    high: float | None = None
    unit: str | None = None


@dataclass(frozen=True)
class SiteLimits:
    """Contents of `robot.json`.

    Args:
        schema_version: 1.
        action: limits by element name.
        observations: plausible ranges by element name, in every observation that has the element.
        max_observation_age_s: an older observation is stale, above 0; None leaves the bundle's.
        bad_ticks_to_damp: bad ticks in a row before damping, 1 or more; None leaves the bundle's.
    """

    schema_version: int
    action: dict[str, SiteActionLimits] = field(default_factory=dict[str, SiteActionLimits])
    observations: dict[str, SiteObservationLimits] = field(default_factory=dict[str, SiteObservationLimits])
    max_observation_age_s: float | None = None
    bad_ticks_to_damp: int | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SiteLimits:
        """Read and check a file.

        Raises:
            DataError: it cannot be read, is not JSON, has another schema version, an unknown, missing or mistyped
                field, a number that is not finite, or limits that contradict themselves.
        """
        place = Path(path)
        try:
            with place.open("rb") as file:
                text = file.read(MAX_SITE_BYTES + 1)
        except OSError as error:
            raise DataError(f"limits {short(str(place))!r} cannot be read: {error.strerror}") from error
        if len(text) > MAX_SITE_BYTES:
            raise DataError(f"limits {short(str(place))!r} has more than {MAX_SITE_BYTES} bytes: expected a robot.json")
        return cls.parse(text, short(str(place)))

    @classmethod
    def parse(cls, text: bytes, where: str = "robot.json") -> SiteLimits:
        """Read and check the text of a file; `where` names it in errors.

        Raises:
            DataError: see `read`.
        """
        data = strict.loads(text, where)
        version = data.get("schema_version")
        if type(version) is not int or version != SITE_SCHEMA_VERSION:
            raise DataError(f"{where}: schema_version is {short(repr(version))}: expected {SITE_SCHEMA_VERSION}")
        site = strict.from_json(cls, data, f"{where}: limits")
        for name, bounds in site.action.items():
            _check_range(f"{where}: action element {short(repr(name))}", bounds.low, bounds.high)
            # float32, in which it acts: a smaller number would be 0, a robot that never moves
            if bounds.max_step is not None and not _float32(bounds.max_step) > 0:
                raise DataError(
                    f"{where}: action element {short(repr(name))} has max_step {bounds.max_step}: expected above 0"
                )
        for name, plausible in site.observations.items():
            _check_range(f"{where}: observation element {short(repr(name))}", plausible.low, plausible.high)
        if site.max_observation_age_s is not None and site.max_observation_age_s <= 0:
            raise DataError(f"{where}: max_observation_age_s is {site.max_observation_age_s}: expected above 0")
        if site.bad_ticks_to_damp is not None and site.bad_ticks_to_damp < 1:
            raise DataError(f"{where}: bad_ticks_to_damp is {site.bad_ticks_to_damp}: expected 1 or more")
        return site

    def to_bytes(self) -> bytes:
        """The text of the file."""
        return strict.dumps(self)


def _check_range(where: str, low: float | None, high: float | None) -> None:
    if low is not None and high is not None and low > high:
        raise DataError(f"{where} has low {low} and high {high}: expected the lower number first")


def tightened(limits: SafetyLimits, manifest: Manifest, site: SiteLimits) -> SafetyLimits:
    """The tighter of given limits and the site's, number by number, never wider than either.

    Numbers are compared as float32, in which actions are sent.

    Args:
        limits: limits of the bundle, in its order.
        manifest: the bundle's manifest, for names and units.
        site: the site's limits.

    Raises:
        ConfigError: the site names an element that the bundle lacks (the nearest one is suggested), in another unit;
            or what is left excludes the neutral action or every observation.
    """
    low, high, max_step = _action_limits(limits, manifest, site.action)
    return limits._replace(
        low=low,
        high=high,
        max_step=max_step,
        plausible=_plausible(limits, manifest, site.observations),
        max_observation_age_s=_least(limits.max_observation_age_s, site.max_observation_age_s),
        bad_ticks_to_damp=min(limits.bad_ticks_to_damp, site.bad_ticks_to_damp or limits.bad_ticks_to_damp),
    )


def _action_limits(
    limits: SafetyLimits, manifest: Manifest, wanted: Mapping[str, SiteActionLimits]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Lowest and highest action, and the largest step."""
    names, units = manifest.action.names, manifest.action.units
    low, high = limits.low.copy(), limits.high.copy()
    step = np.full_like(low, np.inf) if limits.max_step is None else limits.max_step.copy()
    for name, bounds in wanted.items():
        if name not in names:
            raise unknown("site limits: action element", name, names)
        i = names.index(name)
        _check_unit(f"action element {name!r}", bounds.unit, units[i])
        if bounds.max_step is not None and limits.chooses:
            raise ConfigError(
                f"site limits: action element {name!r} has max_step {bounds.max_step}: expected none, since the"
                " bundle's action is a choice"
            )
        low[i] = max(low[i], low[i] if bounds.low is None else _float32(bounds.low))
        high[i] = min(high[i], high[i] if bounds.high is None else _float32(bounds.high))
        step[i] = min(step[i], step[i] if bounds.max_step is None else _float32(bounds.max_step))
        if not low[i] <= limits.neutral[i] <= high[i]:
            raise ConfigError(
                f"site limits: action element {name!r} is left [{low[i]}, {high[i]}] {units[i]}: expected a range that"
                f" holds the bundle's neutral action {limits.neutral[i]}"
            )
    return low, high, None if np.isinf(step).all() else step


def _plausible(
    limits: SafetyLimits, manifest: Manifest, wanted: Mapping[str, SiteObservationLimits]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Plausible ranges by observation."""
    found = {key: (low.copy(), high.copy()) for key, (low, high) in limits.plausible.items()}
    every = {name for port in manifest.observations for name in port.names}
    for name, bounds in wanted.items():
        if name not in every:
            raise unknown("site limits: observation element", name, every)
        for port in manifest.observations:
            if name not in port.names:
                continue
            i = port.names.index(name)
            _check_unit(f"observation element {name!r}", bounds.unit, port.units[i])
            low, high = found.setdefault(port.name, _unlimited(len(port.names)))
            low[i] = max(low[i], low[i] if bounds.low is None else _float32(bounds.low))
            high[i] = min(high[i], high[i] if bounds.high is None else _float32(bounds.high))
            if low[i] > high[i]:
                raise ConfigError(
                    f"site limits: observation element {name!r} of {port.name!r} is left [{low[i]}, {high[i]}]"
                    f" {port.units[i]}: expected a range that meets the bundle's"
                )
    return {key: pair for key, pair in found.items() if any(np.isfinite(side).any() for side in pair)}


def _float32(value: float) -> np.float32:
    """Nearest float32; infinite, that is no limit, beyond its range."""
    with np.errstate(over="ignore"):
        return np.float32(value)


def _unlimited(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest values of elements without a limit."""
    return np.full(width, -np.inf, np.float32), np.full(width, np.inf, np.float32)


def _check_unit(what: str, unit: str | None, expected: str) -> None:
    if unit is not None and unit != expected:
        raise ConfigError(f"site limits: {what} is in {short(repr(unit))}: the bundle expects {expected!r}")


def _least(bundle: float, site: float | None) -> float:
    return bundle if site is None else min(bundle, site)


def site_limits_of(limits: SafetyLimits, manifest: Manifest) -> SiteLimits:
    """Limits of a bundle as those of a site, which change nothing until they are edited.

    Args:
        limits: limits of the bundle.
        manifest: its manifest, for names and units.
    """
    action = {
        name: SiteActionLimits(
            low=_plain(limits.low[i]),
            high=_plain(limits.high[i]),
            max_step=None if limits.max_step is None else _plain(limits.max_step[i]),
            unit=manifest.action.units[i],
        )
        for i, name in enumerate(manifest.action.names)
    }
    observations: dict[str, SiteObservationLimits] = {}
    for port in manifest.observations:
        if is_picture(port.spec) or port.words:
            continue
        low, high = limits.plausible.get(port.name, _unlimited(len(port.names)))
        for i, name in enumerate(port.names):
            observations[name] = SiteObservationLimits(_plain(low[i]), _plain(high[i]), port.units[i])
    return SiteLimits(SITE_SCHEMA_VERSION, action, observations, limits.max_observation_age_s, limits.bad_ticks_to_damp)


def _plain(value: np.float32) -> float | None:
    """Shortest decimal number of a float32; None for no limit."""
    return float(str(value)) if np.isfinite(value) else None
