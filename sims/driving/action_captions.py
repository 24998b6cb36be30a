"""Captions of actions of the driving sim: sentences for anchor actions, by the speed and the way of the route.

The expert's action says which of them is right in a scene.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.render.vectors import ROUTE_AT, SHORT, SPEED
from robotrl.sims.driving.scene import FACTS, ROUTE_M
from robotrl.spec.captions import ActionCaptions, ActionContext, CaptionClass

STEER, BRAKE, SPEED_UP = 0.35, -1.0, 0.6
"""Steering and acceleration actions of the anchors."""
SLOW_MPS, FAST_MPS, ASIDE_M = 0.5, 6.0, 3.0
"""Speeds between the ranges, and the lateral position of the route ahead from which it goes left or right."""

_PEDALS = (
    (BRAKE, "brake", ("brake", "brake now"), ("now brake",)),
    (0.0, "keep", ("keep our speed", "go on as fast as now"), ("keep on as fast as now",)),
    (SPEED_UP, "speed-up", ("speed up", "go faster"), ("go on and speed up",)),
)
_WHEELS = (
    (STEER, "left", ("steer left", "steer to the left"), ("now steer left",)),
    (0.0, "straight", ("steer straight", "keep straight"), ("now keep straight",)),
    (-STEER, "right", ("steer right", "steer to the right"), ("now steer right",)),
)


def _both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{pedal} and {wheel}" for pedal in one for wheel in other)


ACTIONS = ActionCaptions(
    tuple((steer, accel) for accel, *_ in _PEDALS for steer, *_ in _WHEELS),
    tuple(
        CaptionClass(f"{pedal}-{wheel}", _both(pedal_train, wheel_train), _both(pedal_test, wheel_test))
        for _, pedal, pedal_train, pedal_test in _PEDALS
        for _, wheel, wheel_train, wheel_test in _WHEELS
    ),
    (
        ActionContext(
            "speed",
            (SLOW_MPS / SPEED, FAST_MPS / SPEED),
            (
                CaptionClass("standing", ("we stand still", "our car stands"), ("we stand",)),
                CaptionClass("slow", ("we drive slowly", "our car moves slowly"), ("we move slowly",)),
                CaptionClass("fast", ("we drive fast", "our car moves fast"), ("we move fast",)),
            ),
        ),
        ActionContext(
            f"route/{ROUTE_AT.index(ROUTE_M)}/y",
            (-ASIDE_M / SHORT, ASIDE_M / SHORT),
            (
                CaptionClass("right", ("our way goes right", "the way bends right"), ("the way goes right",)),
                CaptionClass("ahead", ("our way goes straight", "the way is straight"), ("the way goes straight",)),
                CaptionClass("left", ("our way goes left", "the way bends left"), ("the way goes left",)),
            ),
        ),
    ),
)


def context_numbers(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 2) speed and side of the route as they are observed, from the facts (N, F) of the scenes."""
    return rows[:, [FACTS.index("speed_mps"), FACTS.index("route_aside_m")]] / (SPEED, SHORT)
