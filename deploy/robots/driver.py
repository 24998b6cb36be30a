"""Driver loop of a simulated robot: real time, in a separate process that communicates through the link only.

The loop runs at the simulation's inner period on absolute deadlines. At each it reads the latest command, advances the
simulation, and publishes an observation.

Simulated time follows the wall clock, because a real robot does not wait for its computer. After a late wake-up the
missed inner steps are caught up in one advance with the current command, and one observation is published. Up to
`MAX_CATCH_UP_S` are caught up; time beyond that is dropped and reported as lost.
"""

from __future__ import annotations

import os
import time
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from robotrl.deploy.control.realtime import sleep_until, steady
from robotrl.deploy.control.safety import Mode
from robotrl.deploy.robots.channel import Channel, Message
from robotrl.deploy.robots.link import EpisodeState, Link, RobotCommand, Status, message, now_ns
from robotrl.deploy.robots.start_motion import IsSimulated, StartsByCommands, started_by
from robotrl.errors import ConfigError, RobotrlError
from robotrl.spec import Spec

MAX_CATCH_UP_S = 0.1
COMMAND_TIMEOUT_PERIODS = 3
CONTROLLER_TIMEOUT_S = 5.0
FIRST_COMMAND_TIMEOUT_S = 60.0
"""Longer than `CONTROLLER_TIMEOUT_S`: before its first command a controller collects garbage and prepares."""
_IDLE_S = 0.001

LEFT, FAULT, ORPHANED = 0, 2, 3
"""Exit codes: stopped by the controller; the simulation failed; the controller is gone."""


class TimedObservation(NamedTuple):
    """Observations with the time of the measurement.

    A driver that forwards a sensor's last message stamps it with the time of the measurement, so that a silent sensor
    is detected as stale.
    """

    observations: dict[str, np.ndarray]
    """(D,) float32 for each key; (h, w, channels) uint8 of an image."""
    stamp_ns: int
    """Time of the measurement on this machine's monotonic clock (`time.monotonic_ns`)."""


class RobotSim(Protocol):
    """A simulated robot that the driver can run. It needs no torch and holds one robot."""

    observation_spec: dict[str, Spec]
    action_spec: Spec
    control_dt_s: float
    inner_dt_s: float

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        """Start at a numbered state; returns observations (D,) float32.

        A robot that the servo moves (`StartsByCommands`) is not moved.
        """
        ...

    def command(self, action: np.ndarray) -> None:
        """Set the action (A,) float32, which applies until the next one."""
        ...

    def advance(self, inner_steps: int) -> None:
        """Simulate `inner_steps * inner_dt_s` seconds."""
        ...

    def observe(self) -> dict[str, np.ndarray] | TimedObservation:
        """Current observations (D,) float32, or a `TimedObservation` with the sensor's own time.

        An image is (h, w, channels) uint8; a camera without a new frame since the last call is left out.
        """
        ...

    def success(self) -> bool:
        """Tell whether the task is solved in the current state."""
        ...

    def state_ids(self, split: Literal["train", "val", "test"]) -> range:
        """Ids of the start states of a split."""
        ...


@runtime_checkable
class EndsEpisodes(Protocol):
    """A robot whose episodes may end without success, such as those of a simulation that ends them at a failure."""

    def over(self) -> bool:
        """True once the episode has ended, until the next reset."""
        ...


def episode_state(robot: RobotSim) -> EpisodeState:
    """State of a robot's episode."""
    if robot.success():
        return EpisodeState.SOLVED
    return EpisodeState.OVER if isinstance(robot, EndsEpisodes) and robot.over() else EpisodeState.RUNNING


def drive(link: Link, robot: RobotSim) -> int:
    """Run the robot until the controller stops it or is gone.

    Args:
        link: the robot's end.
        robot: the robot to run. An optional `limit_s` attribute (length of an episode) is reported to the controller.

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
            "started_by": started_by(robot),
            "start_motion": robot.start_motion.to_json() if isinstance(robot, StartsByCommands) else None,
        },
    )
    with steady():
        return _Driver(link, robot).run()


def latest(commands: Channel, last: Message | None) -> Message | None:
    """The latest command; the one before where its writer was interrupted in the middle, as a busy machine does.

    Args:
        commands: the controller's channel.
        last: the latest command so far; None before the first.
    """
    found = commands.read()
    return last if found is None else found


def orphaned(link: Link, command: Message | None, started_ns: int) -> str:
    """Tell why the controller counts as gone (no longer the parent, or silent for too long); "" if it is there."""
    if os.getppid() != link.controller_pid:
        return f"its controller (process {link.controller_pid}) has ended"
    if command is None:
        last_ns, limit_s, kind = started_ns, FIRST_COMMAND_TIMEOUT_S, "first command"
    else:
        last_ns, limit_s, kind = command.stamp_ns, CONTROLLER_TIMEOUT_S, "command"
    if now_ns() - last_ns > limit_s * 1e9:
        return f"its controller sent no {kind} for {limit_s:g} s"
    return ""


class _Driver:
    """State of the driver loop."""

    def __init__(self, link: Link, robot: RobotSim) -> None:
        self.link = link
        self.robot = robot
        self.cameras = link.cameras(robot.observation_spec)
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
        began, command = now_ns(), None
        while True:
            command = latest(self.link.commands, command)
            if gone := orphaned(self.link, command, began):
                self.link.introduce("robot", {"fault": gone})
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
        """Start an episode. The command's values are the neutral action; empty if holding repeats the last action.

        One of a dry run begins where the robot stands; a simulated one stands nowhere before its reset.
        """
        if command.mode == Mode.ACTIVE or isinstance(self.robot, IsSimulated):
            self.robot.reset(command.state_id)
        self.neutral = command.values if len(command.values) else None
        self.episode, self.state_id = command.episode, command.state_id
        self.steps, self.taken = 0, -1
        self.holding = False
        self.hold()
        self.start_ns = now_ns()

    def take(self, command: Message) -> None:
        """Execute a new command, once."""
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
        """Command the neutral action, once until the next action; without one, the last action stays active."""
        if not self.holding and self.neutral is not None:
            self.robot.command(self.neutral)
        self.holding = True

    def advance(self) -> None:
        """Advance simulated time to the wall clock, by at least one step."""
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
        """All observations as one flat array in the spec's order, and the time of their measurement."""
        found = self.robot.observe()
        obs, stamp_ns = found if isinstance(found, TimedObservation) else (found, now_ns())
        for key, camera in self.cameras.items():
            if key in obs:
                camera.write(obs[key], stamp_ns, self.episode)
        numbers = [np.ravel(self.measured(obs, key)) for key in self.robot.observation_spec if key not in self.cameras]
        return np.concatenate([np.zeros(0, np.float32), *numbers]).astype(np.float32), stamp_ns

    def measured(self, obs: dict[str, np.ndarray], key: str) -> np.ndarray:
        """An observation of numbers.

        Raises:
            ConfigError: it is missing, or has another shape than its spec, so that others would be read in its place.
        """
        wanted = self.robot.observation_spec[key].shape
        if key not in obs:
            raise ConfigError(
                f"the robot's observe lacks {key!r}: expected it of shape {wanted}; it gave {', '.join(obs)}"
            )
        if np.shape(obs[key]) != wanted:
            raise ConfigError(f"the robot's observe gave {key!r} of shape {np.shape(obs[key])}: expected {wanted}")
        return obs[key]

    def publish(self, status: Status, values: np.ndarray, stamp_ns: int | None = None) -> None:
        """Publish an observation that was measured at `stamp_ns`, or now."""
        state = episode_state(self.robot) if status == Status.READY else EpisodeState.RUNNING
        self.link.observations.write(
            message(
                status,
                tick=self.steps,
                episode=self.episode,
                state_id=self.state_id,
                mode=int(state),
                reason=self.made_up,
                echo=self.taken,
                lost_ns=self.lost_ns,
                values=values,
                stamp_ns=stamp_ns,
            )
        )


def fault(link: Link, error: RobotrlError) -> int:
    """Report a fault to the controller; returns the exit code."""
    link.introduce("robot", {"fault": str(error)})
    return FAULT
