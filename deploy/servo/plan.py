"""Times of a chunk's actions: which one belongs to a control tick, and when the next chunk must be asked for.

Where an inference takes less than half a control period, the chunk is asked for at the tick that needs it, and the tick
waits for it. Where it takes longer, the chunk is asked for `lead` ticks ahead, while the rest of the last chunk is
executed. A plain policy's chunk begins at the tick of its observation: its first `lead` actions belong to the past when
it starts, and are not executed. A policy that is given those `lead` actions as committed (real-time chunking in
training) gives the ones that follow them: none of its chunk is left out. A chunk that is guided by the last one begins
at its observation, too; since two chunks overlap, it is always asked for ahead.
"""

from __future__ import annotations

import collections
import math
from typing import NamedTuple

import numpy as np

_REMEMBERED = 64
_PART = 0.5
"""Part of a control period up to which an inference is waited for."""


class Chunk(NamedTuple):
    """A chunk under execution."""

    actions: np.ndarray
    """(H, A) float32, in the bundle's order."""
    decision: int
    stamp_ns: int
    """Time of the observation that it was inferred from."""
    zero_tick: int
    """Control tick of its first action."""
    delay: int = 0
    """Control ticks from the observation to the first action: the committed actions that the policy was given."""


class ChunkPlan:
    """The chunk under execution.

    Args:
        length: actions in a chunk (H).
        execute: number of them to execute before the next chunk takes over; of overlapping chunks before it is asked
            for.
        overlaps: chunks overlap: what one plans guides the next.

    Attributes:
        chunk: the chunk; None at the start and after a bad tick.
        expired: chunks that ended before they were executed, because ticks were missed.
    """

    def __init__(self, length: int, execute: int, overlaps: bool = False) -> None:
        self.length = length
        self.execute = execute
        self.overlaps = overlaps
        self.chunk: Chunk | None = None
        self.expired = 0

    def drop(self) -> None:
        """Give up the chunk: it is outdated."""
        self.chunk = None

    def start(self, chunk: Chunk) -> None:
        """Execute a new chunk from now on."""
        self.chunk = chunk

    def index(self, tick: int) -> int | None:
        """Index of a tick's action in the chunk; None where there is none.

        A policy that executes fewer actions than it infers goes on with the chunk until the next one is there.
        """
        if self.chunk is None:
            return None
        index = tick - self.chunk.zero_tick
        return index if 0 <= index < self.length else None

    def wants(self, tick: int, lead: int) -> bool:
        """Tell whether the next chunk is to be asked for at this tick."""
        if self.chunk is None:
            return True
        return tick - self.chunk.zero_tick >= self._asked_at(lead)

    def due(self, tick: int, lead: int, delay: int) -> int:
        """Control tick at which the next chunk will be asked for.

        Args:
            tick: control tick at which this one is asked for.
            lead: control ticks by which chunks are asked for ahead.
            delay: `Chunk.delay` of this one.
        """
        return tick + max(1, delay + self._asked_at(lead))

    def _asked_at(self, lead: int) -> int:
        """Index of the chunk's action at whose tick the next chunk is asked for."""
        return self.execute if self.overlaps else self.execute - lead

    def planned(self, tick: int, count: int) -> np.ndarray:
        """(n, A) actions of the chunk from `tick` on, at most `count`."""
        if self.chunk is None:
            return np.zeros((0, 0), np.float32)
        index = tick - self.chunk.zero_tick
        return self.chunk.actions[index : index + count]


class Latency:
    """Sliding estimate of the time from a request to its chunk.

    Args:
        first_s: duration of an inference before the first measurement.
    """

    def __init__(self, first_s: float) -> None:
        self._first_ns = first_s * 1e9
        self._measured: collections.deque[int] = collections.deque(maxlen=_REMEMBERED)

    def add(self, measured_ns: int) -> None:
        """Take a measurement."""
        self._measured.append(measured_ns)

    @property
    def p95_ns(self) -> float:
        """95th percentile of the last measurements; the first estimate while there are few."""
        if len(self._measured) < 4:
            return self._first_ns
        # the first call of numpy's percentile takes 20 ms, which no deadline of the servo has to spare
        ordered = sorted(self._measured)
        place = 0.95 * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def lead_ticks(latency_ns: float, period_ns: int, most: int) -> int:
    """Control ticks by which a chunk is asked for ahead of its need.

    Args:
        latency_ns: time from a request to its chunk.
        period_ns: the control period.
        most: the most that the policy allows.

    Returns:
        0 (the tick waits for it) to `most`.
    """
    if latency_ns <= _PART * period_ns:
        return 0
    return min(math.ceil(latency_ns / period_ns), most)
