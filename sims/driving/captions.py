"""Captions of the driving sim: wordings, and which of them are true of a scene."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.core import DrivingCore
from robotrl.sims.driving.scene import FACTS, scene_range
from robotrl.sims.driving.traffic.right_of_way import GREEN, RED
from robotrl.spec.captions import UNCLEAR, CaptionClass, CaptionTopic

NEAR_S, CLEAR_S = 1.5, 4.0
"""Times to collision below which a collision is about to happen, and above which the road is clear."""


def _about_to_hit(name: str, where: str, side: str) -> CaptionClass:
    return CaptionClass(
        name,
        (
            f"a car is about to hit us {where}",
            f"danger {where} a crash is about to happen",
            f"someone {side} is too close and a crash is near",
            f"we are about to crash into someone {side}",
            f"a collision {where} will happen now",
        ),
        (
            f"a crash {where} is near",
            f"someone is about to hit us {where}",
            f"danger a car {side} is too close",
        ),
    )


COLLISION = CaptionTopic(
    "collision",
    (
        CaptionClass(
            "clear",
            (
                "the road is clear and safe",
                "no one is in our way",
                "nothing will hit us we are safe",
                "the way is free and no car is too close",
                "there is no danger",
            ),
            ("the road is safe and free", "no danger nothing is in our way", "no one is close the way is clear"),
        ),
        _about_to_hit("ahead", "from the front", "ahead of us"),
        _about_to_hit("behind", "from behind", "behind us"),
        _about_to_hit("left", "from the left", "on our left"),
        _about_to_hit("right", "from the right", "on our right"),
    ),
)
SPEED = CaptionTopic(
    "speed",
    (
        CaptionClass(
            "standing",
            ("we stand still", "our car does not move", "our car stands still"),
            ("we stand", "our car stands and does not move"),
        ),
        CaptionClass("slow", ("we drive slowly", "our car moves slowly"), ("we move slowly",)),
        CaptionClass("fast", ("we drive fast", "our car moves fast"), ("we move fast",)),
    ),
)
LIGHT = CaptionTopic(
    "light",
    (
        CaptionClass("none", ("there is no light ahead",), ("no light is ahead",)),
        CaptionClass("green", ("the light ahead is green", "we have a green light"), ("there is a green light ahead",)),
        CaptionClass("red", ("the light ahead is red", "we have a red light"), ("there is a red light ahead",)),
    ),
)
PLACE = CaptionTopic(
    "place",
    (
        CaptionClass("lane", ("we are in our lane", "our car keeps its lane"), ("our car is in its lane",)),
        CaptionClass(
            "off-road",
            ("we are off the road", "our car leaves the road"),
            ("our car is off the road",),
        ),
    ),
)
TOPICS = (COLLISION, SPEED, LIGHT, PLACE)


def facts(core: DrivingCore) -> NDArray[np.float64]:
    """Facts (N, F) of the present scenes, columns `robotrl.sims.driving.scene.FACTS`."""
    out = np.zeros((core.num_envs, len(FACTS)))
    core.machine.wait()
    scene_range(core.bank.arrays, core.world, out, 0, core.num_envs)
    return out


def classes_of(rows: NDArray[np.float64]) -> NDArray[np.int8]:
    """Class (N, topics) of each scene in each of `TOPICS`, from its facts (N, F)."""
    ttc, direction, speed, light, offset, off = rows.T[:6]
    out = np.full((len(rows), len(TOPICS)), UNCLEAR, np.int8)
    around = np.abs(direction)
    side = np.select([around < np.pi / 4, around > 3 * np.pi / 4, direction > 0], [1, 2, 3], 4)
    out[:, 0] = np.select([ttc > CLEAR_S, ttc < NEAR_S], [0, side], UNCLEAR)
    out[:, 1] = np.select([speed < 0.3, (speed > 1) & (speed < 5), speed > 8], [0, 1, 2], UNCLEAR)
    out[:, 2] = np.select([light < 0, light == GREEN, light == RED], [0, 1, 2], UNCLEAR)
    out[:, 3] = np.select([off > 0.3, (off == 0) & (np.abs(offset) < 0.5)], [1, 0], UNCLEAR)
    return out
