"""Sensors whose clock is wrong, and sensors that stand still: what one observation does not show, and several do.

A frozen sensor repeats its numbers bit for bit, with a fresh time stamp from a driver that knows no better. A robot
that rests does so as well; so only the time counts in which it was told to move, and only a port that never stood still
for long when the policy was exported (`Port.max_still_s`).
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
"""An observation may be taken so much after it is looked at: the two clocks are one, read one after the other."""
_BACK_S = 1e-6
START_S = 0.5
"""From the start of an episode a robot may take so much longer before anything of it moves."""
_MOVES = 0.02
"""A command asks for motion from this fraction of the action's range on."""


class SensorDoubt(NamedTuple):
    """What is wrong with an observation that is finite, fresh and plausible by itself."""

    clock: bool
    """Its time lies ahead, or before that of the one before."""
    frozen: str
    """The port that stands still; "" where none does."""


@dataclass
class _Port:
    """A port's numbers as they were last seen to change."""

    numbers: bytes | None = None
    command: np.ndarray | None = None
    """What was sent last at that time."""
    told_s: float = 0.0
    """Since then, the seconds in which the robot was told to move."""
    alive: bool = False
    """Whether they have changed since the episode began."""


class SensorWatch:
    """Remembers what the sensors said in this episode.

    Args:
        limits: what is enforced; `max_still_s` names the ports that are watched.
    """

    def __init__(self, limits: SafetyLimits) -> None:
        self._limits = limits
        self._range = limits.high - limits.low
        self.reset()

    def reset(self) -> None:
        """Start of an episode."""
        self._ports = {key: _Port() for key in self._limits.max_still_s}
        self._stamp_s = -math.inf
        self._now_s = -math.inf

    def look(self, obs: Mapping[str, np.ndarray], age_s: float, now_s: float, sent: np.ndarray) -> SensorDoubt:
        """Take one observation.

        Args:
            obs: (...,) arrays by key, finite.
            age_s: seconds since it was taken.
            now_s: the same clock, now.
            sent: (A,) the action sent last.
        """
        stamp_s = now_s - age_s
        # written so that NaN counts
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
            # what has not moved yet in this episode may be a part that nothing has touched
            if port.alive and port.told_s > self._limits.max_still_s[key]:
                frozen = key
        longest_s = max(self._limits.max_still_s.values(), default=math.inf)
        if self._ports and all(not p.alive and p.told_s > longest_s + START_S for p in self._ports.values()):
            return next(iter(self._ports))
        return frozen

    def _told_to_move(self, sent: np.ndarray, before: np.ndarray | None) -> bool:
        rest = self._limits.neutral if self._limits.hold == "neutral" or before is None else before
        return bool((np.abs(sent - rest) > _MOVES * self._range).any())
