"""Scorers and workers that fail: what becomes of their pictures, and when the service gives up."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robotrl.errors import ConfigError, RobotrlError
from robotrl.rewards.scoring import dispatcher
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.scorer import ScorerRecipe
from robotrl.rewards.scoring.service import Answers, ScoringService
from tests.kits.refusals import raises_naming
from tests.kits.scoring_kit import (
    DIE,
    DIE_ONCE,
    HANG,
    NAN,
    RAISE,
    SHAPE,
    SHAPELESS,
    SLOW,
    answers_of,
    batches_in,
    pictures_of,
    service_of,
)
from tests.rewards.scoring.test_service import LONG_S, in_order, scored, tickets, until_busy

CFG = ServiceCfg(batch_size=8, flush_after_s=0.0, queue_frames=64)


def cfg_with(**changes: Any) -> ServiceCfg:
    return replace(CFG, **changes)


def until_gone(*pids: int) -> None:
    """Wait until processes have ended."""
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.01)


# workers that end


def test_a_worker_that_dies_is_replaced_and_its_pictures_are_scored_once_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with service_of(CFG, log=str(log)) as service:
        (before,) = service.pids
        with pytest.warns(UserWarning, match="exit code 9"):
            answers = scored(service, tickets(8), {5: DIE_ONCE})
        assert answers.valid.all()
        np.testing.assert_array_equal(answers.outputs, answers_of(pictures_of(tickets(8), {5: DIE_ONCE})))
        assert service.pids != [before]
        # the batch, then each of its pictures alone
        assert [count for _, count in batches_in(log)] == [8] + [1] * 8
        metrics = service.metrics()
        assert metrics["worker_restarts"] == 1 and metrics["requests_paid"] == 16 and metrics["invalid"] == 0


def test_a_picture_that_ends_two_workers_is_invalid_and_no_other_is(tmp_path: Path) -> None:
    with service_of(CFG) as service:
        with pytest.warns(UserWarning, match="exit code 7"):
            answers = scored(service, tickets(8), {2: DIE})
        assert answers.valid.tolist() == [ticket != 2 for ticket in range(8)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not scored(service, tickets(10, 11), {10: DIE}).valid.any()
            assert scored(service, tickets(11, 20)).valid.all()
        metrics = service.metrics()
        assert metrics["worker_restarts"] == 4 and metrics["invalid"] == 2 / 18


def test_an_idle_worker_that_is_killed_is_replaced() -> None:
    with service_of(cfg_with(processes=2)) as service:
        pids = service.pids
        os.kill(pids[0], signal.SIGKILL)
        until_gone(pids[0])
        with pytest.warns(UserWarning, match="exit code -9"):
            assert scored(service, tickets(40)).valid.all()
            while len(service.pids) < 2 or pids[0] in service.pids:
                time.sleep(0.01)
            service.collect()
        assert pids[1] in service.pids


def stepped(service: ScoringService, first: int, until: Callable[[dict[str, float]], bool]) -> Answers:
    """Submit a picture and collect, as a trainer does, until the metrics are so; returns all answers."""
    found, ticket, end_s = [service.collect()], first, time.monotonic() + LONG_S
    while not until(service.metrics()):
        assert time.monotonic() < end_s, service.metrics()
        service.submit(tickets(ticket, ticket + 1), pictures_of(tickets(ticket, ticket + 1)))
        found.append(service.collect())
        ticket += 1
        time.sleep(0.01)
    found.append(service.wait(LONG_S))
    return in_order(Answers(*(np.concatenate(parts) for parts in zip(*found, strict=True))))


@pytest.mark.parametrize("kind", ["every batch", "no start"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_service_whose_workers_all_die_goes_on_without_scores_and_works_again(
    tmp_path: Path, kind: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE_S", 0.2)
    ill = tmp_path / "ill"
    with service_of(cfg_with(cache_frames=0, processes=processes), ill=str(ill)) as service:
        assert scored(service, tickets(8)).valid.all()
        ill.write_text(kind)
        for pid in service.pids:
            os.kill(pid, signal.SIGKILL)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # a worker that fails at every batch starts again after a pause: until its next batch the service is up
            answers = stepped(service, 100, lambda now: now["unserved"] * 1000 > 5 and now["down"] == 1)
            said = [str(one.message) for one in caught]
        assert not answers.valid.any() and service.pending == 0
        down = [one for one in said if "the scoring service is down" in one]
        reason = "exit code 5" if kind == "every batch" else "the weights are gone"
        assert len(down) == 1 and reason in down[0] and "tests.kits.scoring_kit:make_scorer" in down[0]
        assert len(said) == 2  # and one of the first worker that was lost
        metrics = service.metrics()
        assert metrics["outages"] >= 1 and metrics["invalid"] > 0
        ill.unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answers = stepped(service, 100_000, lambda now: now["down"] == 0)
            while not scored(service, tickets(500_000, 500_008)).valid.all():
                pass
        # what was submitted while it was down has no answer, and what was taken has its own
        assert (answers.outputs[answers.valid, 0] == answers.tickets[answers.valid]).all()
        assert service.metrics()["down"] == 0 and service.metrics()["unserved"] > 0


def test_workers_that_die_are_started_again_after_a_growing_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE_S", 0.5)
    ill = tmp_path / "ill"
    with service_of(CFG, ill=str(ill)) as service:
        ill.write_text("no start")
        os.kill(service.pids[0], signal.SIGKILL)
        when = list[float]()
        with pytest.warns(UserWarning):
            for count in range(1, 9):
                stepped(service, 1000 * count, lambda now, count=count: now["worker_restarts"] >= count)
                when.append(time.monotonic())
        # five are lost at once, then pauses of 0.5, 1 and 2 s lie between them
        pauses = np.diff(when)[4:]
        assert (pauses >= [0.5, 1.0, 2.0]).all(), pauses
        assert dispatcher.LONGEST_PAUSE_S < 60.0


def test_a_worker_that_dies_beside_one_that_works_is_no_outage(tmp_path: Path) -> None:
    with service_of(cfg_with(processes=2, cache_frames=0)) as service:
        with pytest.warns(UserWarning, match="exit code -9"):
            for count in range(1, 9):
                keep = service.pids[0]
                for pid in service.pids[1:]:
                    os.kill(pid, signal.SIGKILL)
                while service.metrics()["worker_restarts"] < count:
                    time.sleep(0.01)
                service.collect()
                assert scored(service, tickets(100 * count, 100 * count + 8)).valid.all()
                assert service.pids[0] == keep
                while len(service.pids) < 2 and count < 5:
                    time.sleep(0.01)
                if len(service.pids) < 2:
                    break
        assert service.metrics()["outages"] == 0 and service.metrics()["unserved"] == 0


# workers that hang


def test_a_worker_that_hangs_is_replaced_and_its_pictures_are_invalid(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with service_of(cfg_with(timeout_s=1.0), log=str(log)) as service:
        (before,) = service.pids
        with pytest.warns(UserWarning, match="did not answer for 1 s"):
            answers = scored(service, tickets(3), {1: HANG})
            assert not answers.valid.any() and (answers.waited_s >= 1.0).all()
            # the first ones may time out as well, while another worker starts
            while not scored(service, tickets(10, 12)).valid.all():
                pass
        until_gone(before)
        metrics = service.metrics()
        assert metrics["worker_restarts"] == 1 and metrics["timed_out"] >= 3 / 5 and metrics["invalid"] == 0


def test_a_scorer_that_is_slower_than_its_time_limit_for_a_while_ends_nothing(tmp_path: Path) -> None:
    """More workers hang in a row than may die: no outage, but a pause; what comes is scored when it is well again."""
    ill = tmp_path / "ill"
    cfg = cfg_with(batch_size=1, queue_frames=4, timeout_s=0.3, cache_frames=0)
    with service_of(cfg, ill=str(ill), slow_s=5.0) as service:
        ill.write_text("slow")
        with pytest.warns(UserWarning, match="did not answer for 0.3 s") as caught:
            limit = dispatcher.LOSSES
            answers = stepped(service, 100, lambda now: now["worker_restarts"] >= limit)
            paused_s = time.monotonic()
            more = stepped(service, 5000, lambda now: now["worker_restarts"] >= limit + 1)
            assert time.monotonic() - paused_s >= dispatcher.FIRST_PAUSE_S and not more.valid.any()
        assert len(caught) == 1 and not answers.valid.any()
        metrics = service.metrics()
        assert metrics["timed_out"] > 0 and metrics["outages"] == 0 and metrics["unserved"] == 0
        ill.unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first = 10_000
            while not scored(service, tickets(first, first + 2)).valid.all():
                first += 10


def test_an_answer_that_comes_too_late_is_discarded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cfg = cfg_with(batch_size=1, queue_frames=2, timeout_s=1.6, cache_frames=0)
    with service_of(cfg, log=str(log), slow_s=1.0) as service:
        service.submit(tickets(2), pictures_of(tickets(2), {0: SLOW, 1: SLOW}))
        # the second one has waited for the first one, and is late although its worker does not hang
        answers = in_order(service.wait(LONG_S))
        assert answers.valid.tolist() == [True, False]
        # its slot has another ticket when its answer comes
        assert service.submit(tickets(2, 4), pictures_of(tickets(2, 4))).all()
        answers = in_order(service.wait(LONG_S))
        assert answers.tickets.tolist() == [2, 3] and answers.outputs[:, 0].tolist() == [2, 3]
        assert service.metrics()["worker_restarts"] == 0 and len(batches_in(log)) == 4


@pytest.mark.filterwarnings("ignore:a worker of the scoring service did not answer")
def test_requests_that_no_worker_took_time_out(tmp_path: Path) -> None:
    with service_of(cfg_with(batch_size=1, queue_frames=3, timeout_s=0.3), log=str(tmp_path / "log")) as service:
        service.submit(tickets(3), pictures_of(tickets(3), {0: HANG}))
        answers = in_order(service.wait(LONG_S))
        assert answers.tickets.tolist() == [0, 1, 2] and not answers.valid.any()
        assert service.metrics()["requests_paid"] == 1 and service.metrics()["timed_out"] == 1.0


# scorers that fail


def test_a_scorer_that_raises_costs_its_batch_and_warns_once() -> None:
    with service_of(cfg_with(batch_size=4)) as service:
        with pytest.warns(UserWarning, match="ValueError: a picture of the moon.*scoring_kit.py") as caught:
            answers = scored(service, tickets(8), {1: RAISE})
        assert len(caught) == 1
        assert answers.valid.tolist() == [False] * 4 + [True] * 4
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not scored(service, tickets(8, 10), {9: RAISE}).valid.any()
        metrics = service.metrics()
        assert metrics["scorer_errors"] == 2 and metrics["invalid"] == 6 / 10 and metrics["worker_restarts"] == 0


def test_outputs_of_another_shape_cost_their_batch_and_warn_once() -> None:
    with service_of(CFG) as service:
        with pytest.warns(UserWarning) as caught:
            assert not scored(service, tickets(3), {1: SHAPELESS}).valid.any()
        said = str(caught[0].message)
        assert len(caught) == 1 and all(part in said for part in ("scorer", "pixels", "(3,)", "(3, 2)"))
        assert scored(service, tickets(10, 13)).valid.all() and service.metrics()["worker_restarts"] == 0


def test_an_error_of_the_service_itself_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "FIRST_PAUSE_S", 0.1)
    with service_of(cfg_with(cache_frames=0)) as service:
        assert scored(service, tickets(4)).valid.all()
        real = service._ledger.scored

        def broken(*_: Any) -> None:
            monkeypatch.setattr(service._ledger, "scored", real)
            raise LookupError("a ledger without a page")

        monkeypatch.setattr(service._ledger, "scored", broken)
        with pytest.warns(UserWarning, match=r"service is down: .*LookupError: a ledger without a page"):
            assert not scored(service, tickets(10, 14)).valid.any()
            stepped(service, 1000, lambda now: now["down"] == 0)
            assert scored(service, tickets(20, 24)).valid.all()


# the start


def test_an_error_of_the_factory_is_told_at_once() -> None:
    with pytest.raises(RobotrlError) as caught:
        service_of(cfg_with(processes=2), fails="raise")
    assert "LookupError: no weights in this folder" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "named"),
    [
        ("tests.kits.scoring_kit:make_scorrer", ["make_scorrer", "tests.kits.scoring_kit:make_scorer"]),
        ("tests.kits.no_such_kit:make", ["tests.kits.no_such_kit"]),
        ("tests.kits.scoring_kit", ["package.module:function"]),
    ],
)
def test_a_factory_that_is_not_there_is_named(factory: str, named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ScoringService(ScorerRecipe(factory), CFG, SHAPE)
    assert "scorer.factory" in str(caught.value) and all(part in str(caught.value) for part in named)


def test_a_factory_that_makes_no_scorer_is_refused() -> None:
    with raises_naming(ConfigError, "scorer.factory", "int", "num_outputs", "score"):
        service_of(CFG, fails="no scorer")


def test_a_scorer_that_does_not_say_what_it_is_is_refused() -> None:
    with raises_naming(ConfigError, "scorer.factory", "identity"):
        service_of(CFG, identity="")
    with raises_naming(ConfigError, "scorer.factory", "num_outputs", 0):
        service_of(CFG, fails="no outputs")


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with raises_naming(ConfigError, "scorer.arguments"):
        service_of(CFG, log=Path("log"))
    with raises_naming(ConfigError, "scorer.arguments", "65,536"):
        service_of(CFG, log="x" * 70_000)


def test_workers_that_end_while_they_start_are_not_started_for_ever() -> None:
    with pytest.raises(RobotrlError, match=r"exit code 3.* 5 times"):
        service_of(CFG, fails="exit")


def test_scorers_that_differ_are_refused() -> None:
    with raises_naming(RobotrlError, "identity"):
        service_of(cfg_with(processes=2), fails="differs")


def test_a_failed_start_leaves_no_thread_and_no_process() -> None:
    with pytest.raises(RobotrlError):
        service_of(CFG, fails="raise")
    assert not [thread for thread in threading.enumerate() if thread.name == "robotrl-scoring"]


# the end


def test_closing_ends_workers_that_are_busy(tmp_path: Path) -> None:
    log = tmp_path / "log"
    service = service_of(cfg_with(processes=2, batch_size=1), log=str(log))
    pids = service.pids
    service.submit(tickets(6), pictures_of(tickets(6), {0: HANG}))
    until_busy(log, 2)
    service.close()
    until_gone(*pids)
    assert service.pending == 0 and dispatcher.GRACE_S < 5
    assert 0 not in service.collect().tickets


def test_an_error_inside_the_block_closes_the_service() -> None:
    with pytest.raises(ZeroDivisionError), service_of(CFG) as service:
        pids = service.pids
        raise ZeroDivisionError
    until_gone(*pids)


@pytest.mark.filterwarnings("ignore:the scorer raised", "ignore:a worker of the scoring service")
def test_with_random_faults_each_ticket_gets_its_own_answer_once() -> None:
    random = np.random.default_rng(0)
    cfg = cfg_with(processes=2, batch_size=16, queue_frames=256, when_full="wait", wait_s=LONG_S, cache_frames=100)
    found, kills = list[Answers](), 0
    with service_of(cfg, delay_s=0.01) as service:
        for first in range(0, 12_800, 64):
            wanted = tickets(first, first + 64)
            # some pictures come again under another ticket
            shown = np.where(random.random(64) < 0.2, np.maximum(wanted - random.integers(1, 200, 64), 0), wanted)
            faults = {int(t): int(random.choice([NAN, RAISE, DIE])) for t in wanted if random.random() < 0.0005}
            assert service.submit(wanted, pictures_of(shown, faults)).all()
            if first % 3200 == 1600:
                os.kill(service.pids[0], signal.SIGKILL)
                kills += 1
            found.append(service.collect())
        found.append(service.wait(LONG_S))
        metrics = service.metrics()
    answers = in_order(Answers(*(np.concatenate(parts) for parts in zip(*found, strict=True))))
    np.testing.assert_array_equal(answers.tickets, tickets(12_800))
    told = answers.outputs[answers.valid, 0].astype(np.int64)
    late = answers.tickets[answers.valid] - told
    assert ((late >= 0) & (late < 200)).all() and (late > 0).sum() > 1000 and answers.valid.mean() > 0.9
    assert metrics["worker_restarts"] >= kills == 4 and metrics["hit_rate"] > 0
