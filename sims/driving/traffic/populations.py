"""Populations of traffic: driving styles of the cars and trucks around the ego, as records that kernels read.

A population has ranges that each driver is drawn from, and parameters that its drivers share. IDM: Treiber, Hennecke
and Helbing 2000; MOBIL: Kesting, Treiber and Helbing 2007. Cyclists and pedestrians are the same in all populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from robotrl.errors import ConfigError, check_number
from robotrl.sims.driving import tables
from robotrl.sims.driving.world import Records


@dataclass(frozen=True)
class Population:
    """Driving style of the cars and trucks of a population; the defaults are those of `moderate`."""

    desired_speed: tuple[float, float] = (0.75, 1.10)
    """Lowest and highest desired speed of a driver, as a fraction of the speed limit; 0.1 to 2."""
    headway_s: tuple[float, float] = (1.0, 1.8)
    """Lowest and highest time headway of a driver, IDM's T, s; 0.1 to 10."""
    accel_mps2: float = 1.5
    """IDM's maximum acceleration a, m/s^2; 0.1 to 6."""
    brake_mps2: float = 2.0
    """IDM's comfortable deceleration b, m/s^2; 0.1 to 6."""
    standstill_gap_m: float = 2.0
    """IDM's gap s0 to a standing car, m; 0.5 to 20."""
    politeness: float = 0.2
    """MOBIL's weight of what a lane change costs the follower; 0 to 10."""
    change_gain_mps2: float = 0.15
    """MOBIL's least gain of a lane change, m/s^2; 0 to 10."""
    safe_brake_mps2: float = 2.5
    """MOBIL's hardest braking that a lane change may impose on the follower, m/s^2; 0.1 to 6."""
    change_headway_s: float = 0.3
    """Time headway that a lane change needs to those ahead and behind, besides 2 m, s; 0 to 10."""
    accepted_gap: float = 1.0
    """Gap in others' traffic that a driver who has to yield accepts, as a fraction of the time that it needs to clear
    their path; below 1 others have to brake; 0.1 to 10."""
    yellow_brake_mps2: float = 3.5
    """Hardest braking for a light that turns yellow, m/s^2: who would have to brake harder drives on; 0.1 to 6."""
    speed_noise: float = 0.0
    """Largest change of the desired speed over time, as a fraction of it; 0 to 0.9."""
    sudden_brakes_per_min: float = 0.0
    """Mean number of times per minute that a driver brakes at 4 m/s^2 for 1.5 s without a cause; 0 to 15."""
    weave_m: float = 0.0
    """Amplitude of weaving within the lane, m; 0 to 1.5."""
    distracted: float = 0.0
    """Fraction of the time, in pieces of 6 s, in which a driver notices neither lights, signs nor crosswalks and yields
    to nobody; 0 to 1."""


LIMITS = {
    "desired_speed": (0.1, 2.0, "of the limit"),
    "headway_s": (0.1, 10.0, "s"),
    "accel_mps2": (0.1, 6.0, "m/s^2"),
    "brake_mps2": (0.1, 6.0, "m/s^2"),
    "standstill_gap_m": (0.5, 20.0, "m"),
    "politeness": (0.0, 10.0, ""),
    "change_gain_mps2": (0.0, 10.0, "m/s^2"),
    "safe_brake_mps2": (0.1, 6.0, "m/s^2"),
    "change_headway_s": (0.0, 10.0, "s"),
    "accepted_gap": (0.1, 10.0, ""),
    "yellow_brake_mps2": (0.1, 6.0, "m/s^2"),
    "speed_noise": (0.0, 0.9, ""),
    "sudden_brakes_per_min": (0.0, 15.0, "1/min"),
    "weave_m": (0.0, 1.5, "m"),
    "distracted": (0.0, 1.0, ""),
}
"""Lowest and highest value of each field of `Population`, and its unit."""
DRAWN = ("desired_speed", "headway_s")
"""Fields that have a range, of which each driver draws a value."""


def moderate() -> Population:
    """Drivers who keep the limit and their distance, and yield as they should."""
    return Population()


def timid() -> Population:
    """Slow drivers who keep long gaps, wait for wide ones, brake for every yellow light, and often without a cause."""
    return Population(
        desired_speed=(0.4, 0.7),
        headway_s=(2.0, 3.2),
        accel_mps2=0.9,
        brake_mps2=1.5,
        standstill_gap_m=4.0,
        politeness=1.0,
        change_gain_mps2=0.6,
        change_headway_s=1.0,
        accepted_gap=1.8,
        yellow_brake_mps2=5.0,
        sudden_brakes_per_min=9.0,
    )


def aggressive() -> Population:
    """Fast drivers who follow closely, change lanes in front of others, take small gaps, and speed up at yellow."""
    return Population(
        desired_speed=(1.1, 1.5),
        headway_s=(0.4, 0.8),
        accel_mps2=3.0,
        brake_mps2=4.0,
        standstill_gap_m=1.2,
        politeness=0.0,
        change_gain_mps2=0.02,
        safe_brake_mps2=5.0,
        change_headway_s=0.05,
        accepted_gap=0.35,
        yellow_brake_mps2=1.0,
    )


def erratic() -> Population:
    """Distracted drivers who miss lights and signs, cut in, waver in speed, brake without a cause, and weave."""
    return Population(
        desired_speed=(0.6, 1.3),
        headway_s=(0.6, 2.2),
        politeness=0.0,
        change_gain_mps2=0.0,
        safe_brake_mps2=6.0,
        change_headway_s=0.0,
        accepted_gap=0.7,
        speed_noise=0.5,
        sudden_brakes_per_min=5.0,
        weave_m=0.7,
        distracted=0.3,
    )


def check_population(name: str, given: object) -> Population:
    """Check the values of a population.

    Raises:
        ConfigError: it is no `Population`, or a value is out of range; the field, its value and the range are named.
    """
    if not isinstance(given, Population):
        raise ConfigError(f"traffic population {name!r} is {given!r}: expected a Population")
    for field, (low, high, unit) in LIMITS.items():
        value = vars(given)[field]
        if field in DRAWN and not (isinstance(value, tuple) and len(value) == 2):
            raise ConfigError(f"traffic population {name!r}: {field} is {value!r}: expected (lowest, highest)")
        values = value if field in DRAWN else (value,)
        for one in values:
            check_number(f"traffic population {name!r}: {field}", one, low, high, unit)
        if list(values) != sorted(values):
            raise ConfigError(f"traffic population {name!r}: {field} is {value!r}: expected the lower end first")
    return given


def population_records(populations: Sequence[Population]) -> Records:
    """Records of `moderate`, then of each of the populations: what kernels read, (1 + len(populations),)."""
    rows = np.zeros(1 + len(populations), tables.POPULATION)
    rows["network"] = -1
    for row, population in zip(rows, (moderate(), *populations), strict=True):
        for field in fields(population):
            value = getattr(population, field.name)
            if field.name in DRAWN:
                # rounded: the width of 0.75 to 1.10 is 0.35, to the last bit
                row[f"{field.name}_low"], row[f"{field.name}_width"] = value[0], round(value[1] - value[0], 9)
            else:
                row[field.name] = value
    return rows
