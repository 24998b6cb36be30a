"""Frames on their way to the listeners of streams, with the faults that befall them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from robotrl.sims.carla.stub.faults import Faults
from robotrl.sims.carla.stub.simulation.sensors import SensorFrame


class FrameQueue:
    """Snapshots and frames of sensors, some of which a fault drops, delays or swaps.

    Args:
        faults: those in force.
        send: sends a message to the listeners of a stream.
    """

    def __init__(self, faults: Faults, send: Callable[[int, bytes], None]) -> None:
        self._faults, self._send = faults, send
        self._delayed: deque[tuple[int, SensorFrame]] = deque()
        self._held: dict[int, SensorFrame] = {}

    def begin(self, number: int) -> None:
        """Send what was delayed until this frame of the world."""
        while self._delayed and self._delayed[0][0] <= number:
            _, frame = self._delayed.popleft()
            self._send(frame.stream, frame.message)

    def put(self, number: int, frame: SensorFrame) -> None:
        """Take a frame of a sensor.

        Args:
            number: of the world's frame.
            frame: the sensor's frame.
        """
        fault = self._faults.hit(frame.blueprint, "drop", "delay", "swap")
        if fault is None:
            self._send(frame.stream, frame.message)
        elif fault.kind == "delay":
            self._delayed.append((number + int(float(fault.value)), frame))
            self._delayed = deque(sorted(self._delayed, key=lambda entry: entry[0]))
        elif fault.kind == "swap":
            self._swap(frame)

    def _swap(self, frame: SensorFrame) -> None:
        """Hold every other frame back until after the next one."""
        held = self._held.pop(frame.stream, None)
        if held is None:
            self._held[frame.stream] = frame
            return
        self._send(frame.stream, frame.message)
        self._send(held.stream, held.message)
