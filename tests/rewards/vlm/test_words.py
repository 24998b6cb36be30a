"""Token ids of whole words."""

from __future__ import annotations

import pytest

from robotrl.errors import ConfigError
from robotrl.rewards.vlm.words import WholeWordTokenizer
from tests.kits.refusals import raises_naming


def test_ids_by_hand() -> None:
    tokenizer = WholeWordTokenizer.of(["the road is clear", "a car"])  # a car clear is road the: 1 to 6, the end is 7
    assert tokenizer.vocab_size == 8 and tokenizer.context_length == 5
    assert tokenizer(["The road is clear.", "a car"]).tolist() == [[6, 5, 4, 3, 7], [1, 2, 7, 0, 0]]


def test_the_end_has_the_highest_id_wherever_it_stands() -> None:
    tokenizer = WholeWordTokenizer.of(["one two three"])
    ids = tokenizer(["three", "one two three"])
    assert ids.argmax(dim=1).tolist() == [1, 3]


def test_unknown_words_are_named() -> None:
    tokenizer = WholeWordTokenizer.of(["the road is clear"])
    with raises_naming(ConfigError, "prompt 'the raod'", "raod", nearest="road"):
        tokenizer(["the raod"])
    with pytest.raises(ConfigError, match="prompt 'the road is the road' has 5 words: expected 1 to 4"):
        tokenizer(["the road is the road"])
    with pytest.raises(ConfigError, match="prompts are empty"):
        tokenizer([])
