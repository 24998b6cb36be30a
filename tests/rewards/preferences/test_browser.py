"""The page in the browser, over real HTTP."""

import io
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image

from robotrl.errors import ConfigError
from robotrl.rewards.preferences.labelers.browser import BrowserCfg, BrowserLabeler
from robotrl.rewards.preferences.labelers.labels import FIRST, NEITHER
from tests.kits.preference_kit import clips_of, question

QUESTIONS = [question(number, clips=clips_of(10 * number, 20 * number, frames=3)) for number in (1, 2, 3)]


@pytest.fixture
def labeler():
    found = BrowserLabeler(BrowserCfg(goal="Which drives better?"))
    yield found
    found.close()


def get(labeler, path, address=None):
    with urllib.request.urlopen((address or labeler.address) + path, timeout=10) as response:
        return response.read()


def post(labeler, body, **headers):
    request = urllib.request.Request(labeler.address + "answer", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


def status(call):
    with pytest.raises(urllib.error.HTTPError) as error:
        call()
    return error.value.code


def test_a_person_sees_both_clips_and_answers_pair_by_pair(labeler):
    assert b"Left is better" in get(labeler, "")
    assert json.loads(get(labeler, "present"))["pair"] is None
    labeler.ask(QUESTIONS)
    shown = json.loads(get(labeler, "present"))
    assert shown["goal"] == "Which drives better?" and shown["frames"] == 3 and shown["pair"] == QUESTIONS[0].key.hex()
    for side, shade in ((0, 10), (1, 20)):
        strip = np.asarray(Image.open(io.BytesIO(get(labeler, f"clip/{shown['pair']}/{side}.png"))))
        assert strip.shape == (3 * 8, 8, 3) and (strip == shade).all()
    following = post(labeler, {"pair": shown["pair"], "answer": 0})
    assert following["pair"] == QUESTIONS[1].key.hex() and (following["given"], following["asked"]) == (1, 3)
    # skipped: it comes again after the others
    assert post(labeler, {"pair": following["pair"], "answer": None})["pair"] == QUESTIONS[2].key.hex()
    last = post(labeler, {"pair": QUESTIONS[2].key.hex(), "answer": -1})
    assert last["pair"] == QUESTIONS[1].key.hex() and labeler.pending == 1
    assert labeler.collect() == {QUESTIONS[0].key: FIRST, QUESTIONS[2].key: NEITHER} and labeler.collect() == {}


@pytest.mark.parametrize(
    "body",
    [
        {"pair": "00", "answer": 0},
        {"pair": QUESTIONS[0].key.hex(), "answer": 2},
        {"pair": QUESTIONS[0].key.hex(), "answer": True},
        {"pair": QUESTIONS[0].key.hex(), "answer": 0, "more": 1},
        {"pair": [1], "answer": 0},
        [1],
    ],
)
def test_an_answer_of_another_form_is_refused(labeler, body):
    labeler.ask(QUESTIONS)
    assert status(lambda: post(labeler, body)) == 400
    assert labeler.collect() == {} and labeler.pending == 3


def test_other_pages_and_other_machines_get_nothing(labeler):
    labeler.ask(QUESTIONS)
    root = f"http://127.0.0.1:{labeler.server_port}/"
    assert status(lambda: get(labeler, "", root)) == 404
    assert status(lambda: get(labeler, "present", f"{root}wrong/")) == 404
    assert status(lambda: post(labeler, {"pair": QUESTIONS[0].key.hex(), "answer": 0}, Host="evil.example")) == 404
    assert status(lambda: get(labeler, "clip/00/0.png")) == 404
    assert status(lambda: post(labeler, {"pair": "0" * 2000, "answer": 0})) == 413
    assert labeler.server_address[0] == "127.0.0.1" and labeler.pending == 3


def test_a_taken_port_is_named(labeler):
    with pytest.raises(ConfigError, match=str(labeler.server_port)):
        BrowserLabeler(BrowserCfg(port=labeler.server_port))
