"""What can be said to the arm: things, families of instructions, their sentences, and which compositions are held out.

A composition is a family with what it is about: (push-to, red block, green mat). A fifth of the compositions of each
family is held out, by a fixed draw: a policy that was trained without them knows each word and each family, but not
these together.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, unknown
from robotrl.fn.random import counter_rng

COLOURS = ("red", "green", "blue")
SHAPES = ("block", "can")
MOVABLES = tuple(f"{colour} {shape}" for shape in SHAPES for colour in COLOURS)
"""Things that can be moved, numbered 0 to 5."""
MATS = tuple(f"{colour} mat" for colour in COLOURS)
"""Flat targets, numbered 0 to 2."""
DIRECTIONS = ("left", "right", "forward", "back")
"""As seen from behind the arm: forward is +x of the world, left +y."""
SIDES = ("left of", "right of", "behind", "in front of")
"""Of a thing, in the order of the directions; behind it is away from the arm."""
HELD_OUT_SHARE = 0.2
Compositions = Literal["seen", "held-out", "all"]
COMPOSITIONS: tuple[Compositions, ...] = ("seen", "held-out", "all")
_DRAW = 0x7AB1E


class InstructionFamily(IntEnum):
    """Kinds of instructions."""

    POINT = 0
    LIFT = 1
    PUSH_TO = 2
    PUSH = 3
    PUT_ON = 4
    STACK = 5
    NEXT_TO = 6
    BESIDE = 7
    GATHER = 8
    SORT = 9
    CLEAR = 10
    TURN = 11
    CENTRE = 12

    @property
    def title(self) -> str:
        """As options and tables name it."""
        return self.name.lower().replace("_", "-")


FAMILIES = tuple(family.title for family in InstructionFamily)
PUSHES = (InstructionFamily.PUSH, InstructionFamily.PUSH_TO, InstructionFamily.GATHER)
"""Families in which a thing is moved and never lifted."""

SENTENCES: dict[InstructionFamily, tuple[str, ...]] = {
    InstructionFamily.POINT: ("point at the {a}", "show me the {a}"),
    InstructionFamily.LIFT: ("pick up the {a}", "lift the {a}"),
    InstructionFamily.PUSH_TO: ("push the {a} to the {m}", "slide the {a} onto the {m}"),
    InstructionFamily.PUSH: ("push the {a} {d}", "slide the {a} {d}"),
    InstructionFamily.PUT_ON: ("put the {a} on the {m}", "place the {a} on the {m}"),
    InstructionFamily.STACK: ("stack the {a} on the {b}", "put the {a} on top of the {b}"),
    InstructionFamily.NEXT_TO: ("put the {a} next to the {b}", "place the {a} near the {b}"),
    InstructionFamily.BESIDE: ("put the {a} {s} the {b}", "place the {a} {s} the {b}"),
    InstructionFamily.GATHER: ("push the {a} against the {b}", "slide the {a} against the {b}"),
    InstructionFamily.SORT: (
        "sort the {a} and the {b} by colour",
        "put the {a} and the {b} on the mats of their colours",
    ),
    InstructionFamily.CLEAR: ("take the {a} off the {m}", "remove the {a} from the {m}"),
    InstructionFamily.TURN: ("turn the {a}", "rotate the {a}"),
    InstructionFamily.CENTRE: ("put the {a} in the middle", "place the {a} in the middle"),
}
"""Ways to say each; a start has one of them."""


class Composition(NamedTuple):
    """An instruction but for its wording."""

    family: InstructionFamily
    a: int
    """The thing that is moved, or pointed at: a row of `MOVABLES`."""
    b: int = -1
    """The thing that it is brought to, or the second one to sort; -1 without."""
    mat: int = -1
    """The mat that it is brought to or off; -1 without."""
    direction: int = -1
    """A row of `DIRECTIONS`, -1 without."""

    def say(self, way: int = 0) -> str:
        """The instruction in words, in one of the family's `ways`."""
        words = {
            "a": MOVABLES[self.a],
            "b": MOVABLES[self.b],
            "m": MATS[self.mat],
            "d": DIRECTIONS[self.direction],
            "s": SIDES[self.direction],
        }
        sentences = SENTENCES[self.family]
        return sentences[way % len(sentences)].format(**words)


def _of_family(family: InstructionFamily) -> list[Composition]:
    things, pairs = range(len(MOVABLES)), list(itertools.permutations(range(len(MOVABLES)), 2))
    if family in (InstructionFamily.POINT, InstructionFamily.LIFT, InstructionFamily.CENTRE):
        return [Composition(family, a) for a in things]
    if family == InstructionFamily.TURN:
        # a turned can looks as before
        return [Composition(family, a) for a in things if MOVABLES[a].endswith("block")]
    if family in (InstructionFamily.PUSH_TO, InstructionFamily.PUT_ON, InstructionFamily.CLEAR):
        return [Composition(family, a, mat=mat) for a in things for mat in range(len(MATS))]
    if family == InstructionFamily.PUSH:
        return [Composition(family, a, direction=d) for a in things for d in range(len(DIRECTIONS))]
    if family == InstructionFamily.BESIDE:
        return [Composition(family, a, b, direction=d) for a, b in pairs for d in range(len(DIRECTIONS))]
    if family == InstructionFamily.SORT:
        return [Composition(family, a, b) for a, b in pairs if colour(a) != colour(b)]
    return [Composition(family, a, b) for a, b in pairs]


Number = TypeVar("Number", int, NDArray[np.int64])


def colour(movable: Number) -> Number:
    """The colour of a movable thing, or of many; it is also the number of the mat of that colour."""
    return movable % len(COLOURS)


def is_block(movable: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether things are blocks, and not cans."""
    return movable < len(COLOURS)


@functools.cache
def compositions(family: InstructionFamily, which: Compositions = "all") -> tuple[Composition, ...]:
    """The compositions of a family: those that are "seen", those "held-out", or "all".

    The held-out ones are the fifth of them, one at least, with the smallest numbers in a fixed draw.

    Raises:
        ConfigError: `which` is none of these.
    """
    if which not in COMPOSITIONS:
        raise unknown("compositions", str(which), COMPOSITIONS)
    every = _of_family(family)
    if which == "all":
        return tuple(every)
    draw = counter_rng.uniform(_DRAW + int(family), np.arange(len(every)), 1)[:, 0]
    count = max(1, round(HELD_OUT_SHARE * len(every)))
    held_out = set(np.argsort(draw, kind="stable")[:count].tolist())
    return tuple(one for i, one in enumerate(every) if (i in held_out) == (which == "held-out"))


def chosen(families: Sequence[str] | str | None) -> tuple[InstructionFamily, ...]:
    """Families by their names, or a text with commas between them; all of them without.

    Raises:
        ConfigError: an unknown name, one named twice, or none.
    """
    if families is None:
        return tuple(InstructionFamily)
    if isinstance(families, str):
        families = families.split(",")
    for name in families:
        if name not in FAMILIES:
            raise unknown("family", name, FAMILIES)
    if not families or len(set(families)) != len(families):
        raise ConfigError(f"families is {tuple(families)!r}: expected each name once, and one or more")
    return tuple(InstructionFamily(FAMILIES.index(name)) for name in families)


def _words() -> tuple[str, ...]:
    said = (
        one.say(way)
        for family in InstructionFamily
        for one in compositions(family)
        for way in range(len(SENTENCES[family]))
    )
    return ("", *sorted({word for sentence in said for word in sentence.split()}))


VOCABULARY = _words()
"""Words by number; 0 stands for none."""
MAX_WORDS = max(
    len(one.say(way).split())
    for family in InstructionFamily
    for one in compositions(family)
    for way in range(len(SENTENCES[family]))
)
"""Words of the longest instruction."""
_NUMBER = {word: number for number, word in enumerate(VOCABULARY)}


def encode(text: str) -> NDArray[np.int32]:
    """Word numbers (MAX_WORDS,) of an instruction, 0 after its end.

    Raises:
        ConfigError: an unknown word, no word, or more words than the longest instruction has.
    """
    words = text.lower().split()
    if not 1 <= len(words) <= MAX_WORDS:
        raise ConfigError(f"instruction {text!r} has {len(words)} words: expected 1 to {MAX_WORDS}")
    out = np.zeros(MAX_WORDS, np.int32)
    for i, word in enumerate(words):
        if word not in _NUMBER:
            raise unknown("word", word, VOCABULARY[1:])
        out[i] = _NUMBER[word]
    return out


def decode(numbers: NDArray[np.integer]) -> str:
    """The instruction of word numbers (MAX_WORDS,)."""
    return " ".join(VOCABULARY[int(n)] for n in numbers if n)
