"""Rewards of the driving world: terms with their sources, and presets that compose them.

A step's reward is

    progress * (product of the factors in use) + sum of weight * term + end

so that both families of driving rewards are settings of one formula: CaRL's (Jaeger et al. 2025), in which progress is
all there is and violations take a share of it, and Roach's (Zhang et al. 2021), a sum of shaped terms. The terms of the
step just made are given in the sim's `terms`, whichever are in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_number, unknown
from robotrl.sims.bev.plan import Actions
from robotrl.sims.bev.tables import EVENTS

FACTORS = ("outside", "speeding", "ttc", "comfort", "centre")
"""Factors of 0 to 1 on progress, all of CaRL: outside the lanes of its direction 0; above the limit
max(0, 1 - excess / 2.23 m/s); after a near collision 0.5 for `hold_s`; 1 - 0.5 k / 6 where k of nuPlan's six limits of
comfort were passed within `hold_s`; 0.5 after more than 3 s further than 0.5 m from a lane's centre."""
SHAPED = ("speed", "lateral", "heading", "steering", "alive")
"""Terms of a sum, of Roach but for the last: 1 - |v - v_wanted| / 6 m/s; -|offset| / 2 m; -|heading error| in rad;
-1 where the steering action moves by more than 0.01; and 1 for each step (CaRL on nuPlan)."""


@dataclass(frozen=True)
class RewardCfg:
    """What is rewarded; see the module. Presets: `carl`, `roach`."""

    progress: float = 1.0
    """Weight of the percentage of the route newly driven; a whole route is worth 100 times this."""
    factors: tuple[str, ...] = FACTORS
    """Factors in use."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weights of shaped terms; those not named weigh 0."""
    ends: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the end by an event adds; those not named add 0."""
    speed_at_end: float = 0.0
    """What a collision, a red light or a stop sign adds for each m/s (Roach: -1)."""
    hold_s: float = 50.0
    """s for which a near collision or a discomfort counts; 500 steps in CaRL."""


def carl(end_penalty: float = 1.0) -> RewardCfg:
    """CaRL's reward: progress, soft factors, and what a collision or a red light costs, of the 100 of a whole route."""
    return RewardCfg(ends=dict.fromkeys(("vehicle", "pedestrian", "static", "red_light"), -end_penalty))


def roach() -> RewardCfg:
    """Roach's shaped sum, the negative control: speed, lateral offset, heading, steering, and -1 at a failure."""
    failures = [name for name in EVENTS if name not in ("finished", "timed_out")]
    return RewardCfg(
        progress=0.0,
        factors=(),
        weights={"speed": 1.0, "lateral": 1.0, "heading": 1.0, "steering": 0.1},
        ends=dict.fromkeys(failures, -1.0),
        speed_at_end=-1.0,
    )


PRESETS = {"carl": carl, "roach": roach}
"""Rewards by name."""


class Rules(NamedTuple):
    """A `RewardCfg` and the limits of an episode as kernels read them."""

    progress: float
    factors: NDArray[np.float64]
    """(5,) 1 where in use."""
    weights: NDArray[np.float64]
    """(5,) of the shaped terms."""
    ends: NDArray[np.float64]
    """(10,) by the events' bits."""
    speed_at_end: float
    hold_s: float
    blocked_s: float
    """Standing for so long ends an episode."""
    throttle: float
    """m/s^2 at an acceleration action of 1."""
    dt: float
    hold: int
    """Control steps that an action lasts."""
    planned: int
    """1 where actions are trajectories."""


def rules(cfg: RewardCfg, actions: Actions, blocked_s: float, throttle: float, dt: float) -> Rules:
    """Check a reward and lay it out for the kernels.

    Raises:
        ConfigError: an unknown factor, term or event, or a number out of range.
    """
    for name in cfg.factors:
        if name not in FACTORS:
            raise unknown("reward factor", name, FACTORS)
    for name in cfg.weights:
        if name not in SHAPED:
            raise unknown("reward term", name, SHAPED)
    for name in cfg.ends:
        if name not in EVENTS:
            raise unknown("reward event", name, EVENTS)
    check_number("reward.hold_s", cfg.hold_s, 0.0, 1e6, "s")
    check_number("blocked_s", blocked_s, 1.0, 1e6, "s")
    check_number("throttle_mps2", throttle, 0.1, 10.0, "m/s^2")
    return Rules(
        progress=float(cfg.progress),
        factors=np.array([float(name in cfg.factors) for name in FACTORS]),
        weights=np.array([float(cfg.weights.get(name, 0.0)) for name in SHAPED]),
        ends=np.array([float(cfg.ends.get(name, 0.0)) for name in EVENTS]),
        speed_at_end=float(cfg.speed_at_end),
        hold_s=float(cfg.hold_s),
        blocked_s=float(blocked_s),
        throttle=float(throttle),
        dt=float(dt),
        hold=actions.hold,
        planned=int(actions.kind == "trajectory"),
    )
