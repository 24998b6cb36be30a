"""Link between a controller and a robot's process: anonymous shared memory.

The controller creates it and passes it to the robot's process as an open file. It contains two introductions (JSON,
written once) and two channels (the latest command, the latest observation). Both sides stamp their messages with the
monotonic clock; a side that stops sending counts as dead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from robotrl.deploy.robots.cameras import AREA_BYTES, CameraSlots, cameras_of
from robotrl.deploy.robots.channel import Channel, Message, channel_bytes
from robotrl.deploy.shared_memory import BLOCK_HEADER_BYTES, SharedBlock, SharedText
from robotrl.errors import RobotrlError
from robotrl.spec import Spec

MAGIC = b"robotrl1"
MAX_OBSERVATION = 65536
MAX_ACTION = 1024
_INTRODUCTION_BYTES = 1 << 17


class RobotFault(RobotrlError):
    """The robot's process died, stopped answering or reported a fault, or too many ticks in a row were bad."""


class RobotCommand(IntEnum):
    """Kind of a command from the controller."""

    ACT = 1
    """Execute the action `values` according to `mode`."""
    RESET = 2
    """Start episode `episode` from `state_id`; hold until the first ACT. With mode HOLD the episode begins where the
    robot stands: it is not moved."""
    STOP = 3
    """End the process."""


class Status(IntEnum):
    """Kind of a message from the robot."""

    READY = 1
    """`values` is the observation of inner step `tick` of `episode`."""
    LEFT = 2
    """The process ends as commanded."""


class EpisodeState(IntEnum):
    """State of an episode, the `mode` of an observation."""

    RUNNING = 0
    SOLVED = 1
    """The task is done."""
    OVER = 2
    """It ended without success; the robot stays as it is until the next reset."""


_OFFSETS = {"controller": BLOCK_HEADER_BYTES, "robot": BLOCK_HEADER_BYTES + _INTRODUCTION_BYTES}
COMMAND_AT = BLOCK_HEADER_BYTES + 2 * _INTRODUCTION_BYTES
OBSERVATION_AT = COMMAND_AT + channel_bytes(MAX_ACTION)
CAMERAS_AT = OBSERVATION_AT + channel_bytes(MAX_OBSERVATION)
LINK_BYTES = CAMERAS_AT + AREA_BYTES
"""Pages of the memory are taken when they are first written: a robot without cameras takes none of their area."""


class Link:
    """One end of the link. Create it with `create` (controller) or `attach` (robot, servo).

    Attributes:
        commands: channel of the latest command.
        observations: channel of the latest observation.
        controller_pid: id of the process that created the link.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        self._texts = {
            side: SharedText(block.memory, at, _INTRODUCTION_BYTES, f"introduction of the {side}")
            for side, at in _OFFSETS.items()
        }
        self.commands = Channel(block.memory, COMMAND_AT, MAX_ACTION)
        self.observations = Channel(block.memory, OBSERVATION_AT, MAX_OBSERVATION)
        self.controller_pid = block.creator_pid
        self.handle = block.handle

    @classmethod
    def create(cls) -> Link:
        """Create the shared memory; the robot's process must inherit `handle`."""
        return cls(SharedBlock.create(MAGIC, LINK_BYTES))

    @classmethod
    def attach(cls, name: str) -> Link:
        """Attach the robot's end.

        Args:
            name: "fd:N", the inherited file.

        Raises:
            DataError: the file is no link.
        """
        return cls(SharedBlock.attach(name, MAGIC, LINK_BYTES))

    def cameras(self, specs: Mapping[str, Spec]) -> dict[str, CameraSlots]:
        """The robot's cameras, by the keys of its observations.

        Args:
            specs: the robot's observations, in its order.

        Raises:
            ConfigError: their frames do not fit.
        """
        return cameras_of(specs, self._block.memory, CAMERAS_AT)

    @property
    def name(self) -> str:
        """Name for `attach` in the robot's process."""
        return self._block.name

    def introduce(self, side: str, data: dict[str, Any]) -> None:
        """Write the introduction of "controller" or "robot"; a fault later replaces it."""
        self._texts[side].write(data)

    def introduction(self, side: str) -> dict[str, Any] | None:
        """Read the introduction of a side; None if there is none yet (or it is being written)."""
        return self._texts[side].read()

    def close(self) -> None:
        """Unmap and close this end. Safe to call twice."""
        if self.handle < 0:
            return
        self.handle = -1
        self.commands = self.observations = Channel(memoryview(b""), 0, 0)
        self._block.close()


def now_ns() -> int:
    """Time of the monotonic clock, which all processes of this machine share."""
    return time.monotonic_ns()


def message(
    kind: IntEnum,
    *,
    tick: int,
    episode: int,
    state_id: int,
    values: np.ndarray,
    mode: int = 0,
    reason: int = 0,
    echo: int = 0,
    lost_ns: int = 0,
    stamp_ns: int | None = None,
) -> Message:
    """Create a message, stamped with the time of a measurement or the current time."""
    stamp = time.monotonic_ns() if stamp_ns is None else stamp_ns
    return Message(stamp, tick, episode, state_id, int(kind), mode, reason, echo, lost_ns, values)
