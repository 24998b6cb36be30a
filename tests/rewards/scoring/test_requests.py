"""Requests without processes: when a batch is due, which answers are applied, and what happens to slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.ledger import Offer, ScoreLedger
from robotrl.rewards.scoring.requests import RequestTable, ScoreRequest
from robotrl.rewards.scoring.slots import PictureSlots, SlotShape
from tests.kits.scoring_kit import SHAPE, answers_of, pictures_of

CFG = ServiceCfg(batch_size=3, flush_after_s=2.0, queue_frames=4, timeout_s=10.0)


@pytest.fixture
def slots() -> Iterator[PictureSlots]:
    made = PictureSlots.reserve(SlotShape(CFG.queue_frames, *SHAPE))
    yield made
    made.close()


@pytest.fixture
def table(slots: PictureSlots) -> RequestTable:
    return RequestTable(slots, CFG)


def add(table: RequestTable, *tickets: int, now_s: float = 0.0) -> None:
    for ticket, picture in zip(tickets, pictures_of(np.array(tickets)), strict=True):
        table.add(ticket, picture, None, now_s)


def tickets_of(batch: list[ScoreRequest]) -> list[int]:
    return [ticket for request in batch for ticket in request.tickets]


def outputs_of(slots: PictureSlots, batch: list[ScoreRequest]) -> NDArray[np.float32]:
    """A worker's outputs of the batch."""
    return answers_of(slots.pictures[[request.slot for request in batch]])


def test_a_full_batch_is_due_at_once_and_a_partial_one_at_the_limit_of_its_oldest(table: RequestTable) -> None:
    add(table, 1, now_s=0.0)
    add(table, 2, now_s=1.5)
    assert table.next_batch(1.9) == []
    assert table.deadline_s(idle=True) == 2.0
    assert table.deadline_s(idle=False) == 10.0
    flushed = table.next_batch(2.0)
    assert tickets_of(flushed) == [1, 2]
    assert table.next_batch(100.0) == []
    add(table, 3, 4, now_s=5.0)
    assert table.next_batch(5.0) == []
    for request in flushed:
        table.close(request)
    add(table, 5, 6, now_s=5.0)
    assert tickets_of(table.next_batch(5.0)) == [3, 4, 5]
    assert tickets_of(table.next_batch(7.0)) == [6]
    assert table.paid == 6


def test_nothing_is_due_where_nothing_waits(table: RequestTable) -> None:
    assert table.next_batch(1e9) == []
    assert table.deadline_s(idle=True) == float("inf")


def test_a_late_answer_is_not_given_to_the_next_ticket_of_its_slot(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    table = ledger.requests
    add(table, 1, 2, 3)
    late = table.next_batch(0.0)
    answer = outputs_of(slots, late)
    assert ledger.expire(10.0)
    first = ledger.take(2)
    assert first.tickets.tolist() == [1, 2, 3] and not first.valid.any() and np.isnan(first.outputs).all()
    assert first.waited_s.tolist() == [10.0, 10.0, 10.0]
    add(table, 7, 8, 9, 10, now_s=10.0)
    ledger.scored(late, answer, 11.0)
    assert len(ledger.take(2).tickets) == 0 and table.pending == 4
    # the same ticket in the same slot is another request, too
    again = table.next_batch(12.0)
    ledger.scored(again, outputs_of(slots, again), 13.0)
    found = ledger.take(2)
    assert found.tickets.tolist() == [7, 8, 9] == found.outputs[:, 0].tolist()
    assert ledger.counters.timed_out == 3 and ledger.counters.invalid == 0


def test_a_worker_that_reads_a_slot_after_its_next_picture_came_answers_nobody(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    add(ledger.requests, 1, 2, 3)
    late = ledger.requests.next_batch(0.0)
    ledger.expire(10.0)
    ledger.take(2)
    add(ledger.requests, 7, 8, 9, now_s=10.0)
    # it finds the pictures of 7 to 9 where it was told to look for 1 to 3; theirs are still to be scored
    ledger.scored(late, outputs_of(slots, late), 11.0)
    assert len(ledger.take(2).tickets) == 0 and ledger.requests.pending == 3


def test_two_requests_of_one_ticket_in_one_slot_are_told_apart(table: RequestTable) -> None:
    add(table, 1)
    (old,) = table.next_batch(2.0)
    table.expire(10.0)
    add(table, 1, now_s=10.0)
    (new,) = table.next_batch(12.0)
    assert old.slot == new.slot
    assert table.is_open(new) and not table.is_open(old)


def test_requests_of_a_lost_worker_are_scored_alone_and_the_guilty_one_is_invalid(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    add(ledger.requests, 1, 2, 3)
    ledger.lost(ledger.requests.next_batch(0.0), 0.0)
    assert ledger.requests.waiting == 3 and ledger.requests.deadline_s(idle=True) == 0.0
    first = ledger.requests.next_batch(0.0)
    assert tickets_of(first) == [1]
    ledger.scored(first, outputs_of(slots, first), 1.0)
    ledger.lost(ledger.requests.next_batch(1.0), 1.0)
    last = ledger.requests.next_batch(1.0)
    assert tickets_of(last) == [3]
    ledger.scored(last, outputs_of(slots, last), 2.0)
    found = ledger.take(2)
    assert found.tickets.tolist() == [1, 2, 3] and found.valid.tolist() == [True, False, True]
    assert ledger.requests.pending == 0 and ledger.requests.paid == 6 and ledger.counters.invalid == 1


def test_a_batch_that_no_worker_received_keeps_its_place(table: RequestTable) -> None:
    add(table, 1, 2, 3, 4)
    table.give_back(table.next_batch(0.0))
    assert table.paid == 0
    assert tickets_of(table.next_batch(0.0)) == [1, 2, 3]


def test_a_retried_request_that_no_worker_received_stays_alone(table: RequestTable) -> None:
    add(table, 1, 2, 3)
    for request in table.next_batch(0.0):
        request.deaths += 1
        table.retry(request)
    table.give_back(table.next_batch(0.0))
    assert [tickets_of(table.next_batch(0.0)) for _ in range(4)] == [[1], [2], [3], []]


def test_forgotten_requests_free_their_slot_or_finish_unheard(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    table = ledger.requests
    add(table, 1, 2, 3, 4)
    batch = table.next_batch(0.0)
    assert table.full
    ledger.forget([4, 2, 99])
    assert not table.full and table.waiting == 0 and table.pending == 2
    ledger.scored(batch, outputs_of(slots, batch), 1.0)
    ledger.forget([3])
    assert ledger.take(2).tickets.tolist() == [1]
    add(table, 5, 6, 7, 8)
    assert table.full and table.pending == 4


def test_a_forgotten_request_is_not_retried(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    add(ledger.requests, 1, 2, 3)
    batch = ledger.requests.next_batch(0.0)
    ledger.forget([2])
    ledger.lost(batch, 0.0)
    assert [tickets_of(ledger.requests.next_batch(0.0)) for _ in range(3)] == [[1], [3], []]


def test_requests_that_wait_to_be_retried_can_be_forgotten_and_time_out(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    add(ledger.requests, 1, 2, 3)
    ledger.lost(ledger.requests.next_batch(0.0), 0.0)
    ledger.forget([2])
    assert ledger.requests.waiting == 2
    ledger.expire(10.0)
    assert ledger.requests.waiting == 0 and ledger.take(2).tickets.tolist() == [1, 3]


def test_the_same_picture_is_asked_about_once_while_it_waits(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    pictures = pictures_of(np.array([5, 5, 5, 6]))
    offers = [ledger.offer(ticket, picture, picture.tobytes()) for ticket, picture in enumerate(pictures)]
    assert offers == [Offer.QUEUED, Offer.JOINED, Offer.JOINED, Offer.QUEUED]
    assert ledger.requests.waiting == 2 and ledger.requests.pending == 4
    # the picture is still wanted without the ticket that came first
    ledger.forget([0])
    batch = ledger.requests.next_batch(1e9)
    assert ledger.offer(4, pictures[0], pictures[0].tobytes()) is Offer.JOINED
    ledger.scored(batch, outputs_of(slots, batch), 1e9)
    found = ledger.take(2)
    assert found.tickets.tolist() == [1, 2, 4, 3] and found.outputs[:, 0].tolist() == [5, 5, 5, 6]
    assert ledger.requests.paid == 2 and ledger.requests.pending == 0
    assert ledger.offer(5, pictures[0], pictures[0].tobytes()) is Offer.HIT


def test_tickets_of_one_picture_share_its_fate(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    picture = pictures_of(np.array([5]))[0]
    for ticket in range(3):
        ledger.offer(ticket, picture, b"key")
    assert ledger.expire(1e9)
    assert ledger.take(2).tickets.tolist() == [0, 1, 2] and ledger.counters.timed_out == 3
    assert ledger.offer(3, picture, b"key") is Offer.QUEUED
    ledger.offer(4, picture, b"key")
    ledger.forget([3, 4])
    assert ledger.requests.waiting == 0 and ledger.requests.pending == 0
    assert ledger.offer(5, picture, b"key") is Offer.QUEUED


def test_the_budget_holds_with_retries(slots: PictureSlots) -> None:
    cfg = ServiceCfg(batch_size=3, queue_frames=4, max_requests=4)
    ledger = ScoreLedger(slots, cfg)
    pictures = pictures_of(np.arange(5))
    offers = [ledger.offer(ticket, pictures[ticket], None) for ticket in range(3)]
    assert offers == [Offer.QUEUED] * 3
    ledger.lost(ledger.requests.next_batch(0.0), 0.0)
    # 3 are paid for, so one of them may be asked about again
    found = ledger.take(2)
    assert found.tickets.tolist() == [1, 2] and not found.valid.any()
    assert ledger.offer(3, pictures[3], None) is Offer.REFUSED
    assert tickets_of(ledger.requests.next_batch(0.0)) == [0]
    assert ledger.requests.paid == 4


def test_the_queue_is_full_when_all_slots_are_taken(slots: PictureSlots) -> None:
    ledger = ScoreLedger(slots, CFG)
    pictures = pictures_of(np.arange(5))
    assert [ledger.offer(ticket, pictures[ticket], None) for ticket in range(5)] == [Offer.QUEUED] * 4 + [Offer.FULL]
    np.testing.assert_array_equal(slots.pictures, pictures[[3, 2, 1, 0]])
