"""The servo's process, as the supervisor sees it: start, orders, records, reliable end."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from robotrl.deploy.bundle import strict
from robotrl.deploy.child import end_of, start_child, start_program, wait_or_kill
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import RobotFault, message, now_ns
from robotrl.deploy.servo.link import Order, ServoLink
from robotrl.deploy.servo.ring import RingRecord
from robotrl.deploy.servo.settings import ServoCfg

START_TIMEOUT_S = 60.0
MODULE = "robotrl.deploy.servo"
"""The servo's module; the C++ program that takes its place bears the same name in lists of processes."""
_POLL_S = 0.005


def python_settings(cfg: ServoCfg) -> bytes:
    """The settings of the Python servo, as it reads them."""
    return strict.canonical(strict.to_json(cfg))


class ServoProcess:
    """A running servo. Use it as a context manager.

    Args:
        settings: its settings, from `python_settings`, or those of the C++ servo.
        link: the supervisor's end of the link.
        handles: open files that it inherits.
        leave_s: time in which a servo that is told to end must have damped the robot; it is killed after that.
        program: the C++ servo; None runs the Python one.
    """

    def __init__(
        self, settings: bytes, link: ServoLink, handles: tuple[int, ...], leave_s: float, program: Path | None = None
    ) -> None:
        self.link = link
        self._leave_s = leave_s
        self._orders = 0
        self._order: Message | None = None
        self._open = True
        if program is None:
            self._process = start_child(MODULE, (), handles, subprocess.PIPE)
        else:
            self._process = start_program(program, MODULE, handles, subprocess.PIPE)
        if (stdin := self._process.stdin) is not None:
            # a servo that has ended already says so by its exit code
            with contextlib.suppress(BrokenPipeError):
                stdin.write(settings)
                stdin.close()

    def __enter__(self) -> ServoProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def introduction(self) -> dict[str, Any]:
        """Wait until the servo is ready.

        Raises:
            RobotFault: it ended, or said nothing for `START_TIMEOUT_S`.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            data = self.link.introduction
            if data is not None:
                return data
            if ended := self.ended():
                raise RobotFault(f"the servo {ended} while starting")
            time.sleep(_POLL_S)
        raise RobotFault(f"the servo said nothing for {START_TIMEOUT_S:g} s after its start")

    def order(self, kind: Order, episode: int = 0, state_id: int = -1) -> None:
        """Give an order."""
        self._orders += 1
        nothing = np.zeros(0, np.float32)
        self._order = message(kind, tick=self._orders, episode=episode, state_id=state_id, values=nothing)
        self.link.orders.write(self._order)

    def beat(self) -> None:
        """Show that the supervisor lives: a servo without this sign stops the robot."""
        if self._order is not None:
            self.link.orders.write(self._order._replace(stamp_ns=now_ns()))

    def records(self) -> Generator[RingRecord, None, None]:
        """The records that were not read yet."""
        while (record := self.link.records.read()) is not None:
            yield record

    def ended(self) -> str:
        """End of the process in words; "" while it runs."""
        return end_of(self._process)

    def leave(self) -> None:
        """Have the robot damped and the servo ended; kill the process if it does not end in time."""
        if self._process.poll() is None:
            self.order(Order.STOP)
            wait_or_kill(self._process, self._leave_s)

    def close(self) -> None:
        """End the servo. Safe to call twice."""
        if self._open:
            self._open = False
            self.leave()
            self.link.close()
