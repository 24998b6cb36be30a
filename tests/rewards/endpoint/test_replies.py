import numpy as np
import pytest

from robotrl.errors import ConfigError
from robotrl.rewards.endpoint.replies import ChoiceReply, NumbersReply, WordReply, parse_reply
from tests.kits.refusals import raises_naming


@pytest.mark.parametrize("text, number", [('{"choice": 0}', 0), (' {"choice": 3}\n', 3)])
def test_a_choice(text, number):
    found = parse_reply(text, ChoiceReply(4))
    assert found is not None and found.dtype == np.float32 and found.tolist() == [number]


NOT_A_CHOICE = """
{"choice": 4}
{"choice": -1}
{"choice": 1.0}
{"choice": true}
{"choice": "1"}
{"choice": null}
{"choice": NaN}
{"choice": [1]}
{"choice": 1, "why": "near"}
{"choice": 1, "choice": 2}
{"Choice": 1}
{}
1
[1]
choice 1
{"choice": 1} {"choice": 1}
```json {"choice": 1}```
{"choice": 1
"""


@pytest.mark.parametrize(
    "text", [*NOT_A_CHOICE.strip().splitlines(), "", "\ud800", "[" * 50_000, '{"choice": ' + "9" * 5000 + "}"]
)
def test_anything_else_is_no_choice(text):
    assert parse_reply(text, ChoiceReply(4)) is None


def test_one_of_some_words():
    reply = WordReply(("safe", "a risk", "danger"))
    for at, word in enumerate(reply.words):
        found = parse_reply(f'{{"answer": "{word}"}}', reply)
        assert found is not None and found.tolist() == [at]
    for text in ('{"answer": "Safe"}', '{"answer": "safe "}', '{"answer": 0}', '{"answer": null}', '"safe"', "safe"):
        assert parse_reply(text, reply) is None, text
    assert '"safe", "a risk", "danger"' in reply.instruction()
    assert reply.json_schema()["properties"]["answer"]["enum"] == ["safe", "a risk", "danger"]


@pytest.mark.parametrize("words", [("safe",), ("safe", "safe"), ("safe", " ")])
def test_words_that_cannot_be_told_apart_are_refused(words):
    with raises_naming(ConfigError, "words"):
        WordReply(words)


def test_numbers_in_their_ranges():
    reply = NumbersReply((-1.0, 0.0), (1.0, 5.0))
    found = parse_reply('{"values": [-1, 4.5]}', reply)
    assert found is not None and found.tolist() == [-1.0, 4.5]
    for text in (
        '{"values": [-1.01, 0]}',
        '{"values": [0, 5.5]}',
        '{"values": [0]}',
        '{"values": [0, 1, 2]}',
        '{"values": [0, true]}',
        '{"values": [0, "1"]}',
        '{"values": [0, Infinity]}',
        '{"values": [0, 1e999]}',
        '{"values": {"0": 0, "1": 1}}',
        '{"values": null}',
    ):
        assert parse_reply(text, reply) is None, text


def test_forms_that_cannot_be():
    with raises_naming(ConfigError, "count", 1, 2):
        ChoiceReply(1)
    with raises_naming(ConfigError, "low[1]", 2.0, 2.0):
        NumbersReply((0.0, 2.0), (1.0, 2.0))
    with raises_naming(ConfigError, "high", 2):
        NumbersReply((0.0, 0.0), (1.0,))


def test_a_form_describes_itself():
    assert "0 to 3" in ChoiceReply(4).instruction()
    assert ChoiceReply(4).json_schema()["properties"]["choice"] == {"type": "integer", "minimum": 0, "maximum": 3}
    reply = NumbersReply((-1.0, 0.0), (1.0, 5.0))
    assert "-1 to 1, 0 to 5" in reply.instruction()
    assert reply.json_schema()["properties"]["values"]["minItems"] == 2
