"""Bookkeeping of an endpoint: each request from its submission to the answer that the trainer collects.

Nothing here knows of threads or HTTP; the owner holds a lock.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.counters import EndpointCounters
from robotrl.rewards.scoring.answer_files import AnswerFiles
from robotrl.rewards.scoring.cache import AnswerCache
from robotrl.rewards.scoring.ledger import Answers, ReadyAnswers

CACHED = 65536
"""Answers kept in memory."""


@dataclass(eq=False, slots=True)
class ChatRequest:
    """A request that waits for its answer."""

    key: bytes
    prompt: str
    shown: NDArray[np.uint8] | None
    """Picture (h, w, 3) or clip (T, h, w, 3)."""
    deadline_s: float
    tickets: dict[int, float]
    """Tickets that want the answer, with the times when they were submitted."""


class ChatLedger:
    """Open requests, known answers and counts.

    A request is open from `add` until its answer or time limit; an answer that comes later is stored, and given to
    nobody.

    Args:
        cfg: settings.
        files: stored answers.
    """

    def __init__(self, cfg: EndpointCfg, files: AnswerFiles | None) -> None:
        self.counters = EndpointCounters()
        self.notices = list[str]()
        """Warnings for the trainer."""
        self._cfg, self._files = cfg, files
        self._cache = AnswerCache(CACHED)
        self._waiting = deque[ChatRequest]()
        # in the order of their deadlines: all have the same time limit
        self._open = OrderedDict[bytes, ChatRequest]()
        self._by_ticket = dict[int, ChatRequest]()
        self._ready: ReadyAnswers = {}

    @property
    def pending(self) -> int:
        """Tickets without an answer yet."""
        return len(self._by_ticket)

    @property
    def waiting(self) -> int:
        """Requests that no thread has taken."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """Number of requests that can be added."""
        return max(0, self._cfg.queue_size - len(self._open))

    def known(self, ticket: int) -> bool:
        """True if a ticket is open or its answer is to be collected."""
        return ticket in self._by_ticket or ticket in self._ready

    def tickets(self) -> list[int]:
        """Tickets that are open, or whose answers are to be collected."""
        return [*self._by_ticket, *self._ready]

    def hit(self, ticket: int, key: bytes, now_s: float) -> bool:
        """Answer a ticket from what is known or on its way; False if it has to be asked for."""
        outputs = self._cache.get(key)
        if outputs is None and self._files is not None:
            outputs = self._files.get(key)
        if outputs is not None:
            self._ready[ticket] = (outputs, 0.0)
            self.counters.valid += 1
            return True
        request = self._open.get(key)
        if request is None:
            return False
        request.tickets[ticket] = now_s
        self._by_ticket[ticket] = request
        return True

    def add(self, ticket: int, key: bytes, prompt: str, shown: NDArray[np.uint8] | None, now_s: float) -> None:
        """Open a request."""
        request = ChatRequest(key, prompt, shown, now_s + self._cfg.timeout_s, {ticket: now_s})
        self._open[key] = request
        self._by_ticket[ticket] = request
        self._waiting.append(request)

    def next(self) -> ChatRequest | None:
        """Take the oldest waiting request."""
        return self._waiting.popleft() if self._waiting else None

    def is_open(self, request: ChatRequest) -> bool:
        """True until a request is closed."""
        return self._open.get(request.key) is request

    def answer(self, request: ChatRequest, outputs: NDArray[np.float32]) -> None:
        """Take the numbers (K,) of an answer, in time or not: they were paid for."""
        self._cache.put(request.key, outputs)
        if self._files is not None:
            try:
                self._files.put([request.key], outputs[None])
            except OSError as error:
                self.notices.append(f"answers are no longer stored in {self._files.folder}: {error.strerror}")
                self._files = None
        if self.is_open(request):
            now_s = time.monotonic()
            self.counters.latencies_s.append(now_s - min(request.tickets.values(), default=now_s))
            self.counters.valid += len(request.tickets)
            self._close(request, outputs, now_s)

    def fail(self, request: ChatRequest) -> int:
        """Close a request without an answer; returns the number of its tickets, for a counter."""
        if not self.is_open(request):
            return 0
        count = len(request.tickets)
        self._close(request, None, time.monotonic())
        return count

    def expire(self, now_s: float) -> bool:
        """Close requests that have been open for too long; returns whether there were any."""
        late = False
        while self._open:
            oldest = next(iter(self._open.values()))
            if now_s < oldest.deadline_s:
                break
            self.counters.timed_out += self.fail(oldest)
            late = True
        return late

    def _close(self, request: ChatRequest, outputs: NDArray[np.float32] | None, now_s: float) -> None:
        del self._open[request.key]
        if request in self._waiting:
            self._waiting.remove(request)
        for ticket, submitted_s in request.tickets.items():
            del self._by_ticket[ticket]
            self._ready[ticket] = (outputs, now_s - submitted_s)

    def forget(self, tickets: Iterable[int]) -> None:
        """Drop the requests and answers of tickets."""
        for ticket in tickets:
            self._ready.pop(ticket, None)
            request = self._by_ticket.pop(ticket, None)
            if request is None:
                continue
            del request.tickets[ticket]
            if not request.tickets and request in self._waiting:
                self._close(request, None, 0.0)

    def drop_all(self) -> None:
        """Close all requests; nobody gets an answer."""
        self._open.clear()
        self._by_ticket.clear()
        self._waiting.clear()

    def take(self, num_outputs: int) -> Answers:
        """Return all answers that were not collected, with K outputs each."""
        ready, self._ready = self._ready, {}
        return Answers.of(ready, num_outputs)
