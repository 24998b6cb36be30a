"""Instruction grammar of the tabletop: objects, instruction families, sentences, and held-out compositions.

A composition is a family with its objects, e.g. (push-to, red block, green mat). A fixed fifth of the compositions of
each family is held out: a policy trained without them knows each word and each family, but not these combinations.
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

COLORS = ("red", "green", "blue")
SHAPES = ("block", "can")
MOVABLES = tuple(f"{color} {shape}" for shape in SHAPES for color in COLORS)
"""Movable objects, numbered 0 to 5."""
MATS = tuple(f"{color} mat" for color in COLORS)
"""Flat targets, numbered 0 to 2."""
DIRECTIONS = ("left", "right", "forward", "back")
"""Directions as seen from behind the arm: forward is +x of the world, left is +y."""
SIDES = ("left of", "right of", "behind", "in front of")
"""Sides of an object, in the order of `DIRECTIONS`; behind it is away from the arm."""
HELD_OUT_SHARE = 0.2
Compositions = Literal["seen", "held-out", "all"]
COMPOSITIONS: tuple[Compositions, ...] = ("seen", "held-out", "all")
_DRAW = 0x7AB1E


class InstructionFamily(IntEnum):
    """Families of instructions."""

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
        """Name in options and tables."""
        return self.name.lower().replace("_", "-")


FAMILIES = tuple(family.title for family in InstructionFamily)
PUSHES = (InstructionFamily.PUSH, InstructionFamily.PUSH_TO, InstructionFamily.GATHER)
"""Families in which an object is pushed and must not be lifted."""

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
"""Sentence templates of each family; each start uses one."""


class Composition(NamedTuple):
    """Meaning of an instruction, without its wording."""

    family: InstructionFamily
    a: int
    """Object that is moved or pointed at: index into `MOVABLES`."""
    b: int = -1
    """Reference object, or second object to sort; -1 if none."""
    mat: int = -1
    """Mat that the object is moved to or off; -1 if none."""
    direction: int = -1
    """Index into `DIRECTIONS`; -1 if none."""

    def say(self, way: int = 0) -> str:
        """Text of the instruction; `way` is the index of the family's sentence template."""
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
        # a can looks the same when turned
        return [Composition(family, a) for a in things if MOVABLES[a].endswith("block")]
    if family in (InstructionFamily.PUSH_TO, InstructionFamily.PUT_ON, InstructionFamily.CLEAR):
        return [Composition(family, a, mat=mat) for a in things for mat in range(len(MATS))]
    if family == InstructionFamily.PUSH:
        return [Composition(family, a, direction=d) for a in things for d in range(len(DIRECTIONS))]
    if family == InstructionFamily.BESIDE:
        return [Composition(family, a, b, direction=d) for a, b in pairs for d in range(len(DIRECTIONS))]
    if family == InstructionFamily.SORT:
        return [Composition(family, a, b) for a, b in pairs if color(a) != color(b)]
    return [Composition(family, a, b) for a, b in pairs]


Number = TypeVar("Number", int, NDArray[np.int64])


def color(movable: Number) -> Number:
    """Colour index of one or many movable objects, which is also the index of the mat of that colour."""
    return movable % len(COLORS)


def is_block(movable: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Flags of objects that are blocks, not cans."""
    return movable < len(COLORS)


@functools.cache
def compositions(family: InstructionFamily, which: Compositions = "all") -> tuple[Composition, ...]:
    """Compositions of a family: the "seen" ones, the "held-out" ones, or "all".

    Held out is the fifth of them (at least one) with the smallest numbers in a fixed random draw.

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
    """Families by name, as a list or a comma-separated text; all families if None.

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
"""Words by number; number 0 is padding."""
MAX_WORDS = max(
    len(one.say(way).split())
    for family in InstructionFamily
    for one in compositions(family)
    for way in range(len(SENTENCES[family]))
)
"""Number of words of the longest instruction."""
_NUMBER = {word: number for number, word in enumerate(VOCABULARY)}


def encode(text: str) -> NDArray[np.int32]:
    """Word numbers (MAX_WORDS,) of an instruction, padded with 0.

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
    """Text of an instruction's word numbers (MAX_WORDS,)."""
    return " ".join(VOCABULARY[int(n)] for n in numbers if n)
