"""Gymnasium's spaces as array specs, and arrays between the two.

An observation space becomes named arrays (`leaves`); action spaces are in `commands`. Everything here is about data:
nothing steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims.gymnasium_sim.words import Words
from robotrl.spec import INSTRUCTION, Spec

Array = NDArray[Any]
Path = tuple[str | int, ...]

UNIT_UNKNOWN = "?"
"""Gymnasium's spaces carry no units."""
STATE = "state"
"""The array of a space that has no parts."""
FEW = 16
"""Channels of a picture at most; a side of a picture is longer."""
COLOURS = (1, 3, 4)
"""Counts of channels that leave no doubt."""
MOST_VALUES = 4096
"""Values of a category at most: each is a column."""
EXACT = 2**24
"""Whole numbers up to this are exact in float32."""
BY_WRAPPER = "a wrapper (option wrapper=MODULE:CALLABLE) can make one of it"


class Leaf(NamedTuple):
    """One array of an observation space."""

    key: str
    """Its name in `observation_spec`."""
    path: Path
    """Keys and places that lead to it in the environment's observation."""
    raw_shape: tuple[int, ...]
    """Shape of what the environment gives for it."""
    spec: Spec
    convert: Callable[[Array], Array]
    """(N, *raw_shape) as the environment gives it to (N, *spec.shape)."""
    note: str = ""
    """What was done to it that its user should know."""


def leaves(space: Space[Any], top: str = STATE, structure: Mapping[str, int] | None = None) -> tuple[Leaf, ...]:
    """The arrays of an observation space, in the space's order.

    Box: float32 of the same shape; bytes of three axes are pictures, channels last, and those of two long axes pictures
    of one channel. Discrete and MultiDiscrete: one column a value, 1 where it holds. MultiBinary: zeros and ones.
    Words: their numbers. Dict and Tuple: one array for each part; names of nested parts are joined with "_".

    Args:
        space: the space of one environment.
        top: name of the array of a space that has no parts.
        structure: groups of columns with their lengths, in order, that name the columns of a flat Box.

    Raises:
        ConfigError: a space of another kind, one that no policy can read (see docs/sims/gymnasium.md), no part, or two
            parts with one name.
    """
    found = tuple(_walk(space, (), top, structure))
    keys = [leaf.key for leaf in found]
    if not keys:
        raise ConfigError(f"observation is a {type(space).__name__} space without parts: expected one or more")
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"observation space has two parts that are called {key!r}: expected distinct names")
    return found


def pick(observation: Any, path: Path) -> Any:
    """The part of an observation, or of a batch of them, that `path` leads to."""
    for step in path:
        observation = observation[step]
    return observation


def key_of(path: Path, top: str = STATE) -> str:
    """The name of the array that `path` leads to; `top` stands for a space that has no parts, and before a tuple's."""
    prefix = (top,) if not path or isinstance(path[0], int) else ()
    return "_".join(str(step) for step in (*prefix, *path))


def _walk(space: Space[Any], path: Path, top: str, structure: Mapping[str, int] | None) -> list[Leaf]:
    key = key_of(path, top)
    if isinstance(space, spaces.Dict):
        # what has no parts becomes one beside an instruction
        inside = {top: structure} if not path else {}
        parts = space.spaces.items()
        return [leaf for name, part in parts for leaf in _walk(part, (*path, name), top, inside.get(name))]
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return [leaf for i, part in parts for leaf in _walk(part, (*path, i), top, None)]
    if isinstance(space, Words):
        return [Leaf(key_of(path, INSTRUCTION), path, space.shape, _words(space), lambda raw: raw.astype(np.int32))]
    if isinstance(space, spaces.Box):
        return [_box(space, path, key, structure)]
    if isinstance(space, spaces.Discrete):
        start, n = int(space.start), _countable(key, int(space.n))
        names = tuple(f"{key}_is_{start + i}" for i in range(n))
        return [Leaf(key, path, (), _flags(names), lambda raw: one_hot(raw[:, None], (start,), (n,)))]
    if isinstance(space, spaces.MultiDiscrete):
        return [_multi_discrete(space, path, key)]
    if isinstance(space, spaces.MultiBinary):
        width = _countable(key, int(np.prod(space.shape)))
        names = tuple(f"{key}_{i}" for i in range(width))
        return [
            Leaf(key, path, space.shape, _flags(names), lambda raw: raw.reshape(len(raw), width).astype(np.float32))
        ]
    raise ConfigError(
        f"observation {key!r} is a {type(space).__name__} space: expected Box, Discrete, MultiDiscrete, MultiBinary, or"
        f" Dict or Tuple of these; {BY_WRAPPER}"
    )


def _countable(key: str, count: int) -> int:
    """A number of columns that is not absurd.

    Raises:
        ConfigError: it is.
    """
    if not 1 <= count <= MOST_VALUES:
        raise ConfigError(
            f"observation {key!r} has {count} values, and each would be a column: expected 1 to {MOST_VALUES};"
            f" {BY_WRAPPER}"
        )
    return count


def _box(space: spaces.Box, path: Path, key: str, structure: Mapping[str, int] | None) -> Leaf:
    if not all(space.shape):
        raise ConfigError(
            f"observation {key!r} has shape {space.shape}, no element: expected one or more; {BY_WRAPPER}"
        )
    dtype = np.dtype(space.dtype or np.float32)
    if dtype == np.uint8 and len(space.shape) == 3:
        return _picture(space, path, key)
    if dtype == np.uint8 and len(space.shape) == 2 and min(space.shape) > FEW:
        return _bytes(space, path, key, lambda raw: raw[..., None])
    if len(space.shape) > 2:
        expected = "bytes (uint8) of three axes, a picture, or numbers of one or two"
        raise ConfigError(
            f"observation {key!r} is {dtype} of shape {space.shape}: expected {expected}; {BY_WRAPPER}, such as"
            " gymnasium.wrappers:FlattenObservation where they are numbers"
        )
    if dtype.kind in "iu" and dtype.itemsize > 2 and _beyond(space):
        raise ConfigError(
            f"observation {key!r} is {dtype} with bounds {space.low.min()} to {space.high.max()}: expected within"
            f" +-{EXACT}, beyond which float32 rounds whole numbers; {BY_WRAPPER}"
        )
    shape = space.shape or (1,)
    width = shape[-1]
    names = tuple(f"{key}_{i}" for i in range(width))
    if structure is not None and len(shape) == 1 and sum(structure.values()) == width:
        names = tuple(f"{group}_{i}" for group, length in structure.items() for i in range(length))
    low, high = _bounds(space.low.reshape(-1, width), space.high.reshape(-1, width))
    spec = Spec(shape=shape, names=names, units=(UNIT_UNKNOWN,) * width, low=low, high=high)
    return Leaf(key, path, space.shape, spec, lambda raw: raw.reshape(len(raw), *shape).astype(np.float32))


def _beyond(space: spaces.Box) -> bool:
    return bool(max(abs(int(space.low.min())), abs(int(space.high.max()))) > EXACT)


def _bounds(low: Array, high: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """One bound for each element of the last axis of (rows, D): the widest over the rows; beyond float32 is none."""
    with np.errstate(over="ignore"):
        ends = low.min(axis=0).astype(np.float32), high.max(axis=0).astype(np.float32)
    return tuple(float(bound) for bound in ends[0]), tuple(float(bound) for bound in ends[1])


def _picture(space: spaces.Box, path: Path, key: str) -> Leaf:
    """Bytes of three axes: channels last, or turned so that they are.

    Raises:
        ConfigError: no axis, or more than one, can be the channels.
    """
    first, _, last = space.shape
    in_front, behind = first <= FEW, last <= FEW
    doubtful = in_front and behind and last not in COLOURS and first in COLOURS
    if doubtful or not (in_front or behind):
        why = "its first axis may be the channels, too" if doubtful else f"no end of it has {FEW} or fewer"
        raise ConfigError(
            f"observation {key!r} is bytes of shape {space.shape}: expected a picture (height, width, channels), and"
            f" {why}; a wrapper (option wrapper=MODULE:CALLABLE) that calls numpy.moveaxis puts channels last"
        )
    if behind:
        return _bytes(space, path, key, lambda raw: raw)
    turned = _bytes(space, path, key, lambda raw: raw.transpose(0, 2, 3, 1))
    return turned._replace(
        note=f"observation {key!r} of shape {space.shape} is taken as {first} channels in front of a picture, and"
        f" turned to {turned.spec.shape}, channels last"
    )


def _bytes(space: spaces.Box, path: Path, key: str, turn: Callable[[Array], Array]) -> Leaf:
    """A picture that is made from bytes (N, *space.shape) by `turn`."""
    low, high = (turn(bounds[None]).reshape(-1, turn(bounds[None]).shape[-1]) for bounds in (space.low, space.high))
    shape = turn(space.low[None]).shape[1:]
    ends = _bounds(low, high)
    names = tuple(f"{key}_{i}" for i in range(shape[-1]))
    spec = Spec(shape, names, (UNIT_UNKNOWN,) * shape[-1], *ends, dtype="uint8")
    return Leaf(key, path, space.shape, spec, lambda raw: np.array(turn(raw), np.uint8, order="C"))


def _multi_discrete(space: spaces.MultiDiscrete, path: Path, key: str) -> Leaf:
    counts = tuple(int(n) for n in space.nvec.flat)
    _countable(key, sum(counts))
    starts = tuple(int(start) for start in space.start.flat)
    names = tuple(
        f"{key}_{i}_is_{start + value}"
        for i, (n, start) in enumerate(zip(counts, starts, strict=True))
        for value in range(n)
    )
    return Leaf(
        key,
        path,
        space.shape,
        _flags(names),
        lambda raw: one_hot(raw.reshape(len(raw), len(counts)), starts, counts),
    )


def _words(space: Words) -> Spec:
    width = space.shape[0]
    names = tuple(f"word_{i}" for i in range(width))
    high = float(len(space.words) - 1)
    return Spec((width,), names, ("1",) * width, (0.0,) * width, (high,) * width, "int32", space.words)


def _flags(names: Sequence[str]) -> Spec:
    width = len(names)
    return Spec((width,), tuple(names), ("1",) * width, (0.0,) * width, (1.0,) * width)


def one_hot(values: Array, starts: Sequence[int], counts: Sequence[int]) -> Array:
    """(N, D) whole numbers to (N, sum(counts)) float32, for each column a 1 at its value.

    Raises:
        ValueError: a value outside `start` to `start + count - 1` of its column.
    """
    rows, offsets = values.astype(np.int64) - np.asarray(starts), np.cumsum([0, *counts[:-1]])
    if ((rows < 0) | (rows >= np.asarray(counts))).any():
        env, column = (int(i[0]) for i in np.nonzero((rows < 0) | (rows >= np.asarray(counts))))
        last = starts[column] + counts[column] - 1
        raise ValueError(f"env {env}: is {values[env, column]}: expected {starts[column]} to {last}")
    out = np.zeros((len(values), sum(counts)), np.float32)
    out[np.arange(len(values))[:, None], rows + offsets] = 1.0
    return out
