"""Requests of the servo to the process that infers: at most one is under way, and none is waited for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.inference.link import InferenceLink
from robotrl.deploy.inference.request import committed_inputs, packed
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.servo.clock import MONOTONIC, Clock
from robotrl.deploy.servo.observing import OpenTick
from robotrl.deploy.servo.plan import Latency


@dataclass
class ChunkRequest:
    """A request under way."""

    serial: int
    decision: int
    tick: int
    """Control tick of its observation."""
    stamp_ns: int
    """Time of its observation."""
    asked_ns: int
    lead: int
    """Control ticks after which its chunk is to take over."""
    delay: int
    """`Chunk.delay` of its chunk."""
    executed: int = 0
    """Actions executed since."""
    abandoned: bool = False
    """Its chunk will not be used."""


def delay_of(manifest: Manifest, committed: int) -> int:
    """`Chunk.delay` of a chunk whose policy was given so many committed actions."""
    return committed if manifest.timing.rtc_mode == "trained" else 0


class Answered(NamedTuple):
    """An answer with its request."""

    answer: Message
    request: ChunkRequest


class Asker:
    """Asks for chunks, and looks for answers.

    Args:
        manifest: the bundle's manifest.
        link: link to the process that infers.
        doorbell: file into which a byte is written for each request.
        latency: estimate of the time from a request to its chunk, which the answers improve.
        clock: the servo's time.

    Attributes:
        request: the request under way; None for none.
        refused: reason of the last failed inference; "" for none.
        misfit: the last observation was not asked with, since an instruction in it is none.
        answer_ns: round trip of the answer that arrived since the last tick; 0 for none.
    """

    def __init__(
        self, manifest: Manifest, link: InferenceLink, doorbell: int, latency: Latency, clock: Clock = MONOTONIC
    ) -> None:
        self._clock = clock
        self._manifest = manifest
        self._link = link
        self._doorbell = doorbell
        self._latency = latency
        self._serial, self._decision = 0, -1
        self.request: ChunkRequest | None = None
        self.refused = ""
        self.misfit = False
        self.answer_ns = 0

    def ask(
        self, opened: OpenTick, obs: dict[str, np.ndarray], planned: np.ndarray, lead: int, episode: int, due_ns: int
    ) -> None:
        """Write a request for the observation of a tick; the tick notes its decision.

        Args:
            opened: the tick.
            obs: its observations of numbers.
            planned: (n, A) actions of the last chunk from the tick on; none for a policy that does not know them.
            lead: control ticks after which the chunk is to take over.
            episode: serial number of the episode.
            due_ns: time at which the next request is due; 0 if that is not to be prepared for.
        """
        self._serial += 1
        self._decision += 1
        prefix, committed = None, min(lead, len(planned))
        if committed:
            prefix = committed_inputs(self._manifest, planned, committed)
        opened.asked, opened.committed = self._decision, committed
        self.refused, self.misfit = "", False
        self.request = ChunkRequest(
            self._serial,
            self._decision,
            opened.tick,
            opened.stamp_ns,
            self._clock.now_ns(),
            lead,
            delay_of(self._manifest, committed),
        )
        self._link.requests.write(
            Message(
                stamp_ns=opened.stamp_ns,
                tick=self._serial,
                episode=episode,
                state_id=self._decision,
                kind=0,
                mode=int(prefix is not None),
                reason=0,
                echo=0,
                lost_ns=due_ns,
                values=packed(obs, self._manifest, prefix, [frame.number for frame in opened.frames]),
            )
        )
        try:
            os.write(self._doorbell, b"\0")
        except (BlockingIOError, BrokenPipeError):
            # it is frozen or dead: no answer will come, and the robot is held
            return

    def answered(self) -> Answered | None:
        """The answer to the request under way, which then is none any more; None if there is no answer yet."""
        request = self.request
        if request is None:
            return None
        answer = self._link.answers.read()
        if answer is None or answer.tick != request.serial:
            return None
        self.request = None
        self.answer_ns = self._clock.now_ns() - request.asked_ns
        self._latency.add(self.answer_ns)
        return Answered(answer, request)

    def note_failure(self) -> None:
        """Note the reason of the last failed inference in `refused`."""
        self.refused, self.misfit = self._link.failure, False

    def abandon(self) -> None:
        """Have the chunk of the request under way not used."""
        if self.request is not None:
            self.request.abandoned = True

    def forget(self) -> None:
        """Forget request and round trip: the run ends."""
        self.request, self.answer_ns = None, 0

    def take_round_trip(self) -> int:
        """Round trip of the answer since the last call, in nanoseconds."""
        found, self.answer_ns = self.answer_ns, 0
        return found
