"""Bookkeeping of the service: each picture from its submission to an answer that the trainer collects.

Nothing here knows of processes or threads; the owner holds a lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.rewards.scoring.answer_files import AnswerFiles
from robotrl.rewards.scoring.cache import AnswerCache
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.counters import ServiceCounters
from robotrl.rewards.scoring.requests import RequestTable, ScoreRequest
from robotrl.rewards.scoring.slots import PictureSlots

DEATHS = 2
"""A picture that was being scored when so many workers ended is invalid."""


class Offer(Enum):
    """Reception of a picture."""

    HIT = "its answer is known"
    JOINED = "the same picture waits for its answer"
    QUEUED = "it waits for a worker"
    FULL = "the queue is full"
    REFUSED = "the budget is spent"
    SHUT = "no worker runs"


ACCEPTED = frozenset({Offer.HIT, Offer.JOINED, Offer.QUEUED})
"""Offers that get an answer."""


ReadyAnswers = dict[int, tuple[NDArray[np.float32] | None, float]]
"""Outputs (K,), None where invalid, and waiting time, s, of answers that were not collected, by ticket."""


class Answers(NamedTuple):
    """Answers that have arrived, each ticket once, in the order of their arrival."""

    tickets: NDArray[np.int64]
    """(n,)."""
    outputs: NDArray[np.float32]
    """(n, K); NaN where not valid."""
    valid: NDArray[np.bool_]
    """(n,): False where an output is NaN or infinite, the scorer failed on the picture, or the answer took too long."""
    waited_s: NDArray[np.float64]
    """(n,) from the submission to the answer, s; 0 for one that was known."""

    @classmethod
    def of(cls, ready: ReadyAnswers, num_outputs: int) -> Answers:
        """The answers of a table, with K outputs each."""
        outputs = np.full((len(ready), num_outputs), np.nan, np.float32)
        for row, (found, _) in zip(outputs, ready.values(), strict=True):
            if found is not None:
                row[:] = found
        return cls(
            np.fromiter(ready, np.int64, len(ready)),
            outputs,
            np.array([found is not None for found, _ in ready.values()], np.bool_),
            np.array([waited_s for _, waited_s in ready.values()], np.float64),
        )


def check_new_tickets(tickets: Sequence[int], known: Callable[[int], bool]) -> None:
    """Check tickets before they are submitted.

    Args:
        tickets: the tickets.
        known: says of a ticket that it is open, or that its answer is to be collected.

    Raises:
        ConfigError: a ticket is known, or stands twice.
    """
    seen = set[int]()
    for ticket in tickets:
        if ticket in seen or known(ticket):
            raise ConfigError(f"ticket {ticket} was submitted before and is not collected: expected a new one")
        seen.add(ticket)


class ScoreLedger:
    """Requests, known answers and counts.

    Args:
        slots: memory of the pictures.
        cfg: settings.
    """

    def __init__(self, slots: PictureSlots, cfg: ServiceCfg) -> None:
        self.requests = RequestTable(slots, cfg)
        self.counters = ServiceCounters()
        self.files: AnswerFiles | None = None
        """Stored answers; set before the first submission."""
        self.notices = list[str]()
        """Warnings for the trainer."""
        self.shut = False
        """True while no worker runs, so that new pictures get no answer; known answers are given all the same."""
        self._cache = AnswerCache(cfg.cache_frames)
        self._storing = True
        self._ready: ReadyAnswers = {}

    @property
    def answered(self) -> bool:
        """True if there are answers to collect."""
        return bool(self._ready)

    def known(self, ticket: int) -> bool:
        """True if a ticket is open or its answer is to be collected."""
        return ticket in self.requests or ticket in self._ready

    def offer(self, ticket: int, picture: NDArray[np.uint8], key: bytes | None) -> Offer:
        """Take a picture (h, w, 3), if possible."""
        outputs = None if key is None else self._lookup(key)
        if outputs is not None:
            self._ready[ticket] = (outputs, 0.0)
            return Offer.HIT
        if key is not None and self.requests.join(ticket, key, time.monotonic()):
            return Offer.JOINED
        if self.shut:
            return Offer.SHUT
        if not self.requests.affordable:
            return Offer.REFUSED
        if self.requests.full:
            return Offer.FULL
        self.requests.add(ticket, picture, key, time.monotonic())
        return Offer.QUEUED

    def _lookup(self, key: bytes) -> NDArray[np.float32] | None:
        outputs = self._cache.get(key)
        if outputs is None and self.files is not None:
            outputs = self.files.get(key)
        return outputs

    def count(self, offer: Offer) -> None:
        """Count a submitted picture."""
        counters = self.counters
        counters.submitted += 1
        counters.accepted += offer in ACCEPTED
        counters.hits += offer in (Offer.HIT, Offer.JOINED)
        counters.dropped += offer is Offer.FULL
        counters.refused += offer is Offer.REFUSED
        counters.unserved += offer is Offer.SHUT

    def scored(self, batch: list[ScoreRequest], outputs: NDArray[np.float32], now_s: float) -> None:
        """Take the outputs (B, K) of a batch; those of requests that were closed meanwhile are discarded."""
        finite: list[bool] = np.all(np.isfinite(outputs), axis=1).tolist()
        keys, kept = list[bytes](), list[int]()
        for row, request in enumerate(batch):
            if not self.requests.is_open(request):
                continue
            if not finite[row]:
                self._invalid(request, now_s)
                continue
            answer = outputs[row].copy()
            self.counters.latencies_s.append(now_s - request.submitted_s)
            if request.key is not None:
                self._cache.put(request.key, answer)
                keys.append(request.key)
                kept.append(row)
            self._answer(request, answer, now_s)
            self.requests.close(request)
        self._store(keys, outputs[kept])

    def _store(self, keys: list[bytes], outputs: NDArray[np.float32]) -> None:
        if self.files is None or not keys or not self._storing:
            return
        try:
            self.files.put(keys, outputs)
        except OSError as error:
            self._storing = False
            self.notices.append(f"answers are no longer stored in {self.files.folder}: {error.strerror}")

    def refused(self, batch: list[ScoreRequest], error: str, now_s: float) -> None:
        """Take what was wrong with the scorer's answer to a batch, in words."""
        self.counters.scorer_errors += 1
        if self.counters.scorer_errors == 1:
            self.notices.append(f"{error}: {len(batch)} pictures have no score; further errors are only counted")
        for request in batch:
            if self.requests.is_open(request):
                self._invalid(request, now_s)

    def lost(self, batch: list[ScoreRequest], now_s: float) -> None:
        """Take the end of the worker that scored a batch: its requests wait once more, each for a batch of its own."""
        for request in batch:
            if not self.requests.is_open(request):
                continue
            request.deaths += 1
            if not request.tickets:
                self.requests.close(request)
            elif request.deaths >= DEATHS or not self.requests.retry(request):
                self._invalid(request, now_s)

    def expire(self, now_s: float) -> bool:
        """Close requests that have been open for too long; returns whether there were any."""
        late = self.requests.expire(now_s)
        for request in late:
            self.counters.timed_out += len(request.tickets)
            self._answer(request, None, now_s)
        return bool(late)

    def shut_down(self, now_s: float) -> None:
        """Take the end of all workers: open requests have no valid answer, and new ones are not taken."""
        self.shut = True
        for request in self.requests.all_open():
            self._invalid(request, now_s)

    def scalars(self) -> dict[str, float]:
        """Scalars to log: length of the queue, pictures paid for, whether the service is down, and the counters'."""
        counts = {"queue_length": float(self.requests.waiting), "requests_paid": float(self.requests.paid)}
        return counts | {"down": float(self.shut)} | self.counters.scalars()

    def _invalid(self, request: ScoreRequest, now_s: float) -> None:
        self.counters.invalid += len(request.tickets)
        self._answer(request, None, now_s)
        self.requests.close(request)

    def _answer(self, request: ScoreRequest, outputs: NDArray[np.float32] | None, now_s: float) -> None:
        for ticket, submitted_s in request.tickets.items():
            self._ready[ticket] = (outputs, now_s - submitted_s)

    def forget(self, tickets: Iterable[int]) -> None:
        """Drop the requests and answers of tickets."""
        for ticket in tickets:
            self._ready.pop(ticket, None)
            self.requests.forget([ticket])

    def take(self, num_outputs: int) -> Answers:
        """Return all answers that were not collected, with K outputs each."""
        ready, self._ready = self._ready, {}
        return Answers.of(ready, num_outputs)
