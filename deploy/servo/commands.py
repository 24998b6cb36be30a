"""Commands of the servo to the robot: new ones at control ticks, repeated or interpolated between them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, Wiring
from robotrl.deploy.control.safety import NONE, Mode, Reason
from robotrl.deploy.robots.link import Link, RobotCommand, message
from robotrl.deploy.servo.clock import MONOTONIC, Clock

_SETTLE_NS = 100_000_000
"""Time for the robot to receive the last command."""
_SETTLE_SLEEP_NS = 1_000_000


Commands = Literal["hold", "linear", "mean"]
"""Commands between two control ticks: the action again; on a straight line from the one before; or once, the mean of
that line, for a robot that executes one command a control period, such as most simulations."""


def commands_of(manifest: Manifest, info: RobotInfo, steps: int) -> Commands:
    """Commands between two control ticks of a bundle on a robot.

    Args:
        manifest: the bundle's manifest.
        info: the robot's description.
        steps: servo ticks in a control period; with one, the action is all that is sent.
    """
    if manifest.timing.interpolation == "hold":
        return "hold"
    if round(info.control_dt_s / info.inner_dt_s) == 1:
        return "mean"
    return "linear" if steps > 1 else "hold"


class Commander:
    """The only writer of the robot's commands while the servo runs.

    Args:
        robot: the robot's link.
        wiring: index maps and limits of bundle and robot.
        steps: servo ticks in a control period.
        kind: commands between two control ticks.
        dry_run: tell the robot to hold, whatever is sent.
        clock: the servo's time.
    """

    def __init__(
        self, robot: Link, wiring: Wiring, steps: int, kind: Commands, dry_run: bool, clock: Clock = MONOTONIC
    ) -> None:
        self._clock = clock
        self._robot = robot
        self._wiring = wiring
        self._steps = steps
        self._kind = kind
        self._dry_run = dry_run
        self._episode, self._state_id = 0, -1
        self._sent = 0
        """Number of the last command."""
        self._mode, self._reason = Mode.HOLD, NONE
        self._action = self._before = wiring.limits.neutral

    def begin(self, episode: int, state_id: int) -> None:
        """Begin an episode, from the neutral action."""
        self._episode, self._state_id = episode, state_id
        self._mode, self._reason = Mode.HOLD, NONE
        self._action = self._before = self._wiring.limits.neutral

    def reset(self) -> None:
        """Have the robot start the episode."""
        limits = self._wiring.limits
        sends = limits.hold == "neutral" and not self._dry_run
        self._robot.commands.write(
            message(
                RobotCommand.RESET,
                tick=0,
                episode=self._episode,
                state_id=self._state_id,
                mode=int(Mode.HOLD if self._dry_run else Mode.ACTIVE),
                values=limits.neutral[self._wiring.action] if sends else np.zeros(0, np.float32),
                stamp_ns=self._clock.now_ns(),
            )
        )

    def send(self, mode: Mode, reason: Reason, action: np.ndarray, before: np.ndarray) -> None:
        """Send the command of a control tick, or the first part of the way to it.

        Args:
            mode: the safety chain's mode.
            reason: its reasons.
            action: (A,) in the bundle's order.
            before: (A,) action from which a robot that interpolates goes on.
        """
        self._before = before
        self._mode, self._reason, self._action = mode, reason, action
        self._sent += 1
        self._write(mode, self._on_the_way(0))

    def repeat(self, step: int) -> None:
        """Send the command of a servo tick between control ticks; `step` counts servo ticks.

        A repeated command keeps its number, so that the robot executes it once.
        """
        self._sent += self._kind == "linear" and self._mode == Mode.ACTIVE
        self._write(self._mode, self._on_the_way(step % self._steps))

    def hold(self) -> None:
        """Hold the robot between two episodes."""
        limits = self._wiring.limits
        self.send(Mode.HOLD, NONE, self._action if limits.hold == "last" else limits.neutral, self._action)

    def damp(self) -> None:
        """Damp the robot for good, and wait until it has been told."""
        self.send(Mode.DAMP, Reason.STOPPED, self._wiring.limits.neutral, self._action)
        self.settle()

    def settle(self) -> None:
        """Wait until the robot has received the last command, with a time limit."""
        deadline = self._clock.now_ns() + _SETTLE_NS
        while (now := self._clock.now_ns()) < deadline:
            latest = self._robot.observations.read()
            if latest is not None and latest.echo == self._sent:
                return
            self._clock.sleep_until(now + _SETTLE_SLEEP_NS)

    def _on_the_way(self, part: int) -> np.ndarray:
        """Action of servo tick `part` of a control period: the last one, or on the way to it from the one before."""
        if self._kind == "hold" or self._mode != Mode.ACTIVE:
            return self._action
        way = 0.5 if self._kind == "mean" else (part + 1) / self._steps
        return self._before + np.float32(way) * (self._action - self._before)

    def _write(self, mode: Mode, action: np.ndarray) -> None:
        if self._dry_run:
            mode, action = Mode.HOLD, self._wiring.limits.neutral
        self._robot.commands.write(
            message(
                RobotCommand.ACT,
                tick=self._sent,
                episode=self._episode,
                state_id=self._state_id,
                mode=int(mode),
                reason=int(self._reason),
                values=action[self._wiring.action],
                stamp_ns=self._clock.now_ns(),
            )
        )
