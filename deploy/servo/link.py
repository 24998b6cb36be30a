"""Link between the supervisor and the servo: orders to the servo, its records, and its introduction."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from robotrl.deploy.robots.channel import Channel, channel_bytes
from robotrl.deploy.servo.ring import RecordRing, slot_bytes, slot_count
from robotrl.deploy.shared_memory import BLOCK_HEADER_BYTES, SharedBlock, SharedText

MAGIC = b"rrlservo"
TEXT_BYTES = 1 << 16
SUMMARY_AT = BLOCK_HEADER_BYTES + TEXT_BYTES
ORDER_AT = BLOCK_HEADER_BYTES + 2 * TEXT_BYTES
RING_AT = ORDER_AT + channel_bytes(0)


class Order(IntEnum):
    """Kind of an order to the servo."""

    EPISODE = 1
    """Run episode `episode` from `state_id`."""
    STOP = 2
    """Damp the robot, then end."""
    LEAVE = 3
    """End; between episodes."""


class RecordKind(IntEnum):
    """Kind of a record of the servo; the first number of each."""

    TICK = 1
    END = 2
    """An episode ended; the summary is up to date."""
    FAULT = 3
    """The run ended with the fault of the summary; the robot was damped."""
    STOPPED = 4
    """The robot was damped as ordered."""
    START = 5
    """A tick of the motion to the start pose."""


class ServoLink:
    """One end of the link.

    Attributes:
        orders: channel of the latest order.
        records: ring of the servo's records.
    """

    def __init__(self, block: SharedBlock, max_values: int) -> None:
        self._block = block
        self._introduction = SharedText(block.memory, BLOCK_HEADER_BYTES, TEXT_BYTES, "introduction of the servo")
        self._summary = SharedText(block.memory, SUMMARY_AT, TEXT_BYTES, "summary of the servo")
        self.orders = Channel(block.memory, ORDER_AT, 0)
        self.records = RecordRing(block.memory, RING_AT, max_values)
        self.supervisor_pid = block.creator_pid
        self.handle = block.handle
        self.name = block.name

    @classmethod
    def create(cls, max_values: int) -> ServoLink:
        """Create the shared memory for records of up to so many floats."""
        return cls(SharedBlock.create(MAGIC, link_bytes(max_values)), max_values)

    @classmethod
    def attach(cls, name: str, max_values: int) -> ServoLink:
        """Attach to "fd:N", the inherited file.

        Raises:
            DataError: the file is no such link.
        """
        return cls(SharedBlock.attach(name, MAGIC, link_bytes(max_values)), max_values)

    def introduce(self, data: dict[str, Any]) -> None:
        """Tell that the servo is ready."""
        self._introduction.write(data)

    @property
    def introduction(self) -> dict[str, Any] | None:
        """The servo's introduction; None if there is none yet."""
        return self._introduction.read()

    def summarize(self, data: dict[str, Any]) -> None:
        """Replace the summary of the run so far."""
        self._summary.write(data)

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of the run so far."""
        return self._summary.read() or {}

    def close(self) -> None:
        """Unmap and close this end."""
        self.orders = Channel(memoryview(b""), 0, 0)
        self.records = RecordRing(memoryview(b""), 0, 0)
        self._block.close()


def link_bytes(max_values: int) -> int:
    """Size of the link for records of up to so many floats."""
    return RING_AT + slot_count(max_values) * slot_bytes(max_values)
