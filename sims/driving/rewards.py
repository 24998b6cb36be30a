"""Rewards of the driving sim: terms with their sources, and presets.

A step's reward is

    progress * (product of the factors in use) + sum of weight * term + end

which covers two families of driving rewards: CaRL's (Jaeger et al. 2025), progress reduced by factors for violations,
and Roach's (Zhang et al. 2021), a sum of shaped terms. The sim's `terms` report all terms of the last step, even those
that are not in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_number, unknown
from robotrl.sims.driving.plan import Actions
from robotrl.sims.driving.tables import JUDGE_EVENTS

FACTORS = ("outside", "speeding", "ttc", "comfort", "centre")
"""CaRL's factors on progress, 0 to 1: 0 outside the lanes of the ego's direction; max(0, 1 - excess / 2.23 m/s) above
the speed limit; 0.5 for `hold_s` after a near collision; 1 - 0.5 k / 6 if k of nuPlan's six comfort limits were
exceeded within `hold_s`; 0.5 after more than 3 s at more than 0.5 m from the lane's centre."""
SHAPED = ("speed", "lateral", "heading", "steering", "alive")
"""Shaped terms, from Roach except the last: 1 - |v - v_target| / 6 m/s; -|offset| / 2 m; -|heading error| in rad;
-1 if the steering action changes by more than 0.01; and 1 for each step (CaRL on nuPlan)."""


@dataclass(frozen=True)
class RewardCfg:
    """Reward settings; see the module for the formula. Presets: `carl`, `roach`."""

    progress: float = 1.0
    """Weight of progress in percent of the route; a complete route is worth 100 times this."""
    factors: tuple[str, ...] = FACTORS
    """Factors in use, see `FACTORS`."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weights of shaped terms, see `SHAPED`; missing ones are 0."""
    ends: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rewards for ending with an event, by event name; missing ones are 0."""
    speed_at_end: float = 0.0
    """Additional reward per m/s of speed at a collision, red light or stop sign (Roach: -1)."""
    hold_s: float = 50.0
    """Duration, s, for which a near collision or exceeded comfort limit counts; 500 steps in CaRL."""


def carl(end_penalty: float = 1.0) -> RewardCfg:
    """CaRL's reward: progress, soft factors, and `end_penalty` for a collision or red light (a route is worth 100)."""
    return RewardCfg(ends=dict.fromkeys(("vehicle", "pedestrian", "static", "red_light"), -end_penalty))


def roach() -> RewardCfg:
    """Roach's shaped reward: speed, lateral offset, heading, steering, and -1 at a failure; a negative control."""
    failures = [name for name in JUDGE_EVENTS if name not in ("finished", "timed_out")]
    return RewardCfg(
        progress=0.0,
        factors=(),
        weights={"speed": 1.0, "lateral": 1.0, "heading": 1.0, "steering": 0.1},
        ends=dict.fromkeys(failures, -1.0),
        speed_at_end=-1.0,
    )


PRESETS = {"carl": carl, "roach": roach}
"""Reward presets by name."""


class Rules(NamedTuple):
    """A `RewardCfg`, episode limits and action settings in the form that kernels read."""

    progress: float
    factors: NDArray[np.float64]
    """(5,) 1 for each factor in use."""
    weights: NDArray[np.float64]
    """(5,) weights of the shaped terms."""
    ends: NDArray[np.float64]
    """(10,) end rewards, by event bit."""
    speed_at_end: float
    hold_s: float
    blocked_s: float
    """Standing time that ends an episode, s."""
    throttle: float
    """Acceleration, m/s^2, for an acceleration action of 1."""
    dt: float
    hold: int
    """Control steps per action."""
    planned: int
    """1 if actions are trajectories, else 0."""
    pose_noise_m: float = 0.0
    """Standard deviation of the error of the ego's localization along and aside, each."""
    heading_noise_rad: float = 0.0
    speed_noise_mps: float = 0.0
    pose_noise_s: float = 1.0
    """Time after which errors are independent."""

    def localization_errs(self) -> bool:
        """True if the ego's pose or speed has errors in the observations."""
        return max(self.pose_noise_m, self.heading_noise_rad, self.speed_noise_mps) > 0.0


def rules(cfg: RewardCfg, actions: Actions, blocked_s: float, throttle: float, dt: float) -> Rules:
    """Validate a reward configuration and convert it for the kernels.

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
        if name not in JUDGE_EVENTS:
            raise unknown("reward event", name, JUDGE_EVENTS)
    check_number("reward.hold_s", cfg.hold_s, 0.0, 1e6, "s")
    check_number("blocked_s", blocked_s, 1.0, 1e6, "s")
    check_number("throttle_mps2", throttle, 0.1, 10.0, "m/s^2")
    return Rules(
        progress=float(cfg.progress),
        factors=np.array([float(name in cfg.factors) for name in FACTORS]),
        weights=np.array([float(cfg.weights.get(name, 0.0)) for name in SHAPED]),
        ends=np.array([float(cfg.ends.get(name, 0.0)) for name in JUDGE_EVENTS]),
        speed_at_end=float(cfg.speed_at_end),
        hold_s=float(cfg.hold_s),
        blocked_s=float(blocked_s),
        throttle=float(throttle),
        dt=float(dt),
        hold=actions.hold,
        planned=int(actions.kind == "trajectory"),
    )
