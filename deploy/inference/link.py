"""Link between the servo and the process that infers: requests, chunks, and the reason of a failure.

Each request is announced by one byte in a pipe, so that the process that infers sleeps between requests. The servo
never waits: it writes a request, and looks for the answer at its own deadlines.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from robotrl.deploy.robots.channel import Channel, channel_bytes
from robotrl.deploy.robots.link import MAX_OBSERVATION
from robotrl.deploy.shared_memory import BLOCK_HEADER_BYTES, SharedBlock, SharedText

MAGIC = b"rrlinfer"
MAX_CHUNK = 65536
MAX_REQUEST = MAX_OBSERVATION + 2 * MAX_CHUNK
TEXT_BYTES = 1 << 14
FAILURE_AT = BLOCK_HEADER_BYTES + TEXT_BYTES
REQUEST_AT = BLOCK_HEADER_BYTES + 2 * TEXT_BYTES
ANSWER_AT = REQUEST_AT + channel_bytes(MAX_REQUEST)
LINK_BYTES = ANSWER_AT + channel_bytes(MAX_CHUNK)


class AnswerKind(IntEnum):
    """Result of a request."""

    CHUNK = 1
    """`values` are the chunk (H, A), flat."""
    REFUSED = 2
    """The observation holds an invalid image or instruction."""
    FAILED = 3
    """The graph cannot be computed for it."""


class InferenceLink:
    """One end of the link.

    A request (see `Message`) holds in `values` the observations in the bundle's order, and after them the inputs of
    role "prefix" and "prefix_mask" where `mode` is 1; in `state_id` the index of the decision, in `tick` its serial
    number, in `lost_ns` the time at which the next request is due (0: unknown). An answer repeats `tick`, `state_id`
    and `stamp_ns`, and holds the duration of the inference in `lost_ns`.

    Attributes:
        requests: channel of the latest request.
        answers: channel of the latest answer.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        self._introduction = SharedText(
            block.memory, BLOCK_HEADER_BYTES, TEXT_BYTES, "introduction of the inference process"
        )
        self._failure = SharedText(block.memory, FAILURE_AT, TEXT_BYTES, "failure of the inference process")
        self.requests = Channel(block.memory, REQUEST_AT, MAX_REQUEST)
        self.answers = Channel(block.memory, ANSWER_AT, MAX_CHUNK)
        self.handle = block.handle
        self.name = block.name

    @classmethod
    def create(cls) -> InferenceLink:
        """Create the shared memory; the other processes must inherit `handle`."""
        return cls(SharedBlock.create(MAGIC, LINK_BYTES))

    @classmethod
    def attach(cls, name: str) -> InferenceLink:
        """Attach to "fd:N", the inherited file.

        Raises:
            DataError: the file is no such link.
        """
        return cls(SharedBlock.attach(name, MAGIC, LINK_BYTES))

    def introduce(self, data: dict[str, Any]) -> None:
        """Tell that the bundle is loaded, or why it cannot be."""
        self._introduction.write(data)

    @property
    def introduction(self) -> dict[str, Any] | None:
        """The process's introduction; None if there is none yet."""
        return self._introduction.read()

    def fail(self, why: str, failed: list[int]) -> None:
        """Tell why the request that is answered next failed.

        Args:
            why: the reason.
            failed: the last decisions that were not computed, this one at the end.
        """
        self._failure.write({"why": why[:4000], "failed": failed})

    @property
    def failure(self) -> str:
        """Reason of the last failure; "" if there was none."""
        data = self._failure.read()
        return "" if data is None else str(data["why"])

    @property
    def failed(self) -> list[int]:
        """The last decisions that were not computed; none if there was no failure."""
        data = self._failure.read()
        return [] if data is None else [int(number) for number in data["failed"]]

    def close(self) -> None:
        """Unmap and close this end."""
        self.requests = self.answers = Channel(memoryview(b""), 0, 0)
        self._block.close()
