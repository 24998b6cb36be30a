"""The robot's process in the controller: start, introduction, supervision and reliable termination."""

from __future__ import annotations

import time
from types import TracebackType

import numpy as np

from robotrl.deploy.bundle.match import RobotInfo
from robotrl.deploy.child import end_of, start_child, wait_or_kill
from robotrl.deploy.robots.link import Link, RobotCommand, RobotFault, message
from robotrl.errors import ConfigError, short
from robotrl.registry import ROBOTS

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 2.0
_POLL_S = 0.002


def driver_of(robot: str) -> tuple[str, str]:
    """Driver of a robot, "module:function", and the robot's argument.

    Raises:
        ConfigError: there is no such driver, or the argument is missing.
    """
    name, _, argument = robot.partition(":")
    driver = ROBOTS.rows()[ROBOTS.check(name)]
    if not argument or "\0" in argument:
        raise ConfigError(f"robot {short(repr(robot))} names no robot of this kind: expected {name}:ARGUMENT")
    return driver, argument


class RobotProcess:
    """A running driver process with the controller's end of the link. Use it as a context manager.

    Args:
        robot: "NAME:ARGUMENT", e.g. "sim:mujoco/peg-insert".
        link: the controller's end of the link, which it closes at its end.

    Raises:
        ConfigError: there is no such driver.
    """

    def __init__(self, robot: str, link: Link) -> None:
        driver, argument = driver_of(robot)
        self.robot = robot
        self.link = link
        self._process = start_child("robotrl.deploy.robots", (driver, link.name, argument), (link.handle,))

    def __enter__(self) -> RobotProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def introduction(self) -> RobotInfo:
        """Wait for the robot's introduction.

        Raises:
            RobotFault: it ended, reported a fault, or sent nothing for `START_TIMEOUT_S`.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            data = self.link.introduction("robot")
            if data is not None:
                return RobotInfo.from_json(data)
            self.check("while starting")
            time.sleep(_POLL_S)
        raise RobotFault(f"robot {self.robot!r} said nothing for {START_TIMEOUT_S:g} s after its start")

    def check(self, when: str) -> None:
        """Check that the process is still running.

        Raises:
            RobotFault: it has ended; the message says how and when.
        """
        ended = end_of(self._process)
        if not ended:
            return
        said = self.link.introduction("robot")
        if said is not None and "fault" in said:
            raise RobotFault(f"robot {self.robot!r} {when}: {said['fault']}")
        raise RobotFault(f"robot {self.robot!r} {ended} {when}")

    def close(self) -> None:
        """Stop the robot; kill the process if it does not end in time. Safe to call twice."""
        if self.link.handle < 0:
            return
        if self._process.poll() is None:
            nothing = np.zeros(0, np.float32)
            self.link.commands.write(message(RobotCommand.STOP, tick=0, episode=0, state_id=-1, values=nothing))
            wait_or_kill(self._process, STOP_TIMEOUT_S)
        self.link.close()
