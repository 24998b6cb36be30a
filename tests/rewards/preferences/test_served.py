"""Answers of a served model, against a real server on this machine."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.replies import parse_reply
from robotrl.rewards.preferences.labelers.labels import FIRST, NEITHER, SECOND
from robotrl.rewards.preferences.labelers.served import (
    GAP,
    PreferenceReply,
    ServedLabeler,
    ServedLabelerCfg,
    TextReply,
    pair_picture,
)
from tests.kits.chat_server import ChatServer
from tests.kits.preference_kit import clips_of, question


def brighter(call):
    """A model that describes two rows by their brightness, and then prefers the brighter one."""
    if call.picture is None:
        first, second = (int(word) for word in call.prompt.split("brightness ")[1].split("\n")[0].split(" against "))
        return {"preference": -1 if first == second else int(second > first)}
    half = (len(call.picture) - GAP) // 2
    rows = call.picture[:half], call.picture[half + GAP :]
    means = [int(row[row.min(2) < 255].mean()) for row in rows]  # without the white gap between pictures
    return {"text": f"brightness {means[0]} against {means[1]}"}


def labeler_of(server, answers=None, **changes):
    endpoint = EndpointCfg(base_url=server.base_url, model="small", backoff_s=0.01, answers=answers)
    return ServedLabeler(ServedLabelerCfg("a bright picture", server=replace(endpoint, **changes)))


SHADES = [(10, 200), (200, 10), (50, 50), (0, 90)]
QUESTIONS = [question(number, clips=clips_of(*shades)) for number, shades in enumerate(SHADES)]
ANSWERS = {QUESTIONS[row].key: answer for row, answer in enumerate((SECOND, FIRST, NEITHER, SECOND))}


def test_a_model_is_asked_in_two_stages_and_sees_the_goal_and_both_clips():
    with ChatServer(brighter) as server:
        labeler = labeler_of(server)
        labeler.ask(QUESTIONS)
        labeler.ask(QUESTIONS)  # what is open is not asked twice
        assert labeler.pending == 4
        assert labeler.collect(20.0) == ANSWERS and labeler.pending == 0
        labeler.close()
        assert len(server.calls) == 8 and sum(call.picture is None for call in server.calls) == 4
        assert all("a bright picture" in call.prompt for call in server.calls)
        assert server.calls[0].picture.shape == (8 + GAP + 8, 8 + GAP + 8, 3)
        assert labeler.metrics()["calls"] == 8


def test_faults_and_delays_cost_the_questions_that_they_hit_and_no_other():
    faults = {0: "garbage", 1: 500, 2: "other form", 5: "drop"}
    with ChatServer(brighter, fault=faults.get, delay_s=lambda n: 0.05 * (n % 3)) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labeler = labeler_of(server, concurrency=1, retries=2)
        labeler.ask(QUESTIONS)
        found = labeler.collect(20.0)
        metrics = labeler.metrics()
        labeler.close()
    # call 0 is no JSON and call 2 of another form: two questions are lost; 500 and a lost connection are tried again
    assert len(found) == 2 and found.items() <= ANSWERS.items()
    assert metrics["unanswered"] == 2 and metrics["invalid"] == 2 and metrics["retries"] == 2


def test_what_was_paid_for_is_not_paid_twice_and_the_budget_is_that_of_both_stages(tmp_path):
    with ChatServer(brighter) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = labeler_of(server, str(tmp_path), max_requests=5, concurrency=1)
        first.ask(QUESTIONS)
        some = first.collect(20.0)
        paid = first.state()
        first.close()
        assert len(server.calls) == 5 and paid["calls"] == 5 and len(some) < 4
        again = labeler_of(server, str(tmp_path), max_requests=8, concurrency=1)
        again.load(paid)
        again.ask(QUESTIONS)
        assert again.collect(20.0) == ANSWERS
        again.close()
        assert len(server.calls) == 8 and again.state()["calls"] == 8


def test_a_description_is_data_and_short():
    reply = TextReply(12)
    numbers = parse_reply('{"text": "left, \\u00fc"}', reply)
    assert numbers is not None and len(numbers) == 13 and reply.text(numbers) == "left, ü"
    for text in ('{"text": "more than twelve"}', '{"text": " "}', '{"text": 3}', '{"text": "a", "b": 1}', '"a"', "a"):
        assert parse_reply(text, reply) is None
    assert parse_reply('{"text": "\\ud800"}', reply) is None  # half of a surrogate pair


@pytest.mark.parametrize(
    "text", ['{"preference": 2}', '{"preference": true}', '{"preference": 1.0}', "1", '{"choice": 1}']
)
def test_a_label_of_another_form_is_none(text):
    assert parse_reply(text, PreferenceReply()) is None


def test_the_picture_of_a_pair_has_a_row_for_each_segment():
    picture = pair_picture(clips_of(10, 200, frames=3))
    assert picture.shape == (8 + GAP + 8, 3 * 8 + 2 * GAP, 3)
    assert (picture[:8, :8] == 10).all() and (picture[-8:, -8:] == 200).all() and (picture[8 : 8 + GAP] == 255).all()
    assert picture.dtype == np.uint8
