"""Detection of sensors with a wrong clock and of frozen sensors, over several observations.

A frozen sensor repeats its values bit for bit, with a fresh time stamp from an unaware driver. A robot at rest repeats
them, too. So only time with a motion command counts, and only for ports that were never constant for long in the
recorded data (`Port.max_still_s`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from robotrl.deploy.control.safety import SafetyLimits

AHEAD_S = 1e-3
"""Tolerance for time stamps in the future; both times come from the same clock, read one after the other."""
_BACK_S = 1e-6
START_S = 0.5
"""Additional time before the first change of any sensor in an episode."""
_MOVES = 0.02
"""A command counts as motion from this fraction of the action's range."""


class SensorDoubt(NamedTuple):
    """Problems of an observation that is finite, fresh and plausible by itself."""

    clock: bool
    """Its time stamp is in the future, or before that of the previous observation."""
    frozen: str
    """The frozen port; "" for none."""


@dataclass
class _Port:
    """State of a port since its values last changed."""

    numbers: bytes | None = None
    command: np.ndarray | None = None
    """Last action sent at that time."""
    told_s: float = 0.0
    """Time with motion commands since then, in seconds."""
    alive: bool = False
    """The values have changed since the episode began."""


class SensorWatch:
    """Detector of frozen sensors and wrong clocks, with the state of an episode.

    Args:
        limits: the safety limits; `max_still_s` selects the observed ports.
    """

    def __init__(self, limits: SafetyLimits) -> None:
        self._limits = limits
        self._range = limits.high - limits.low
        self.reset()

    def reset(self) -> None:
        """Start an episode."""
        self._ports = {key: _Port() for key in self._limits.max_still_s}
        self._stamp_s = -math.inf
        self._now_s = -math.inf

    def look(self, obs: Mapping[str, np.ndarray], age_s: float, now_s: float, sent: np.ndarray) -> SensorDoubt:
        """Check the next observation.

        Args:
            obs: (...,) arrays by key, finite.
            age_s: seconds since it was taken.
            now_s: current time of the same clock.
            sent: (A,) last action sent.
        """
        stamp_s = now_s - age_s
        # written so that NaN counts as a wrong clock
        if not (age_s >= -AHEAD_S and stamp_s >= self._stamp_s - _BACK_S):
            return SensorDoubt(True, "")
        passed_s = now_s - self._now_s if math.isfinite(self._now_s) else 0.0
        self._stamp_s, self._now_s = stamp_s, now_s
        return SensorDoubt(False, self._still(obs, passed_s, sent))

    def _still(self, obs: Mapping[str, np.ndarray], passed_s: float, sent: np.ndarray) -> str:
        frozen = ""
        for key, port in self._ports.items():
            numbers = np.asarray(obs[key]).tobytes()
            if numbers != port.numbers:
                self._ports[key] = _Port(numbers, sent, alive=port.numbers is not None)
                continue
            if self._told_to_move(sent, port.command):
                port.told_s += passed_s
            # a port without any change in this episode may belong to an untouched object
            if port.alive and port.told_s > self._limits.max_still_s[key]:
                frozen = key
        longest_s = max(self._limits.max_still_s.values(), default=math.inf)
        if self._ports and all(not p.alive and p.told_s > longest_s + START_S for p in self._ports.values()):
            return next(iter(self._ports))
        return frozen

    def _told_to_move(self, sent: np.ndarray, before: np.ndarray | None) -> bool:
        rest = self._limits.neutral if self._limits.hold == "neutral" or before is None else before
        return bool((np.abs(sent - rest) > _MOVES * self._range).any())
