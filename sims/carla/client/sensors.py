"""Sensors of the ego: collisions, and camera pictures by frame number. Their data arrives on threads of CARLA's."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.carla.client.readout import kind_of
from robotrl.sims.carla.scene import OBSTACLE

GROUND = ("static.road", "static.sidewalk", "static.roadline", "static.ground", "static.terrain")
"""Surfaces that wheels touch; a contact with them is no collision."""
KEPT = 64
"""Pictures that wait at most."""


class CollisionLog:
    """Collisions of the ego, by frame."""

    def __init__(self, sensor: Any) -> None:
        self._changed = threading.Condition()
        self._events: list[tuple[int, int, int]] = []
        sensor.listen(self._note)

    def _note(self, event: Any) -> None:
        other = event.other_actor
        name = "static.unknown" if other is None else str(other.type_id)
        if name.startswith(GROUND):
            return
        row = (int(event.frame), -1 if other is None else int(other.id), kind_of(name) or OBSTACLE)
        with self._changed:
            self._events.append(row)
            self._changed.notify()

    def take(self, frame: int, wait_s: float) -> list[tuple[int, int]]:
        """Other actor and its kind of each collision up to a frame; waits for the first one, `wait_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: any(one[0] <= frame for one in self._events), wait_s)
            found = sorted({row[1:] for row in self._events if row[0] <= frame})
            self._events = [row for row in self._events if row[0] > frame]
        return found


class CameraQueue:
    """Pictures of a camera, which may come late and in another order, by frame number."""

    def __init__(self, sensor: Any) -> None:
        self._changed = threading.Condition()
        self._pictures: dict[int, NDArray[np.uint8]] = {}
        sensor.listen(self._note)

    def _note(self, image: Any) -> None:
        pixels = np.frombuffer(image.raw_data, np.uint8).reshape(image.height, image.width, 4)
        picture = pixels[:, :, 2::-1].copy()  # blue, green, red, alpha
        with self._changed:
            self._pictures[int(image.frame)] = picture
            while len(self._pictures) > KEPT:
                del self._pictures[min(self._pictures)]
            self._changed.notify()

    def take(self, frame: int, timeout_s: float) -> NDArray[np.uint8]:
        """Picture (height, width, 3) of a frame; older ones are dropped.

        Raises:
            RuntimeError: it does not arrive.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: frame in self._pictures, timeout_s):
                raise RuntimeError(f"the camera's picture of frame {frame} did not arrive in {timeout_s:g} s")
            picture = self._pictures.pop(frame)
            self._pictures = {at: one for at, one in self._pictures.items() if at > frame}
        return picture
