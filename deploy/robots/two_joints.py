"""A robot with two joints: the driver that `robotrl new robot` copies, with places for the calls of a robot's SDK.

It moves a model, so that it runs at once. "SDK:" marks what a real robot does in its place.
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from robotrl.deploy.robots.driver import TimedObservation
from robotrl.spec import Spec

OBSERVATION_SPEC = {
    "state": Spec(
        shape=(4,),
        names=("joint_1_pos", "joint_2_pos", "joint_1_goal", "joint_2_goal"),
        units=("rad", "rad", "rad", "rad"),
        low=(-3.2, -3.2, -2.0, -2.0),
        high=(3.2, 3.2, 2.0, 2.0),
    )
}
ACTION_SPEC = Spec((2,), ("joint_1_target", "joint_2_target"), ("rad", "rad"), (-3.0, -3.0), (3.0, 3.0))
TIME_CONSTANT_S = 0.1
NEAR_RAD = 0.05


class TwoJointsRobot:
    """Two joints that follow their targets. The task is to bring both to their goals."""

    observation_spec = OBSERVATION_SPEC
    action_spec = ACTION_SPEC
    control_dt_s = 0.02
    inner_dt_s = 0.005
    limit_s = 2.0

    def __init__(self, seed: int) -> None:
        # SDK: connect to the robot here.
        self.joints, self.goals, self.target = np.zeros(2), np.zeros(2), np.zeros(2)

    def state_ids(self, split: Literal["train", "val", "test"]) -> range:
        """Numbers of the starts; control runs from those of "test"."""
        return {"train": range(0, 800), "val": range(800, 900), "test": range(900, 1000)}[split]

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        """Go to the start `state_id`, within 30 s."""
        # SDK: move to the start pose here, slowly, and return when the robot stands there.
        self.joints, self.target = np.zeros(2), np.zeros(2)
        self.goals = np.random.default_rng(state_id).uniform(-2.0, 2.0, 2)
        return self.observe().observations

    def command(self, action: np.ndarray) -> None:
        """Set the targets (2,), which hold until the next command."""
        # SDK: send the command here.
        self.target = np.array(action, np.float64)

    def advance(self, inner_steps: int) -> None:
        """Let `inner_steps * inner_dt_s` seconds pass."""
        # SDK: nothing. A real robot moves by itself, and the driver's loop waits until the time has passed.
        gain = 1.0 - np.exp(-self.inner_dt_s / TIME_CONSTANT_S)
        for _ in range(inner_steps):
            self.joints = self.joints + gain * (self.target - self.joints)

    def observe(self) -> TimedObservation:
        """Latest measurement, with its time."""
        # SDK: read the joints here; the time is that of the measurement, on the clock of `time.monotonic_ns`.
        state = np.concatenate([self.joints, self.goals]).astype(np.float32)
        return TimedObservation({"state": state}, time.monotonic_ns())

    def success(self) -> bool:
        """Tell whether both joints are at their goals."""
        return bool((np.abs(self.joints - self.goals) < NEAR_RAD).all())


def make(seed: int) -> TwoJointsRobot:
    """Create the driver."""
    return TwoJointsRobot(seed)
