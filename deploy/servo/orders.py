"""Orders of the supervisor to the servo, and the ends of a run that follow from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from robotrl.deploy.robots.channel import Message
from robotrl.deploy.servo.clock import MONOTONIC, Clock
from robotrl.deploy.servo.commands import Commander
from robotrl.deploy.servo.link import Order, RecordKind, ServoLink
from robotrl.deploy.servo.settings import IDLE_TIMEOUT_S, SUPERVISOR_TIMEOUT_S

NO_FAULT: Mapping[str, Any] = MappingProxyType({})


class RunEnded(Exception):
    """The run ends: with a fault, or as ordered.

    Args:
        kind: kind of its last record; None where nobody is left to read one.
        fault: facts of the fault, see `fault_words`.
    """

    def __init__(self, kind: RecordKind | None, fault: Mapping[str, Any] = NO_FAULT) -> None:
        self.kind = kind
        self.fault = fault


class Orders:
    """Reads the orders, and ends the run where nobody could give one any more.

    Args:
        link: link to the supervisor.
        commander: writer of the robot's commands.
        clock: the servo's time.
        parent: gives the id of this process's parent, which is the supervisor as long as that lives.

    Attributes:
        begun: an episode was ordered: the robot may move.
        in_episode: one is running.
    """

    def __init__(
        self, link: ServoLink, commander: Commander, clock: Clock = MONOTONIC, parent: Callable[[], int] = os.getppid
    ) -> None:
        self._link = link
        self._commander = commander
        self._clock = clock
        self._parent = parent
        self._done = 0
        self.begun = False
        self.in_episode = False

    def next(self) -> Message | None:
        """The next order; None for none.

        Raises:
            RunEnded: the supervisor is gone, or hangs.
        """
        if self._parent() != self._link.supervisor_pid:
            if self.begun:
                self._commander.damp()
            raise RunEnded(None)
        order = self._link.orders.read()
        if order is None:
            return None
        if order.tick == self._done:
            self._check_silence(self._clock.now_ns() - order.stamp_ns)
            return None
        self._done = order.tick
        self.begun = self.begun or order.kind == Order.EPISODE
        return order

    def _check_silence(self, silent_ns: int) -> None:
        """End the run if the supervisor hangs, since nobody could stop it any more.

        Raises:
            RunEnded: it does.
        """
        limit_s = SUPERVISOR_TIMEOUT_S if self.in_episode else IDLE_TIMEOUT_S
        if silent_ns > limit_s * 1e9:
            self._commander.damp()
            raise RunEnded(RecordKind.FAULT, {"kind": "silent", "limit_ns": round(limit_s * 1e9)})
