"""Chunks in time: the one under execution, the next one that has arrived, and the request that is under way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.control.safety import SafetyLimits, in_time
from robotrl.deploy.inference.link import InferenceLink
from robotrl.deploy.servo.asking import Answered, Asker, delay_of
from robotrl.deploy.servo.clock import MONOTONIC, Clock
from robotrl.deploy.servo.observing import OpenTick
from robotrl.deploy.servo.plan import Chunk, ChunkPlan, Latency, lead_ticks
from robotrl.deploy.servo.settings import ServoCfg

_NO_ACTIONS = np.zeros((0, 0), np.float32)


class PlacedChunk(NamedTuple):
    """A chunk that a control tick waited for, placed in time."""

    chunk: Chunk
    action: np.ndarray
    """(A,) the waiting tick's action."""
    timely: bool
    """Its observation is not stale yet."""
    moves: bool
    """Nothing was executed since the request: the chunk begins at the tick that executes it."""


class ChunkSource:
    """Gives each control tick its action, and asks for the next chunk in time.

    Args:
        cfg: the servo's settings.
        manifest: the bundle's manifest.
        limits: the safety limits.
        link: link to the process that infers.
        clock: the servo's time.

    Attributes:
        plan: the chunk under execution.
        asker: asks for chunks.
    """

    def __init__(
        self, cfg: ServoCfg, manifest: Manifest, limits: SafetyLimits, link: InferenceLink, clock: Clock = MONOTONIC
    ) -> None:
        timing = manifest.timing
        self._manifest = manifest
        self._limits = limits
        self._clock = clock
        self._wake_early = cfg.wake_early
        self._period_s = timing.control_period_s
        self._period_ns = round(timing.control_period_s * 1e9)
        self._max_age_ns = round(limits.max_observation_age_s * 1e9)
        self._most_lead = timing.chunk_length - 1
        if timing.rtc_mode != "none":
            self._most_lead = min(self._most_lead, timing.rtc_max_delay_steps)
        self._least_lead = 1 if timing.rtc_mode == "guided" else 0
        self._latency = Latency(cfg.inference_s)
        self.asker = Asker(manifest, link, cfg.doorbell, self._latency, clock)
        self.plan = ChunkPlan(timing.chunk_length, timing.execute, timing.rtc_mode == "guided")
        self._next: tuple[Chunk, int] | None = None
        """A chunk that has arrived ahead of its time, and the control tick at which it takes over."""

    @property
    def lead(self) -> int:
        """Control ticks by which the next chunk is asked for ahead."""
        return max(self._least_lead, lead_ticks(self._latency.p95_ns, self._period_ns, self._most_lead))

    def take_over(self, tick: int) -> None:
        """Execute the next chunk from now on, if its time has come."""
        if self._next is not None and tick >= self._next[1]:
            self._start_next()

    def wants(self, tick: int, lead: int) -> bool:
        """Tell whether the next chunk is to be asked for at this tick."""
        return self.asker.request is None and self._next is None and self.plan.wants(tick, lead)

    def planned(self, tick: int) -> np.ndarray | None:
        """The chunk's action (A,) for a tick; None if there is none, or it is too late."""
        chunk, index = self.plan.chunk, self.plan.index(tick)
        if chunk is None or index is None:
            return None
        periods = chunk.delay + index
        if not in_time(self._limits, (self._clock.now_ns() - chunk.stamp_ns) * 1e-9, periods, self._period_s):
            self.plan.drop()
            self.plan.expired += 1
            return None
        return chunk.actions[index]

    def ahead_of_time(self, tick: int) -> np.ndarray | None:
        """The action (A,) of the next chunk, which takes over before its time; None without one."""
        if self._next is None:
            return None
        self._start_next()
        return self.planned(tick)

    def too_old(self, stamp_ns: int) -> bool:
        """True if an observation of this time is stale."""
        return self._clock.now_ns() - stamp_ns > self._max_age_ns

    def ask(self, opened: OpenTick, obs: dict[str, np.ndarray], lead: int, serial: int, start_ns: int) -> None:
        """Ask for the chunk of a tick's observation.

        Args:
            opened: the tick.
            obs: its observations of numbers, with those of the ticks before where the bundle has a history.
            lead: control ticks after which the chunk is to take over.
            serial: serial number of the episode.
            start_ns: time of its tick 0.
        """
        planned = _NO_ACTIONS
        if self._manifest.prefix and lead:
            planned = self.plan.planned(opened.tick, self._manifest.timing.rtc_max_delay_steps)
        due_tick = self.plan.due(opened.tick, lead, delay_of(self._manifest, min(lead, len(planned))))
        due = start_ns + due_tick * self._period_ns if self._wake_early else 0
        self.asker.ask(opened, obs, planned, lead, serial, due)

    def keep(self, found: Answered, tick: int) -> None:
        """Place a chunk that no tick waits for.

        Args:
            found: the chunk, with its request.
            tick: the last control tick.
        """
        chunk = self._chunk(found)
        takeover = found.request.tick + found.request.lead
        if tick < takeover:
            self._next = (chunk, takeover)
        else:
            self.plan.start(chunk)

    def place(self, found: Answered, waiting: OpenTick) -> PlacedChunk:
        """Execute a chunk from the tick on that waits for it."""
        request, chunk = found.request, self._chunk(found)
        # where nothing was executed since the request, the chunk begins now, however long it took
        index = min(max(0, waiting.tick - chunk.zero_tick), self.plan.length - 1) if request.executed else 0
        chunk = chunk._replace(zero_tick=waiting.tick - index)
        self.plan.start(chunk)
        periods = request.delay + index
        timely = in_time(self._limits, (self._clock.now_ns() - request.stamp_ns) * 1e-9, periods, self._period_s)
        return PlacedChunk(chunk, chunk.actions[index], timely, not request.executed)

    def move(self, executed: PlacedChunk, tick: int) -> None:
        """Have a chunk that a tick waited for begin at `tick`, unless it was given up, or others were executed."""
        if self.plan.chunk is not None and executed.moves:
            self.plan.start(executed.chunk._replace(zero_tick=tick))

    def outdate(self) -> None:
        """Give up chunk and request: they are of a time before a bad tick."""
        self.plan.drop()
        self._next = None
        self.asker.abandon()

    def _start_next(self) -> None:
        if self._next is not None:
            self.plan.start(self._next[0])
            self._next = None

    def _chunk(self, found: Answered) -> Chunk:
        """The chunk of an answer, which begins after the actions that it was told are committed."""
        request = found.request
        actions = found.answer.values.reshape(self.plan.length, -1)
        return Chunk(actions, request.decision, request.stamp_ns, request.tick + request.delay, request.delay)
