"""The client against a real server on this machine."""

import gc
import logging
import threading
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from robotrl.errors import ConfigError, RobotrlError
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.client import ChatEndpoint
from robotrl.rewards.endpoint.replies import ChoiceReply, NumbersReply
from robotrl.rewards.scoring.counters import ServiceCounters
from tests.kits.chat_server import ChatServer
from tests.kits.refusals import raises_naming

REPLY = ChoiceReply(1000)
SECRET = "sk-hunter2-hunter2"


def number_in(call):
    """Choice of a prompt "number 17"."""
    return {"choice": int(call.prompt.splitlines()[0].split()[1])}


def cfg_of(server, **changes):
    return replace(EndpointCfg(base_url=server.base_url, model="small", backoff_s=0.01, concurrency=8), **changes)


def ask(client, numbers, first=0):
    tickets = np.arange(first, first + len(numbers), dtype=np.int64)
    return client.submit(tickets, [f"number {n}" for n in numbers])


def by_ticket(answers):
    return {
        int(t): (float(o[0]), bool(v)) for t, o, v in zip(answers.tickets, answers.outputs, answers.valid, strict=True)
    }


def only(fault):
    """The answer to one request, counts, warnings and calls where every call meets a fault."""
    with ChatServer(number_in, fault=lambda n: fault) as server:
        # a busy machine may take its time where the answer does come
        timeout_s, call_timeout_s = (1.0, 0.3) if fault in ("hang", "drip") else (15.0, 5.0)
        limits = {"timeout_s": timeout_s, "call_timeout_s": call_timeout_s, "max_answer_bytes": 4096}
        cfg = cfg_of(server, retries=1, **limits)
        with ChatEndpoint(cfg, REPLY) as client, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert ask(client, [7]).all()
            answers = client.wait(20.0)
            return by_ticket(answers)[0], client.counts(), [str(one.message) for one in caught], len(server.calls)


def test_a_picture_goes_to_the_model_and_its_answer_comes_back():
    def mean_of(call):
        assert call.picture is not None and call.picture.shape == (4, 6, 3)
        return {"values": [int(call.picture[..., c].mean()) for c in range(3)]}

    pictures = np.zeros((2, 4, 6, 3), np.uint8)
    pictures[0, ..., 0], pictures[1, ..., 2] = 200, 50
    with ChatServer(mean_of) as server:
        reply = NumbersReply((0.0,) * 3, (255.0,) * 3)
        with ChatEndpoint(cfg_of(server, temperature=0.5, max_tokens=33), reply) as client:
            assert client.submit(np.array([5, 9]), ["what color?", "what color?"], pictures).tolist() == [True, True]
            answers = client.wait(20.0)
        order = np.argsort(answers.tickets)
        assert answers.tickets[order].tolist() == [5, 9]
        assert answers.outputs[order].tolist() == [[200, 0, 0], [0, 0, 50]]
        assert answers.valid.all() and (answers.waited_s > 0).all()
        body = server.calls[0].body
    assert body["model"] == "small" and body["temperature"] == 0.5 and body["max_tokens"] == 33
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["values"]
    assert server.calls[0].prompt.startswith("what color?\nAnswer with JSON only")
    assert server.calls[0].authorization is None


def test_a_clip_goes_to_the_model_frame_by_frame_the_oldest_first():
    clips = np.arange(2 * 3, dtype=np.uint8).reshape(2, 3, 1, 1, 1) * np.ones((1, 1, 4, 6, 3), np.uint8)

    def first_and_last(call):
        assert [frame.shape for frame in call.frames] == [(4, 6, 3)] * 3
        return {"values": [int(frame.max()) for frame in call.frames]}

    with ChatServer(first_and_last) as server:
        reply = NumbersReply((0.0,) * 3, (255.0,) * 3)
        with ChatEndpoint(cfg_of(server, queue_size=2), reply) as client:
            assert client.room == 2
            assert client.submit(np.array([0, 1]), ["which?"] * 2, clips).all()
            answers = client.wait(20.0)
            # the same frames in another order are another request
            assert client.submit(np.array([2]), ["which?"], clips[:1, ::-1]).all()
            again = client.wait(20.0)
            with raises_naming(ConfigError, "picture", "(1, 3, 4, 6, 3)"):
                client.submit(np.array([3]), ["which?"], clips[None, :1])
    assert by_ticket_all(answers) == {0: [0, 1, 2], 1: [3, 4, 5]}
    assert by_ticket_all(again) == {2: [2, 1, 0]} and len(server.calls) == 3


def by_ticket_all(answers):
    return {int(t): o.tolist() for t, o in zip(answers.tickets, answers.outputs, strict=True)}


def test_every_answer_is_on_its_own_ticket_whatever_the_order_of_thousands():
    rng = np.random.default_rng(0)
    delays = rng.uniform(0, 0.02, 8192)
    faults = rng.uniform(size=8192) < 0.05
    numbers = rng.integers(0, 1000, 3000)
    with ChatServer(
        lambda call: {"choice": int(call.prompt.split()[1])},
        delay_s=lambda n: float(delays[n]),
        fault=lambda n: 500 if faults[n] else None,
    ) as server:
        cfg = cfg_of(server, concurrency=32, queue_size=4096, retries=6, timeout_s=300.0)
        with ChatEndpoint(cfg, REPLY) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, order = {}, []
            tickets = rng.permutation(10**6)[: len(numbers)].astype(np.int64)
            for at in range(0, len(numbers), 50):
                part = slice(at, at + 50)
                # a number of its own for each request, so that none shares its answer
                prompts = [f"number {n} of {t}" for n, t in zip(numbers[part], tickets[part], strict=True)]
                assert client.submit(tickets[part], prompts).all()
                answers = client.collect()
                got |= by_ticket(answers)
                order += answers.tickets.tolist()
            answers = client.wait(300.0)
            got |= by_ticket(answers)
            order += answers.tickets.tolist()
        assert got == {int(t): (float(n), True) for t, n in zip(tickets, numbers, strict=True)}
        assert len(order) == len(numbers) and order != tickets.tolist()
        assert 8 < server.most_at_once <= 32
        assert len(server.calls) > len(numbers)  # retries


def test_nothing_waits_for_a_slow_server():
    with ChatServer(number_in, delay_s=lambda n: 60.0) as server:
        with ChatEndpoint(cfg_of(server, concurrency=2, timeout_s=0.4), REPLY) as client:
            assert ask(client, range(20)).all()
            assert not len(client.collect().tickets)
            assert client.pending == 20
            answers = client.wait(20.0)
            assert sorted(answers.tickets.tolist()) == list(range(20))
            assert not answers.valid.any() and np.isnan(answers.outputs).all()
            assert client.counts()["timed_out"] == 20
        assert len(server.calls) == 2  # the others were never sent


def test_an_answer_after_its_time_limit_is_nobodys():
    with (
        ChatServer(number_in, delay_s=lambda n: 0.6 if n == 0 else 0.0) as server,
        ChatEndpoint(cfg_of(server, timeout_s=0.3), REPLY) as client,
    ):
        ask(client, [1])
        time.sleep(0.5)
        ask(client, [2], first=1)
        time.sleep(0.5)
        assert by_ticket(client.wait(20.0))[1] == (2.0, True)
        assert not len(client.collect().tickets)


@pytest.mark.parametrize("fault", [500, 503, 429, "drop", "truncated"])
def test_faults_that_are_tried_again(fault):
    (value, valid), metrics, notices, calls = only(fault)
    assert np.isnan(value) and not valid and calls == 2
    assert (metrics["failed"], metrics["retries"], metrics["faults"], metrics["calls"]) == (1, 1, 2, 2)
    assert len(notices) == 1 and "small" in notices[0]


@pytest.mark.parametrize("fault", [400, 404, "oversized", "endless", "redirect", "echo"])
def test_faults_that_are_not(fault):
    (value, valid), metrics, notices, calls = only(fault)
    assert np.isnan(value) and not valid and calls == 1
    assert (metrics["failed"], metrics["retries"], metrics["faults"]) == (1, 0, 1)
    assert len(notices) == 1


@pytest.mark.parametrize("fault", ["garbage", "nan", "deep", "other form", "null", "list"])
def test_answers_of_another_form(fault):
    # "deep" is above the size that the others are limited to
    (value, valid), metrics, notices, calls = only(fault)
    assert np.isnan(value) and not valid and calls == 1
    assert metrics["failed" if fault == "deep" else "invalid"] == 1 and len(notices) == 1


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_call_that_does_not_end_is_ended(fault):
    (value, valid), metrics, _, calls = only(fault)
    assert np.isnan(value) and not valid and calls == 2
    assert metrics["failed"] + metrics["timed_out"] == 1


def test_a_server_that_is_not_there():
    with ChatServer(number_in) as server:
        cfg = cfg_of(server, retries=1)
    with ChatEndpoint(cfg, REPLY) as client, pytest.warns(UserWarning, match="no connection"):
        ask(client, [1, 2])
        answers = client.wait(20.0)
        assert sorted(answers.tickets.tolist()) == [0, 1] and not answers.valid.any()
        assert client.counts()["failed"] == 2


def test_a_server_that_comes_back():
    with (
        ChatServer(number_in, fault=lambda n: 503 if n < 2 else None) as server,
        ChatEndpoint(cfg_of(server, retries=2), REPLY) as client,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        ask(client, [5])
        assert by_ticket(client.wait(20.0)) == {0: (5.0, True)}


def test_the_server_says_how_long_to_wait():
    with (
        ChatServer(number_in, fault=lambda n: 429 if n < 1 else None, retry_after="1") as server,
        ChatEndpoint(cfg_of(server, backoff_s=60.0), REPLY) as client,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        ask(client, [5])
        answers = client.wait(20.0)
        assert by_ticket(answers) == {0: (5.0, True)}
        assert 1.0 <= answers.waited_s[0] < 10.0


def test_a_redirect_is_not_followed():
    with ChatServer(number_in, fault=lambda n: "redirect") as server:
        with ChatEndpoint(cfg_of(server), REPLY) as client, pytest.warns(UserWarning, match="307"):
            ask(client, [5])
            client.wait(20.0)
        assert len(server.calls) == 1


def test_the_queue_is_bounded():
    with (
        ChatServer(number_in, delay_s=lambda n: 0.2) as server,
        ChatEndpoint(cfg_of(server, concurrency=1, queue_size=3), REPLY) as client,
    ):
        assert ask(client, range(5)).tolist() == [True] * 3 + [False] * 2
        assert sorted(client.wait(20.0).tickets.tolist()) == [0, 1, 2]
        assert client.counts()["dropped"] == 2


def test_the_same_request_is_asked_once():
    with ChatServer(number_in, delay_s=lambda n: 0.1) as server:
        with ChatEndpoint(cfg_of(server), REPLY) as client:
            ask(client, [4, 4, 4])
            assert by_ticket(client.wait(20.0)) == dict.fromkeys(range(3), (4.0, True))
            ask(client, [4], first=3)
            assert by_ticket(client.collect()) == {3: (4.0, True)}
            assert client.counts()["hits"] == 3
        assert len(server.calls) == 1


def test_stored_answers_are_not_paid_for_again(tmp_path):
    with ChatServer(number_in, fault=lambda n: 500 if n == 2 else None) as server:
        cfg = cfg_of(server, answers=str(tmp_path / "answers"), concurrency=1, retries=0)
        with ChatEndpoint(cfg, REPLY) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(client, [1, 2, 3])
            client.wait(20.0)
        with ChatEndpoint(cfg, REPLY) as client:
            ask(client, [1, 2, 3])
            assert by_ticket(client.wait(20.0)) == {0: (1.0, True), 1: (2.0, True), 2: (3.0, True)}
            assert client.counts()["calls"] == 1  # the one that failed
        # another model does not answer for this one
        with ChatEndpoint(replace(cfg, model="large"), REPLY) as client:
            ask(client, [1])
            client.wait(20.0)
            assert client.counts()["calls"] == 1
        assert len(server.calls) == 5


def test_the_budget_of_calls_counts_retries_and_goes_on_after_a_resume():
    with ChatServer(number_in, fault=lambda n: 500 if n == 0 else None) as server:
        cfg = cfg_of(server, concurrency=1, max_requests=3)
        with ChatEndpoint(cfg, REPLY) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(client, [1, 2, 3, 4])
            answers = client.wait(20.0)
            assert by_ticket(answers)[0] == (1.0, True) and by_ticket(answers)[1] == (2.0, True)
            assert answers.valid.sum() == 2
            assert ask(client, [5], first=9).tolist() == [False]
            assert ask(client, [1], first=10).tolist() == [True]  # known, so free
            assert client.counts()["refused"] == 3
            state = client.state()
        assert len(server.calls) == 3
        with ChatEndpoint(cfg, REPLY) as client, pytest.warns(UserWarning, match="max_requests 3"):
            client.load(state)
            assert ask(client, [6]).tolist() == [False]
        assert len(server.calls) == 3


def test_the_budget_of_cost():
    # 100 prompt tokens at 1 and 10 of the answer at 20 per 1000: 0.1 + 0.2 a call
    with ChatServer(number_in) as server:
        cfg = cfg_of(server, concurrency=1, max_cost=1.0, prompt_price=1.0, answer_price=20.0)
        with ChatEndpoint(cfg, REPLY) as client, pytest.warns(UserWarning, match=r"max_cost 1\.0"):
            ask(client, range(10))
            assert client.wait(20.0).valid.sum() == 3
            assert client.metrics()["cost"] == pytest.approx(0.9)
    assert len(server.calls) == 3


def test_a_cost_that_is_not_told_ends_the_budget():
    with ChatServer(number_in, fault=lambda n: "no usage") as server:
        cfg = cfg_of(server, concurrency=1, max_cost=1.0, prompt_price=1.0)
        with ChatEndpoint(cfg, REPLY) as client, pytest.warns(UserWarning, match="how many tokens"):
            ask(client, range(5))
            assert client.wait(20.0).valid.sum() == 1
    assert len(server.calls) == 1


@pytest.mark.parametrize("fault", ["oversized", "endless", "hang", "drip", "drop", "truncated"])
def test_calls_whose_answer_is_not_read_cost_as_much_as_the_dearest(fault):
    # 0.3 for the only call that says so; the others take the budget to 0.9
    with ChatServer(number_in, fault=lambda n: fault if n else None) as server:
        cfg = cfg_of(server, concurrency=1, retries=1, call_timeout_s=0.3, max_answer_bytes=4096)
        cfg = replace(cfg, max_cost=1.0, prompt_price=1.0, answer_price=20.0)
        with ChatEndpoint(cfg, REPLY) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(client, range(10))
            assert client.wait(20.0).valid.sum() == 1
            assert client.state() == {
                "calls": 3,
                "cost": pytest.approx(0.9),
                "dearest": pytest.approx(0.3),
                "unknown": 0,
            }
    assert len(server.calls) == 3


@pytest.mark.parametrize("fault", ["oversized", "hang"])
def test_a_first_answer_that_is_not_read_ends_the_budget_also_after_a_resume(fault):
    with ChatServer(number_in, fault=lambda n: None if n else fault) as server:
        cfg = cfg_of(server, concurrency=1, call_timeout_s=0.3, max_answer_bytes=4096, max_cost=1.0, prompt_price=1.0)
        with ChatEndpoint(cfg, REPLY) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(client, range(5))
            assert not client.wait(20.0).valid.any()
            state = client.state()
            assert state["unknown"]
        with ChatEndpoint(cfg, REPLY) as client, pytest.warns(UserWarning, match="how many tokens"):
            client.load(state)
            assert not ask(client, [6]).any()
    assert len(server.calls) == 1


def test_the_dearest_call_is_known_after_a_resume():
    with ChatServer(number_in) as server:
        cfg = cfg_of(server, concurrency=1, max_cost=0.5, prompt_price=1.0, answer_price=20.0)
        with ChatEndpoint(cfg, REPLY) as client:
            ask(client, [1])
            client.wait(20.0)
            state = client.state()
        with ChatEndpoint(cfg, REPLY) as client, pytest.warns(UserWarning, match=r"max_cost 0\.5"):
            client.load(state)  # another call of 0.3 would take 0.3 to 0.6
            assert not ask(client, [2]).any()


@pytest.mark.parametrize("fault", [500, 400, "redirect", "echo"])
def test_calls_that_the_server_refuses_are_free(fault):
    with ChatServer(number_in, fault=lambda n: fault) as server:
        cfg = cfg_of(server, concurrency=1, retries=0, max_cost=1.0, prompt_price=1.0)
        with ChatEndpoint(cfg, REPLY) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(client, range(5))
            client.wait(20.0)
            assert client.state() == {"calls": 5, "cost": 0, "dearest": 0, "unknown": 0}


def test_metrics_are_shares_under_the_names_of_the_scoring_service():
    with (
        ChatServer(number_in, delay_s=lambda n: 0.2) as server,
        ChatEndpoint(cfg_of(server, queue_size=2), REPLY) as client,
    ):
        ask(client, [1, 1, 2, 3])
        client.wait(20.0)
        found = client.metrics()
    expected = {"hit_rate": 0.25, "dropped": 0.25, "valid": 0.75, "requests_paid": 2, "failed": 0}
    assert {name: found[name] for name in expected} == expected
    # what only processes of one's own have
    of_workers = {"accepted", "scorer_errors", "worker_restarts", "unserved", "outages"}
    assert set(ServiceCounters().scalars()) - of_workers <= set(found)


def test_forgotten_tickets_get_no_answer():
    with ChatServer(number_in, delay_s=lambda n: 0.2) as server:
        with ChatEndpoint(cfg_of(server, concurrency=1), REPLY) as client:
            ask(client, [1, 2, 3])
            time.sleep(0.1)
            client.forget(np.array([0, 2, 77]))
            assert by_ticket(client.wait(20.0)) == {1: (2.0, True)}
        assert len(server.calls) == 2


def test_misuse_is_refused():
    with ChatServer(number_in) as server:
        with ChatEndpoint(cfg_of(server), REPLY) as client:
            ask(client, [1])
            with raises_naming(ConfigError, "ticket", 0):
                ask(client, [2])
            with raises_naming(ConfigError, "tickets", "int32"):
                client.submit(np.array([1], np.int32), ["x"])
            with raises_naming(ConfigError, "pictures", 2, 1):
                client.submit(np.array([1]), ["x"], np.zeros((2, 4, 4, 3), np.uint8))
            with raises_naming(ConfigError, "picture", "float32"):
                client.submit(np.array([1]), ["x"], np.zeros((1, 4, 4, 3), np.float32))
            client.wait(20.0)
        client.close()
        with pytest.raises(RobotrlError):
            ask(client, [3], first=5)


def test_closing_does_not_wait_for_the_server():
    earlier = set(threading.enumerate())
    with ChatServer(number_in, fault=lambda n: "hang") as server:
        client = ChatEndpoint(cfg_of(server), REPLY)
        ask(client, range(8))
        while len(server.calls) < 8:
            time.sleep(0.01)
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < 10  # the server never answers
        left = set(threading.enumerate()) - earlier
        assert not [t for t in left if t.name == "robotrl-endpoint"]


def test_the_key_is_sent_and_shown_nowhere(monkeypatch, caplog, capfd):
    monkeypatch.setenv("MODEL_KEY", SECRET)
    caplog.set_level(logging.DEBUG)
    texts = []
    with ChatServer(number_in, key=SECRET) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ChatEndpoint(cfg_of(server, key_env="MODEL_KEY"), REPLY) as client:
            ask(client, [1])
            assert by_ticket(client.wait(20.0)) == {0: (1.0, True)}
            assert server.calls[0].authorization == f"Bearer {SECRET}"
            # read at each use: a changed key counts at once
            monkeypatch.setenv("MODEL_KEY", SECRET + "-new")
            ask(client, [2], first=1)
            assert not client.wait(20.0).valid.any()
            # a server that repeats the key in its error
            server.key, server.fault = None, lambda n: "echo"
            ask(client, [3], first=2)
            assert not client.wait(20.0).valid.any()
            # and a variable that is gone
            monkeypatch.delenv("MODEL_KEY")
            ask(client, [4], first=3)
            assert not client.wait(20.0).valid.any()
            gc.collect()
            inside = [client, client._cfg, client._ledger, client._budget, client._address, client._calls]
            texts += [repr(vars(one)) if hasattr(one, "__dict__") else repr(one) for one in inside]
            texts += [repr(client), repr(client._cfg), str(client.state()), str(client.metrics())]
        with raises_naming(ConfigError, "endpoint.key_env", "'MODEL_KEY'") as missing:
            ChatEndpoint(cfg_of(server, key_env="MODEL_KEY"), REPLY)
        texts.append(str(missing.value))
    assert len(caught) == 2
    out = capfd.readouterr()
    texts += [str(one.message) for one in caught] + [caplog.text, out.out, out.err]
    assert all("hunter2" not in text for text in texts)


def test_a_key_over_plain_http_is_warned_about(monkeypatch):
    monkeypatch.setenv("MODEL_KEY", SECRET)
    cfg = EndpointCfg(base_url="http://192.0.2.1/v1", model="m", key_env="MODEL_KEY")
    with pytest.warns(UserWarning, match="in the open"):
        ChatEndpoint(cfg, REPLY).close()
