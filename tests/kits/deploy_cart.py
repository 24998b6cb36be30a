"""A cart as a simulated robot, without torch: robots of the deploy tests, and ways in which they fail."""

from __future__ import annotations

import os
import signal
import time
from typing import ClassVar

import numpy as np

from robotrl.deploy.robots.driver import TimedObservation
from robotrl.spec import Spec

ACTION = 2
PERIOD_S = 0.02
NEAR_THEN_FAR, BETWEEN = (1142, 1122), 600
"""Starts of which the first takes some 460 inner steps to its goal and the second some 750, and a step between: with a
fault from there on, one run is a healthy episode and then one with the fault."""
OBSERVATION_SPEC = {
    "state": Spec(
        (4,),
        ("cart_pos", "cart_vel", "goal_pos", "goal_vel"),
        ("m", "m/s", "m", "m/s"),
        (-1.0, -np.inf, -1.0, -2.0),
        (1.0, np.inf, 1.0, 2.0),
    ),
    "touch": Spec((1,), ("bumper_force",), ("N",), (0.0,), (10.0,)),
}
ACTION_SPEC = Spec((ACTION,), ("push", "brake"), ("N", "1"), (-2.0, -1.0), (2.0, 1.0))


class Cart:
    """A 1-D cart as a simulated robot: m = 1 kg, pushed, with a goal drawn from the state id. Success: near and slow.

    Environment variables make it fail on purpose, at a number of inner steps after a reset: CART_NAN_AT (observations
    become NaN), CART_STOP_AT (its process stops itself), CART_DIE_AT (exits without a word), CART_FAR_AT (its position
    reads CART_FAR), CART_FROZEN_AT (what it reads stands still).
    """

    control_dt_s = PERIOD_S
    inner_dt_s = 0.002
    limit_s = 2.0
    observation_spec = OBSERVATION_SPEC
    action_spec = ACTION_SPEC

    def __init__(self, seed: int) -> None:
        # where it stands before its first reset
        self.state = np.array([0.0, 0.0, 0.5])
        self.push, self.steps = 0.0, 0
        names = ("CART_NAN_AT", "CART_STOP_AT", "CART_DIE_AT", "CART_FAR_AT", "CART_FROZEN_AT")
        self.faults = {name: int(os.environ.get(name, "-1")) for name in names}
        self.read = np.zeros(4, np.float32)

    def state_ids(self, split: str) -> range:
        return {"train": range(0, 1000), "val": range(1000, 1100), "test": range(1100, 1200)}[split]

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(state_id)
        self.state = np.array([0.0, 0.0, rng.uniform(0.2, 0.8) * rng.choice([-1, 1])])
        self.push, self.steps = 0.0, 0
        return self.observe()

    def command(self, action: np.ndarray) -> None:
        self.push = float(action[0])

    def advance(self, inner_steps: int) -> None:
        for _ in range(inner_steps):
            self.state[1] += self.push * self.inner_dt_s
            self.state[0] += self.state[1] * self.inner_dt_s
        self.steps += inner_steps
        if 0 <= self.faults["CART_DIE_AT"] <= self.steps:
            os._exit(7)
        if 0 <= self.faults["CART_STOP_AT"] <= self.steps:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.1)

    def observe(self) -> dict[str, np.ndarray]:
        state = np.array([self.state[0], self.state[1], self.state[2], 0.0], np.float32)
        if 0 <= self.faults["CART_NAN_AT"] <= self.steps:
            state[1] = np.nan
        if 0 <= self.faults["CART_FAR_AT"] <= self.steps:
            state[0] = float(os.environ["CART_FAR"])
        if not 0 <= self.faults["CART_FROZEN_AT"] <= self.steps:
            self.read = state
        return {"state": self.read.copy(), "touch": np.zeros(1, np.float32)}

    def success(self) -> bool:
        return bool(abs(self.state[2] - self.state[0]) < 0.05 and abs(self.state[1]) < 0.1)


def make_cart(seed: int) -> Cart:
    return Cart(seed)


class StampedCart(Cart):
    """A cart that says when it measured; from CART_CLOCK_AT inner steps on, else 100, it goes wrong.

    CART_CLOCK says in which way: ahead, back or silent.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stamp_ns = 0

    def observe(self) -> TimedObservation:  # type: ignore[override]
        wrong = self.steps >= int(os.environ.get("CART_CLOCK_AT", "100"))
        match os.environ.get("CART_CLOCK") if wrong else None:
            case "ahead":
                self.stamp_ns = time.monotonic_ns() + 10**9
            case "back":
                self.stamp_ns -= 10**4
            case "silent":
                pass
            case _:
                self.stamp_ns = time.monotonic_ns()
        return TimedObservation(super().observe(), self.stamp_ns)


def make_stamped(seed: int) -> StampedCart:
    return StampedCart(seed)


class SwappedCart(Cart):
    """The same cart, whose driver lists its elements in another order."""

    observation_spec: ClassVar = {
        "touch": OBSERVATION_SPEC["touch"],
        "state": Spec(
            (4,),
            ("goal_vel", "cart_vel", "goal_pos", "cart_pos"),
            ("m/s", "m/s", "m", "m"),
            (-2.0, -np.inf, -1.0, -1.0),
            (2.0, np.inf, 1.0, 1.0),
        ),
    }
    action_spec = Spec((ACTION,), ("brake", "push"), ("1", "N"), (-1.0, -2.0), (1.0, 2.0))

    def observe(self) -> dict[str, np.ndarray]:
        obs = super().observe()
        return {"touch": obs["touch"], "state": obs["state"][[3, 1, 2, 0]]}

    def command(self, action: np.ndarray) -> None:
        self.push = float(action[1])


def make_swapped(seed: int) -> SwappedCart:
    return SwappedCart(seed)


WORDS = ("", "go", "stop")
TOLD_SPEC = {
    "state": OBSERVATION_SPEC["state"],
    "touch": Spec((1,), ("word_0",), ("1",), (0.0,), (2.0,), "int32", WORDS),
}


class ToldCart(Cart):
    """A cart that hands on what it is told, a word; from CART_WORD_AT inner steps on a number that is none."""

    observation_spec = TOLD_SPEC

    def observe(self) -> dict[str, np.ndarray]:
        wrong = 0 <= int(os.environ.get("CART_WORD_AT", "-1")) <= self.steps
        return {**super().observe(), "touch": np.array([7 if wrong else 1], np.int32)}


def make_told(seed: int) -> ToldCart:
    return ToldCart(seed)


class OtherCart(Cart):
    """A robot that is not the one of the bundle."""

    action_spec = Spec((ACTION,), ("pull", "brake"), ("N", "1"), (-2.0, -1.0), (2.0, 1.0))


def make_other(seed: int) -> OtherCart:
    return OtherCart(seed)


TARGET_SPEC = Spec((ACTION,), ("cart_target", "brake"), ("m", "1"), (-1.0, -1.0), (1.0, 1.0))


class TargetCart(Cart):
    """The same cart, whose driver takes target positions and pushes by a controller of its own."""

    action_spec = TARGET_SPEC

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.target_m = 0.0

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        self.target_m = 0.0
        return super().reset(state_id)

    def command(self, action: np.ndarray) -> None:
        self.target_m = float(action[0])

    def advance(self, inner_steps: int) -> None:
        for _ in range(inner_steps):
            self.push = 400.0 * (self.target_m - self.state[0]) - 40.0 * self.state[1]
            super().advance(1)


def make_target(seed: int) -> TargetCart:
    return TargetCart(seed)
