"""Throttle and brake for a wanted acceleration, by feedback: engines of CARLA's cars answer in their own ways."""

from __future__ import annotations

ENGINE_MPS2, BRAKE_MPS2 = 5.0, 9.0
"""First guess of the acceleration at full throttle and of the deceleration at full brake."""
GAIN = 0.4
"""Part of the present error that a tick corrects."""
HOLD_MPS, HOLD = 0.2, 0.4
"""Speed below which a car that shall not move is held, and the brake that holds it."""


class PedalControl:
    """Integral control of the acceleration with a feed-forward guess, one tick at a time."""

    def __init__(self) -> None:
        self._trim_mps2 = 0.0
        """Learned difference between the guess's acceleration and the measured one."""
        self._speed_mps: float | None = None
        self._asked_mps2 = 0.0

    def pedals(self, accel_mps2: float, speed_mps: float, tick_s: float) -> tuple[float, float]:
        """Throttle and brake, 0 to 1 each, for the next tick.

        Args:
            accel_mps2: wanted acceleration along the heading.
            speed_mps: present speed along the heading.
            tick_s: length of a tick.
        """
        if self._speed_mps is not None and speed_mps > HOLD_MPS:
            error = self._asked_mps2 - (speed_mps - self._speed_mps) / tick_s
            self._trim_mps2 = min(max(self._trim_mps2 + GAIN * error, -BRAKE_MPS2), ENGINE_MPS2)
        self._speed_mps, self._asked_mps2 = speed_mps, accel_mps2
        if accel_mps2 <= 0.0 and speed_mps < HOLD_MPS:
            self._trim_mps2 = 0.0
            return 0.0, HOLD
        push = accel_mps2 + self._trim_mps2
        return (min(push / ENGINE_MPS2, 1.0), 0.0) if push >= 0.0 else (0.0, min(-push / BRAKE_MPS2, 1.0))
