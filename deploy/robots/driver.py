"""The driver loop of a simulated robot: real time, one process, nothing but the link between it and the controller.

The loop runs at the simulation's inner period on absolute deadlines. At each it takes the latest command, advances the
simulation, and publishes an observation.

Time is honest: simulated time follows the wall clock, because a real robot does not wait for its computer. When the
process woke late, the missed inner steps are made up for in one advance under the command then in force, and one
observation is published; nothing is sent in a burst. Up to `MAX_CATCH_UP_S` are made up for; beyond that the time is
dropped, and reported as lost.
"""

from __future__ import annotations

import os
import time
from typing import Literal, NamedTuple, Protocol

import numpy as np

from robotrl.deploy.control.realtime import sleep_until, steady
from robotrl.deploy.control.safety import Mode
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import Link, RobotCommand, Status, message, now_ns
from robotrl.errors import RobotrlError
from robotrl.spec import Spec

MAX_CATCH_UP_S = 0.1
COMMAND_TIMEOUT_PERIODS = 3
CONTROLLER_TIMEOUT_S = 5.0
_IDLE_S = 0.001

LEFT, FAULT, ORPHANED = 0, 2, 3
"""Exit codes: stopped by the controller; the simulation failed; the controller is gone."""


class TimedObservation(NamedTuple):
    """Observations with the sensor's own time.

    A driver that hands on a sensor's last message stamps it with the time of the measurement, so that a sensor that
    has fallen silent is seen to be stale.
    """

    observations: dict[str, np.ndarray]
    """(D,) float32 for each key."""
    stamp_ns: int
    """When they were measured, on this machine's monotonic clock (`time.monotonic_ns`)."""


class RobotSim(Protocol):
    """A simulated robot that the driver can run. It needs no torch and holds one robot."""

    observation_spec: dict[str, Spec]
    action_spec: Spec
    control_dt_s: float
    inner_dt_s: float

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        """Start at a numbered state; observations (D,) float32."""
        ...

    def command(self, action: np.ndarray) -> None:
        """Take an action (A,) float32; it stands until the next."""
        ...

    def advance(self, inner_steps: int) -> None:
        """Let `inner_steps * inner_dt_s` seconds pass."""
        ...

    def observe(self) -> dict[str, np.ndarray] | TimedObservation:
        """Observations (D,) float32 of now, or `TimedObservation` where the sensor says when it measured them."""
        ...

    def success(self) -> bool:
        """Whether the task is done now."""
        ...

    def state_ids(self, split: Literal["train", "val", "test"]) -> range:
        """Start states of a split."""
        ...


def drive(link: Link, robot: RobotSim) -> int:
    """Run the robot until the controller stops it or is gone.

    Args:
        link: the robot's end.
        robot: what to run. A `limit_s` attribute (length of an episode), if it has one, is told to the controller.

    Returns:
        The exit code of the process.
    """
    test = robot.state_ids("test")
    link.introduce(
        "robot",
        {
            "observation_spec": {key: spec.to_json() for key, spec in robot.observation_spec.items()},
            "action_spec": robot.action_spec.to_json(),
            "control_dt_s": robot.control_dt_s,
            "inner_dt_s": robot.inner_dt_s,
            "limit_s": getattr(robot, "limit_s", None),
            "test_ids": [test.start, test.stop],
        },
    )
    with steady():
        return _Driver(link, robot).run()


def orphaned(link: Link, command: Message | None, started_ns: int) -> bool:
    """Whether the controller is gone: no longer our parent, or silent for too long."""
    heard = started_ns if command is None else command.stamp_ns
    return os.getppid() != link.controller_pid or now_ns() - heard > CONTROLLER_TIMEOUT_S * 1e9


class _Driver:
    """The loop's state."""

    def __init__(self, link: Link, robot: RobotSim) -> None:
        self.link = link
        self.robot = robot
        self.inner_ns = round(robot.inner_dt_s * 1e9)
        self.timeout_ns = round(COMMAND_TIMEOUT_PERIODS * robot.control_dt_s * 1e9)
        self.episode = 0
        self.state_id = -1
        self.steps = 0
        self.taken = -1
        self.made_up = 0
        self.lost_ns = 0
        self.start_ns = 0
        self.neutral: np.ndarray | None = None
        self.holding = False

    def run(self) -> int:
        began = now_ns()
        while True:
            command = self.link.commands.read()
            if orphaned(self.link, command, began):
                return ORPHANED
            if command is None:
                time.sleep(_IDLE_S)
                continue
            if command.kind == RobotCommand.STOP:
                self.holding = False
                self.hold()
                self.publish(Status.LEFT, np.zeros(0, np.float32))
                return LEFT
            if command.kind == RobotCommand.RESET and command.episode != self.episode:
                self.reset(command)
            elif command.kind == RobotCommand.ACT and command.episode == self.episode:
                self.take(command)
            if self.episode == 0:
                time.sleep(_IDLE_S)
                continue
            if now_ns() - command.stamp_ns > self.timeout_ns:
                self.hold()
            self.advance()
            self.publish(Status.READY, *self.observation())
            sleep_until(self.start_ns + (self.steps + 1) * self.inner_ns)

    def reset(self, command: Message) -> None:
        """Start an episode. The command's values are neutral, or nothing where holding means to keep the last one."""
        self.robot.reset(command.state_id)
        self.neutral = command.values if len(command.values) else None
        self.episode, self.state_id = command.episode, command.state_id
        self.steps, self.taken = 0, -1
        self.holding = False
        self.hold()
        self.start_ns = now_ns()

    def take(self, command: Message) -> None:
        """Hand a new action to the robot, once."""
        if command.tick == self.taken:
            return
        self.taken = command.tick
        if command.mode == Mode.ACTIVE:
            self.robot.command(command.values)
            self.holding = False
        else:
            self.holding = False
            self.hold()

    def hold(self) -> None:
        """Ask for no motion, once until the next action; without a neutral action the last one stands."""
        if not self.holding and self.neutral is not None:
            self.robot.command(self.neutral)
        self.holding = True

    def advance(self) -> None:
        """Bring simulated time up to the wall clock; at least one step."""
        due = max(1, (now_ns() - self.start_ns) // self.inner_ns - self.steps)
        most = max(1, round(MAX_CATCH_UP_S / self.robot.inner_dt_s))
        if due > most:
            self.lost_ns += (due - most) * self.inner_ns
            self.start_ns += (due - most) * self.inner_ns
            due = most
        self.robot.advance(due)
        self.made_up += due - 1
        self.steps += due

    def observation(self) -> tuple[np.ndarray, int]:
        """All observations in the order of the spec, flat, and when they were measured."""
        found = self.robot.observe()
        obs, stamp_ns = found if isinstance(found, TimedObservation) else (found, now_ns())
        flat = np.concatenate([np.ravel(obs[key]) for key in self.robot.observation_spec])
        return flat.astype(np.float32), stamp_ns

    def publish(self, status: Status, values: np.ndarray, stamp_ns: int | None = None) -> None:
        """Make an observation the latest one, measured at `stamp_ns` or now."""
        done = int(self.robot.success()) if status == Status.READY else 0
        self.link.observations.write(
            message(
                status,
                tick=self.steps,
                episode=self.episode,
                state_id=self.state_id,
                mode=done,
                reason=self.made_up,
                echo=self.taken,
                lost_ns=self.lost_ns,
                values=values,
                stamp_ns=stamp_ns,
            )
        )


def fault(link: Link, error: RobotrlError) -> int:
    """Leave the reason of a fault where the controller finds it; returns the exit code."""
    link.introduce("robot", {"fault": str(error)})
    return FAULT
