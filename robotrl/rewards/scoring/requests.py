"""Requests from their submission to their answer: free slots, batches, time limits.

Nothing here knows of processes or threads; the owner holds a lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.slots import PictureSlots


@dataclass(eq=False, slots=True)
class ScoreRequest:
    """A picture that waits for its score."""

    slot: int
    """Slot of its picture, which nobody overwrites while the request is open."""
    submitted_s: float
    key: bytes | None
    """Hash of the picture; None where answers are not kept."""
    tickets: dict[int, float]
    """Tickets that want the answer, with the times when they were submitted: several if the same picture was submitted
    again before the answer came, none if they were forgotten."""
    deaths: int = 0
    """Workers that ended while they scored it."""


class RequestTable:
    """Open requests and their slots.

    A request is open from `add` until `close`, which frees its slot. The slot may then hold another ticket while a
    worker still scores the picture of before, or reads the new one in its place: its answer belongs to the request that
    it was given, which is closed.

    Args:
        slots: memory of the pictures.
        cfg: settings.
    """

    def __init__(self, slots: PictureSlots, cfg: ServiceCfg) -> None:
        self._slots, self._cfg = slots, cfg
        self._free = list(range(slots.shape.slots))
        self._open = OrderedDict[int, ScoreRequest]()
        """By slot, the oldest first."""
        self._waiting = OrderedDict[int, ScoreRequest]()
        """Those of the open ones that no worker has, the oldest first."""
        self._alone = deque[ScoreRequest]()
        """Requests during which a worker ended: each is scored in a batch of its own."""
        self._by_ticket = dict[int, ScoreRequest]()
        self._by_key = dict[bytes, ScoreRequest]()
        self.paid = 0
        """Pictures that were given to a worker."""

    @property
    def waiting(self) -> int:
        """Number of requests that no worker has."""
        return len(self._waiting) + len(self._alone)

    @property
    def pending(self) -> int:
        """Number of tickets that want an answer."""
        return len(self._by_ticket)

    @property
    def affordable(self) -> bool:
        """True if the budget has room for one more request."""
        limit = self._cfg.max_requests
        return limit is None or self.paid + self.waiting < limit

    @property
    def room(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def full(self) -> bool:
        """True if no slot is free."""
        return not self._free

    def __contains__(self, ticket: int) -> bool:
        """True if the ticket wants an answer."""
        return ticket in self._by_ticket

    def add(self, ticket: int, picture: NDArray[np.uint8], key: bytes | None, now_s: float) -> None:
        """Open a request; there must be a free slot."""
        slot = self._free.pop()
        self._slots.pictures[slot] = picture
        request = ScoreRequest(slot, now_s, key, {ticket: now_s})
        self._open[slot] = self._waiting[slot] = self._by_ticket[ticket] = request
        if key is not None:
            self._by_key[key] = request

    def join(self, ticket: int, key: bytes, now_s: float) -> bool:
        """Let a ticket wait for the answer of an open request of the same picture; False if there is none."""
        request = self._by_key.get(key)
        if request is None:
            return False
        request.tickets[ticket] = now_s
        self._by_ticket[ticket] = request
        return True

    def is_due(self, now_s: float) -> bool:
        """True if a batch should be scored now: it is full, or its oldest request has waited long enough."""
        if self._alone or len(self._waiting) >= self._cfg.batch_size:
            return True
        return bool(self._waiting) and now_s >= self._flush_s()

    def _flush_s(self) -> float:
        """Time when the oldest waiting request has waited long enough."""
        return next(iter(self._waiting.values())).submitted_s + self._cfg.flush_after_s

    def next_batch(self, now_s: float) -> list[ScoreRequest]:
        """Take the requests that should be scored now; empty if it is too early."""
        if not self.is_due(now_s):
            return []
        if self._alone:
            batch = [self._alone.popleft()]
        else:
            count = min(self._cfg.batch_size, len(self._waiting))
            batch = [self._waiting.popitem(last=False)[1] for _ in range(count)]
        self.paid += len(batch)
        return batch

    def deadline_s(self, idle: bool) -> float:
        """Time of the next event that comes by itself; infinite if there is none.

        Args:
            idle: whether a worker is free, so that a batch can be flushed.
        """
        times = [next(iter(self._open.values())).submitted_s + self._cfg.timeout_s] if self._open else []
        if idle and self._alone:
            times.append(0.0)
        if idle and self._waiting:
            times.append(self._flush_s())
        return min(times, default=float("inf"))

    def is_open(self, request: ScoreRequest) -> bool:
        """True until the request is closed."""
        return self._open.get(request.slot) is request

    def close(self, request: ScoreRequest) -> None:
        """Close an open request and free its slot."""
        del self._open[request.slot]
        if self._waiting.pop(request.slot, None) is None and request in self._alone:
            self._alone.remove(request)
        for ticket in request.tickets:
            del self._by_ticket[ticket]
        if request.key is not None:
            del self._by_key[request.key]
        self._free.append(request.slot)

    def retry(self, request: ScoreRequest) -> bool:
        """Let a request wait again, for a batch of its own; False if the budget has no room for it."""
        if not self.affordable:
            return False
        self._alone.append(request)
        return True

    def give_back(self, batch: list[ScoreRequest]) -> None:
        """Let the requests of a batch that no worker has received wait again."""
        self.paid -= len(batch)
        for request in reversed(batch):
            if not self.is_open(request):
                continue
            if request.deaths:
                self._alone.appendleft(request)
            else:
                self._waiting[request.slot] = request
                self._waiting.move_to_end(request.slot, last=False)

    def expire(self, now_s: float) -> list[ScoreRequest]:
        """Close the requests that have been open for too long, and return them."""
        late = list[ScoreRequest]()
        while self._open:
            oldest = next(iter(self._open.values()))
            if now_s < oldest.submitted_s + self._cfg.timeout_s:
                break
            late.append(oldest)
            self.close(oldest)
        return late

    def all_open(self) -> list[ScoreRequest]:
        """The open requests, the oldest first."""
        return list(self._open.values())

    def drop_all(self) -> None:
        """Close all requests."""
        for request in self.all_open():
            self.close(request)

    def forget(self, tickets: Iterable[int]) -> None:
        """Drop tickets, and those requests that nobody wants and no worker has."""
        for ticket in tickets:
            request = self._by_ticket.pop(ticket, None)
            if request is None:
                continue
            del request.tickets[ticket]
            if not request.tickets and (request.slot in self._waiting or request in self._alone):
                self.close(request)
