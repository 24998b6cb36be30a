"""A cart that is seen by a camera: a robot whose frames are rarer than its numbers, and a policy that reads them."""

from __future__ import annotations

import os
from typing import ClassVar

import numpy as np

from robotrl.spec import Spec
from tests.kits.deploy_cart import ACTION_SPEC, Cart

ROWS, COLUMNS = 4, 32
EVERY = 3
"""Inner steps between two frames."""
SPEED_SPEC = Spec((1,), ("cart_vel",), ("m/s",), (-np.inf,), (np.inf,))
IMAGE_SPEC = Spec((ROWS, COLUMNS, 3), ("red", "green", "blue"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")
SEEN_SPEC = {"image": IMAGE_SPEC, "speed": SPEED_SPEC}
PLACES = np.linspace(-1.0, 1.0, COLUMNS, dtype=np.float32)
"""Position that each column of the image shows, meters."""


def picture(cart: float, goal: float) -> np.ndarray:
    """(rows, columns, 3) uint8: the cart in red, the goal in green, each shared by the two nearest columns."""
    image = np.zeros((ROWS, COLUMNS, 3), np.uint8)
    for channel, place in ((0, cart), (1, goal)):
        at = (min(max(place, -1.0), 1.0) + 1.0) / 2.0 * (COLUMNS - 1)
        below = min(int(at), COLUMNS - 2)
        part = round(255 * (at - below))
        image[:, below, channel], image[:, below + 1, channel] = 255 - part, part
    return image


class CameraCart(Cart):
    """Lists its channels in another order than the policy. From CAMERA_SILENT_AT inner steps on no frame comes; from
    CAMERA_STUCK_AT on each shows the same.
    """

    observation_spec: ClassVar = {
        "speed": SPEED_SPEC,
        "image": Spec((ROWS, COLUMNS, 3), ("blue", "red", "green"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"),
    }
    action_spec = ACTION_SPEC

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.silent_at, self.stuck_at = (
            int(os.environ.get(name, 10**9)) for name in ("CAMERA_SILENT_AT", "CAMERA_STUCK_AT")
        )
        self.shown = np.zeros((ROWS, COLUMNS, 3), np.uint8)
        self.next_frame = 0

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        self.next_frame = 0
        return super().reset(state_id)

    def observe(self) -> dict[str, np.ndarray]:
        found = {"speed": np.float32([self.state[1]])}
        if self.steps >= self.next_frame and self.steps < self.silent_at:
            self.next_frame = self.steps + EVERY
            if self.steps < self.stuck_at:
                self.shown = picture(float(self.state[0]), float(self.state[2]))[..., [2, 0, 1]]
            found["image"] = self.shown
        return found


def make(seed: int) -> CameraCart:
    return CameraCart(seed)


class OddCart(CameraCart):
    """A cart whose observations differ from its specs from 50 inner steps on, as CAMERA_ODD says."""

    def observe(self) -> dict[str, np.ndarray]:
        found = super().observe()
        match os.environ["CAMERA_ODD"] if self.steps >= 50 else "":
            case "float" if "image" in found:
                found["image"] = found["image"].astype(np.float32)
            case "cut" if "image" in found:
                found["image"] = found["image"][:2]
            case "missing":
                del found["speed"]
            case "longer":
                found["speed"] = np.zeros(2, np.float32)
        return found


def make_odd(seed: int) -> OddCart:
    return OddCart(seed)
