"""The service with worker processes that are well: tickets, batches, bounds, known answers, budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from robotrl.errors import ConfigError, RobotrlError
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.service import Answers, ScoringService
from tests.kits.refusals import raises_naming
from tests.kits.scoring_kit import INFINITE, NAN, SLOW, answers_of, batches_in, pictures_of, service_of

LONG_S = 60.0
FAST = ServiceCfg(batch_size=8, flush_after_s=0.01, queue_frames=64)


def tickets(*bounds: int) -> NDArray[np.int64]:
    return np.arange(*bounds, dtype=np.int64)


def in_order(answers: Answers) -> Answers:
    order = np.argsort(answers.tickets)
    return Answers(*(part[order] for part in answers))


def scored(service: ScoringService, wanted: NDArray[np.int64], faults: dict[int, int] | None = None) -> Answers:
    """Answers of the tickets, in their order; none are left."""
    assert service.submit(wanted, pictures_of(wanted, faults)).all()
    answers = in_order(service.wait(LONG_S))
    assert service.pending == 0
    np.testing.assert_array_equal(answers.tickets, np.sort(wanted))
    return answers


def until_busy(log: Path, batches: int = 1) -> None:
    """Wait until workers have begun so many batches."""
    while len(batches_in(log)) < batches:
        time.sleep(0.005)


@pytest.fixture(scope="module")
def shared() -> Iterator[ScoringService]:
    """A service for tests that need nothing special; each takes tickets of its own."""
    with service_of(FAST) as service:
        yield service


def test_answers_are_those_of_the_pictures(shared: ScoringService) -> None:
    wanted = tickets(100, 120)
    answers = scored(shared, wanted)
    assert answers.valid.all() and (answers.waited_s > 0).all()
    np.testing.assert_array_equal(answers.outputs, answers_of(pictures_of(wanted)))
    assert answers.outputs.dtype == np.float32 and answers.outputs.shape == (20, 2)
    assert (shared.identity, shared.num_outputs) == ("pixels", 2)


def test_a_hundred_thousand_answers_reach_their_tickets_out_of_order() -> None:
    count, block = 100_000, 512
    cfg = ServiceCfg(processes=2, batch_size=64, flush_after_s=0.002, queue_frames=2048, cache_frames=0)
    cfg = ServiceCfg(**{**vars(cfg), "when_full": "wait", "wait_s": LONG_S})
    found = list[Answers]()
    with service_of(cfg, delay_s=0.004) as service:
        for first in range(0, count, block):
            wanted = tickets(first, min(count, first + block))
            assert service.submit(wanted, pictures_of(wanted)).all()
            found.append(service.collect())
        found.append(service.wait(LONG_S))
        metrics = service.metrics()
    answers = Answers(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    assert (np.diff(answers.tickets) < 0).sum() > 10, "two workers overtake each other"
    answers = in_order(answers)
    np.testing.assert_array_equal(answers.tickets, tickets(count))
    assert answers.valid.all()
    np.testing.assert_array_equal(answers.outputs, answers_of(pictures_of(tickets(count))))
    assert metrics["requests_paid"] == count and metrics["accepted"] == 1.0 and metrics["dropped"] == 0.0


def test_collect_does_not_wait(shared: ScoringService) -> None:
    assert shared.submit(tickets(200, 201), pictures_of(tickets(200, 201), {200: SLOW})).all()
    answers = shared.collect()
    assert len(answers.tickets) == 0 and answers.outputs.shape == (0, 2) and shared.pending == 1
    assert len(shared.wait(0.0).tickets) == 0
    assert shared.wait(LONG_S).tickets.tolist() == [200] and len(shared.collect().tickets) == 0


def test_nothing_is_submitted_and_waited_for(shared: ScoringService) -> None:
    assert shared.submit(tickets(0), pictures_of(tickets(0))).shape == (0,)
    assert len(shared.wait(LONG_S).tickets) == 0


def test_outputs_that_are_not_finite_are_invalid(shared: ScoringService) -> None:
    before = shared.metrics()["invalid"]
    answers = scored(shared, tickets(300, 304), {301: NAN, 302: INFINITE})
    assert answers.valid.tolist() == [True, False, False, True]
    assert np.isnan(answers.outputs[1:3]).all() and answers.outputs[3, 0] == 303
    assert shared.metrics()["invalid"] > before


def test_an_invalid_answer_is_not_kept(shared: ScoringService) -> None:
    paid = shared.metrics()["requests_paid"]
    for ticket in (310, 311):
        assert shared.submit(tickets(ticket, ticket + 1), pictures_of(tickets(310, 311), {310: NAN})).all()
        assert not shared.wait(LONG_S).valid.any()
    assert shared.metrics()["requests_paid"] == paid + 2


def test_forgotten_tickets_are_not_answered(shared: ScoringService) -> None:
    wanted = tickets(400, 410)
    shared.submit(wanted, pictures_of(wanted, {400: SLOW}))
    shared.forget(np.array([400, 405, 999], np.int64))
    assert shared.pending == 8
    answers = shared.wait(LONG_S)
    assert sorted(answers.tickets.tolist()) == [401, 402, 403, 404, 406, 407, 408, 409]
    # known at once, forgotten before it was collected
    shared.submit(tickets(420, 421), pictures_of(wanted[1:2]))
    shared.forget(tickets(420, 421))
    assert len(shared.collect().tickets) == 0


def test_a_ticket_in_use_is_refused(shared: ScoringService) -> None:
    shared.submit(tickets(500, 501), pictures_of(tickets(500, 501)))
    with raises_naming(ConfigError, "ticket", 500):
        shared.submit(tickets(500, 501), pictures_of(tickets(500, 501)))
    # also where its answer is there, and not collected
    while shared.pending:
        time.sleep(0.01)
    with raises_naming(ConfigError, "ticket", 500):
        shared.submit(tickets(499, 501), pictures_of(tickets(499, 501)))
    assert shared.collect().tickets.tolist() == [500]
    twice = np.array([501, 502, 501], np.int64)
    with raises_naming(ConfigError, "ticket", 501):
        shared.submit(twice, pictures_of(twice))
    assert shared.pending == 0, "nothing of a refused submission is scored"


@pytest.mark.parametrize(
    ("wrong", "field", "named"),
    [
        ((tickets(2).astype(np.int32), pictures_of(tickets(2))), "tickets", ["int32", "int64"]),
        ((tickets(2)[None], pictures_of(tickets(2))), "tickets", ["(1, 2)"]),
        ((tickets(2), pictures_of(tickets(3))), "pictures", ["(3, 4, 4, 3)", "(2, 4, 4, 3)"]),
        ((tickets(2), pictures_of(tickets(2)).astype(np.float32)), "pictures", ["float32", "uint8"]),
        ((tickets(2), pictures_of(tickets(2))[:, :2]), "pictures", ["(2, 2, 4, 3)"]),
    ],
)
def test_other_arrays_are_refused(shared: ScoringService, wrong: Any, field: str, named: list[str]) -> None:
    with raises_naming(ConfigError, field) as caught:
        shared.submit(*wrong)
    assert all(name in str(caught.value) for name in named)
    assert shared.pending == 0


def test_pictures_may_lie_in_any_order_in_memory(shared: ScoringService) -> None:
    wanted = tickets(600, 606)
    columns_first = np.asfortranarray(pictures_of(wanted))
    assert not columns_first.flags.c_contiguous
    assert shared.submit(wanted, columns_first).all()
    answers = in_order(shared.wait(LONG_S))
    np.testing.assert_array_equal(answers.outputs, answers_of(pictures_of(wanted)))


def test_a_partial_batch_is_flushed_at_its_limit_and_a_full_one_before(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with service_of(ServiceCfg(batch_size=4, flush_after_s=0.2, queue_frames=64), log=str(log)) as service:
        partial = scored(service, tickets(3))
        assert (partial.waited_s >= 0.2).all()
        assert [count for _, count in batches_in(log)] == [3]
    log.unlink()
    with service_of(ServiceCfg(batch_size=4, flush_after_s=1e4, queue_frames=64), log=str(log)) as service:
        full = scored(service, tickets(8))
        assert full.valid.all(), "nothing waits for the limit"
        assert [count for _, count in batches_in(log)] == [4, 4]
        service.submit(tickets(8, 11), pictures_of(tickets(8, 11)))
        assert len(service.wait(0.3).tickets) == 0 and service.pending == 3
        service.submit(tickets(11, 12), pictures_of(tickets(11, 12)))
        assert len(service.wait(LONG_S).tickets) == 4


def test_a_full_queue_drops_what_comes_then(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cfg = ServiceCfg(batch_size=2, flush_after_s=0.0, queue_frames=4, cache_frames=0)
    with service_of(cfg, log=str(log), slow_s=0.5) as service:
        service.submit(tickets(1), pictures_of(tickets(1), {0: SLOW}))
        until_busy(log)
        accepted = service.submit(tickets(1, 7), pictures_of(tickets(1, 7)))
        assert accepted.tolist() == [True] * 3 + [False] * 3
        assert sorted(service.wait(LONG_S).tickets.tolist()) == [0, 1, 2, 3]
        metrics = service.metrics()
        assert metrics["dropped"] == 3 / 7 and metrics["accepted"] == 4 / 7 and metrics["queue_length"] == 0
        # a dropped ticket may be tried again
        assert scored(service, tickets(4, 7)).valid.all()


def test_a_full_queue_makes_the_trainer_wait_for_a_limited_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cfg = ServiceCfg(batch_size=2, flush_after_s=0.0, queue_frames=4, when_full="wait", wait_s=LONG_S, cache_frames=0)
    with service_of(cfg, log=str(log), slow_s=0.3) as service:
        service.submit(tickets(1), pictures_of(tickets(1), {0: SLOW}))
        until_busy(log)
        assert service.submit(tickets(1, 21), pictures_of(tickets(1, 21))).all()
        assert sorted(service.wait(LONG_S).tickets.tolist()) == list(range(21))
    log.unlink()
    cfg = ServiceCfg(**{**vars(cfg), "wait_s": 0.05})
    with service_of(cfg, log=str(log), slow_s=1.0) as service:
        service.submit(tickets(1), pictures_of(tickets(1), {0: SLOW}))
        until_busy(log)
        assert service.submit(tickets(1, 7), pictures_of(tickets(1, 7))).sum() == 3


def test_pictures_that_come_again_are_free_until_they_have_left_the_cache() -> None:
    cfg = ServiceCfg(batch_size=4, flush_after_s=0.0, queue_frames=64, cache_frames=4)
    with service_of(cfg) as service:
        scored(service, tickets(4))
        assert service.submit(tickets(10, 14), pictures_of(tickets(4))).all()
        assert service.pending == 0
        again = in_order(service.collect())
        np.testing.assert_array_equal(again.outputs, answers_of(pictures_of(tickets(4))))
        assert again.valid.all() and not again.waited_s.any()
        metrics = service.metrics()
        assert metrics["hit_rate"] == 0.5 and metrics["requests_paid"] == 4
        scored(service, tickets(20, 24))
        service.submit(tickets(30, 34), pictures_of(tickets(4)))
        assert len(service.wait(LONG_S).tickets) == 4 and service.metrics()["requests_paid"] == 12


def test_after_the_budget_only_known_pictures_are_answered() -> None:
    with service_of(ServiceCfg(**{**vars(FAST), "max_requests": 5})) as service:
        assert service.submit(tickets(8), pictures_of(tickets(8))).tolist() == [True] * 5 + [False] * 3
        assert len(service.wait(LONG_S).tickets) == 5
        assert service.submit(tickets(10, 14), pictures_of(tickets(3, 7))).tolist() == [True, True, False, False]
        assert service.wait(LONG_S).tickets.tolist() == [10, 11]
        metrics = service.metrics()
        assert metrics["requests_paid"] == 5 and metrics["refused"] == 5 / 12 and metrics["dropped"] == 0


def test_a_later_run_pays_for_nothing_twice(tmp_path: Path) -> None:
    cfg = ServiceCfg(**{**vars(FAST), "answers": str(tmp_path), "cache_frames": 0})
    with service_of(cfg) as service:
        first = scored(service, tickets(20), {3: NAN})
        # not in the cache, but stored
        assert service.submit(tickets(100, 101), pictures_of(tickets(1))).all() and service.pending == 0
    with service_of(cfg) as service:
        again = scored(service, tickets(22), {3: NAN})
        np.testing.assert_array_equal(again.outputs[:20], first.outputs)
        assert service.metrics()["requests_paid"] == 3, "the invalid one and two new ones"
    (path,) = [path for path in tmp_path.glob("*/*.rows") if path.stat().st_size > 100]
    path.write_bytes(path.read_bytes()[:-5])
    with service_of(cfg) as service:
        scored(service, tickets(22))
        assert service.metrics()["requests_paid"] == 2, "the torn one and the one that was invalid"
    with service_of(cfg, identity="others") as service:
        scored(service, tickets(22))
        assert service.metrics()["requests_paid"] == 22
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="1 damaged"), service_of(cfg) as service:
        scored(service, tickets(1, 2))


def test_a_disk_that_refuses_costs_no_answer(tmp_path: Path) -> None:
    cfg = ServiceCfg(**{**vars(FAST), "answers": str(tmp_path)})
    with service_of(cfg) as service:
        (folder,) = tmp_path.iterdir()
        (folder / "scorer.json").unlink()
        folder.rmdir()
        with pytest.warns(UserWarning, match="no longer stored"):
            assert scored(service, tickets(3)).valid.all()
        assert scored(service, tickets(3, 6)).valid.all()


def test_metrics_have_latencies_once_there_are_answers() -> None:
    with service_of(FAST) as service:
        assert "latency_p50_s" not in service.metrics()
        answers = scored(service, tickets(10))
        metrics = service.metrics()
        assert metrics["latency_p50_s"] == pytest.approx(np.percentile(answers.waited_s, 50))
        assert metrics["latency_p95_s"] == pytest.approx(np.percentile(answers.waited_s, 95))
        assert metrics["worker_restarts"] == metrics["scorer_errors"] == metrics["timed_out"] == 0


def test_a_closed_service_takes_nothing_and_keeps_what_has_arrived() -> None:
    service = service_of(FAST)
    service.submit(tickets(4), pictures_of(tickets(4)))
    while service.pending:
        time.sleep(0.01)
    service.close()
    service.close()
    assert len(service.wait(1.0).tickets) == 4 and len(service.collect().tickets) == 0
    with pytest.raises(RobotrlError, match="closed"):
        service.submit(tickets(4, 5), pictures_of(tickets(4, 5)))
