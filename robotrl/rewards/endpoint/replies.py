"""Replies that a caller asks for: strict JSON of one form, and the numbers in it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError, check_count, out_of_range
from robotrl.utils.files import parse_json

MOST_CHOICES, MOST_NUMBERS = 10_000, 10_000


class ReplySchema(Protocol):
    """Form of an answer; nothing else is accepted."""

    @property
    def num_outputs(self) -> int:
        """K, the numbers of an answer."""
        ...

    def instruction(self) -> str:
        """Sentence for the prompt that describes the form."""
        ...

    def json_schema(self) -> dict[str, Any]:
        """JSON schema for servers that constrain the answer."""
        ...

    def numbers(self, value: object) -> NDArray[np.float32] | None:
        """Numbers (K,) of a parsed answer; None if it has another form."""
        ...


@dataclass(frozen=True)
class ChoiceReply:
    """One integer, 0 to `count` - 1, as `{"choice": 2}`."""

    count: int

    def __post_init__(self) -> None:
        check_count("count", self.count, 2, MOST_CHOICES, "a number of choices")

    @property
    def num_outputs(self) -> int:
        """See `ReplySchema.num_outputs`."""
        return 1

    def instruction(self) -> str:
        """See `ReplySchema.instruction`."""
        return f'Answer with JSON only: {{"choice": N}}, where N is a whole number from 0 to {self.count - 1}.'

    def json_schema(self) -> dict[str, Any]:
        """See `ReplySchema.json_schema`."""
        return _object("choice", {"type": "integer", "minimum": 0, "maximum": self.count - 1})

    def numbers(self, value: object) -> NDArray[np.float32] | None:
        """See `ReplySchema.numbers`."""
        found = _only(value, "choice")
        if type(found) is not int or not 0 <= found < self.count:
            return None
        return np.array([found], np.float32)


@dataclass(frozen=True)
class WordReply:
    """One of some words, as `{"answer": "safe"}`; its number is the word's place."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        check_count("words", len(self.words), 2, MOST_CHOICES, "a number of words")
        if len(set(self.words)) < len(self.words) or not all(word.strip() for word in self.words):
            raise out_of_range("words", self.words, "different words, none of them empty")

    @property
    def num_outputs(self) -> int:
        """See `ReplySchema.num_outputs`."""
        return 1

    def instruction(self) -> str:
        """See `ReplySchema.instruction`."""
        named = ", ".join(json.dumps(word) for word in self.words)
        return f'Answer with JSON only: {{"answer": WORD}}, where WORD is one of {named}.'

    def json_schema(self) -> dict[str, Any]:
        """See `ReplySchema.json_schema`."""
        return _object("answer", {"type": "string", "enum": list(self.words)})

    def numbers(self, value: object) -> NDArray[np.float32] | None:
        """See `ReplySchema.numbers`."""
        found = _only(value, "answer")
        if not isinstance(found, str) or found not in self.words:
            return None
        return np.array([self.words.index(found)], np.float32)


@dataclass(frozen=True)
class NumbersReply:
    """A list of numbers, each in a range of its own, as `{"values": [0.5, -1.0]}`."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        check_count("low", len(self.low), 1, MOST_NUMBERS, "as many bounds as numbers")
        check_count("high", len(self.high), len(self.low), len(self.low), "as many bounds as low has")
        for number, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not -math.inf < low < high < math.inf:
                raise out_of_range(f"low[{number}]", low, f"a finite number below high, {high}")

    @property
    def num_outputs(self) -> int:
        """See `ReplySchema.num_outputs`."""
        return len(self.low)

    def instruction(self) -> str:
        """See `ReplySchema.instruction`."""
        ranges = ", ".join(f"{low:g} to {high:g}" for low, high in zip(self.low, self.high, strict=True))
        return (
            f'Answer with JSON only: {{"values": [...]}}, a list of {len(self.low)} numbers in the ranges {ranges},'
            " in this order."
        )

    def json_schema(self) -> dict[str, Any]:
        """See `ReplySchema.json_schema`."""
        count = len(self.low)
        number = {"type": "number", "minimum": min(self.low), "maximum": max(self.high)}
        return _object("values", {"type": "array", "items": number, "minItems": count, "maxItems": count})

    def numbers(self, value: object) -> NDArray[np.float32] | None:
        """See `ReplySchema.numbers`."""
        found = _only(value, "values")
        if not isinstance(found, list):
            return None
        items: list[object] = found  # pyright: ignore[reportUnknownVariableType]
        if len(items) != len(self.low):
            return None
        for item, low, high in zip(items, self.low, self.high, strict=True):
            if type(item) not in (int, float) or not isinstance(item, int | float) or not low <= item <= high:
                return None
        return np.array(items, np.float32)


def parse_reply(text: str, reply: ReplySchema) -> NDArray[np.float32] | None:
    """Numbers (K,) of the text that a model answered; None if it is not JSON of exactly that form."""
    try:
        return reply.numbers(parse_json(text.encode("utf-8", "surrogatepass"), "answer"))
    except DataError:
        return None


def schema_text(reply: ReplySchema) -> str:
    """Text that differs between different forms."""
    return json.dumps([type(reply).__name__, reply.json_schema(), reply.instruction()], sort_keys=True)


def _object(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}


def _only(value: object, key: str) -> object:
    """Value of the only key of an object; None if it is something else."""
    if not isinstance(value, dict):
        return None
    found: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
    return found[key] if found.keys() == {key} else None
