"""Whims of erratic drivers: wavering speed, braking without a cause, weaving.

All follow from the driver's seed and the time in the episode, so that an exact state needs nothing more.
"""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform

WAVER_S, BRAKING_S, BRAKES_FOR_S, WEAVE_S, DISTRACTED_S = 5.0, 4.0, 1.5, 6.0, 6.0
"""Time between two desired speeds, length of the windows in which a driver may brake once, duration of such braking,
period of weaving, and length of the windows in which a driver may be distracted."""
SUDDEN_MPS2 = 4.0
"""Deceleration of braking without a cause."""
WAVER, BRAKING, WEAVE, DISTRACTED = 1 << 24, 2 << 24, 3 << 24, 4 << 24
"""First streams of random numbers of each whim, beyond those of a driver's turns."""


@kernel
def wavered(me: Any, style: Any, time: float) -> float:
    """Factor of the desired speed at a time, s: linear between values in 1 - noise to 1 + noise every `WAVER_S`."""
    at = time / WAVER_S + uniform(me.seed, WAVER - 1)
    k = int(at)
    here, there = uniform(me.seed, WAVER + k), uniform(me.seed, WAVER + k + 1)
    return 1.0 + style.speed_noise * (2.0 * (here + (there - here) * (at - k)) - 1.0)


@kernel
def brakes_suddenly(me: Any, style: Any, time: float) -> bool:
    """True while a driver brakes without a cause, at a time, s."""
    at = time / BRAKING_S + uniform(me.seed, BRAKING - 1)
    k = int(at)
    return (at - k) * BRAKING_S < BRAKES_FOR_S and uniform(me.seed, BRAKING + k) < (
        style.sudden_brakes_per_min * BRAKING_S / 60.0
    )


@kernel
def weaving(me: Any, style: Any, time: float) -> float:
    """Offset from a driver's place in the lane, m left, at a time, s."""
    return style.weave_m * math.sin(2.0 * math.pi * (time / WEAVE_S + uniform(me.seed, WEAVE)))


@kernel
def is_distracted(me: Any, style: Any, time: float) -> bool:
    """True while a driver notices neither lights nor who has the right of way, at a time, s."""
    at = time / DISTRACTED_S + uniform(me.seed, DISTRACTED - 1)
    return uniform(me.seed, DISTRACTED + int(at)) < style.distracted
