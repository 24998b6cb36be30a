"""Converts Gymnasium observation spaces to array specs, and observations to arrays.

An observation space becomes named arrays (`leaves`); action spaces are in `action_codec`.
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
"""Unit of all columns: Gymnasium's spaces have no units."""
STATE = "state"
"""Array name for a space without parts (not a Dict or Tuple)."""
FEW = 16
"""Maximum number of image channels; height and width are larger."""
COLORS = (1, 3, 4)
"""Numbers of channels that identify the channel axis with certainty."""
MOST_VALUES = 4096
"""Maximum number of values of a categorical space, since each becomes a column."""
EXACT = 2**24
"""Integers up to this magnitude are exact in float32."""
BY_WRAPPER = "a wrapper (option wrapper=MODULE:CALLABLE) can make one of it"


class Leaf(NamedTuple):
    """One array of an observation space."""

    key: str
    """Name in `observation_spec`."""
    path: Path
    """Keys and indices of the array in the environment's nested observation."""
    raw_shape: tuple[int, ...]
    """Shape in the environment's observation."""
    spec: Spec
    convert: Callable[[Array], Array]
    """Converts the environment's arrays (N, *raw_shape) to (N, *spec.shape)."""
    note: str = ""
    """Warning about the conversion; empty if none."""


def leaves(space: Space[Any], top: str = STATE, structure: Mapping[str, int] | None = None) -> tuple[Leaf, ...]:
    """Named arrays of an observation space, in the space's order.

    Box: float32 of the same shape; uint8 with three axes is an image, channels last, and uint8 with two long axes an
    image of one channel. Discrete and MultiDiscrete: one-hot columns. MultiBinary: zeros and ones. Words: word numbers.
    Dict and Tuple: one array for each part; names of nested parts are joined with "_".

    Args:
        space: the space of one environment.
        top: array name for a space without parts.
        structure: names and lengths of column groups, in order, used to name the columns of a flat Box.

    Raises:
        ConfigError: an unsupported space (see docs/sims/gymnasium.md), a space without parts, or two parts with one
            name.
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
    """Part of an observation (or observation batch) at `path`."""
    for step in path:
        observation = observation[step]
    return observation


def key_of(path: Path, top: str = STATE) -> str:
    """Array name for `path`; `top` names a space without parts and prefixes the parts of a Tuple."""
    prefix = (top,) if not path or isinstance(path[0], int) else ()
    return "_".join(str(step) for step in (*prefix, *path))


def _walk(space: Space[Any], path: Path, top: str, structure: Mapping[str, int] | None) -> list[Leaf]:
    key = key_of(path, top)
    if isinstance(space, spaces.Dict):
        # a space without parts becomes the part `top` when an instruction is added
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
    """Return the number of columns if it is within `MOST_VALUES`.

    Raises:
        ConfigError: it is not.
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
    """Widest bounds over the rows of (rows, D), one per column; bounds beyond float32 become infinite."""
    with np.errstate(over="ignore"):
        ends = low.min(axis=0).astype(np.float32), high.max(axis=0).astype(np.float32)
    return tuple(float(bound) for bound in ends[0]), tuple(float(bound) for bound in ends[1])


def _picture(space: spaces.Box, path: Path, key: str) -> Leaf:
    """Image from a uint8 space with three axes, transposed to channels last if needed.

    Raises:
        ConfigError: the channel axis is not identifiable.
    """
    first, _, last = space.shape
    in_front, behind = first <= FEW, last <= FEW
    doubtful = in_front and behind and last not in COLORS and first in COLORS
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
    """Image leaf for uint8 arrays (N, *space.shape), which `turn` converts to channels last."""
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
    """One-hot encode integers (N, D) as float32 (N, sum(counts)).

    Raises:
        ValueError: a value outside the range `start` to `start + count - 1` of its column.
    """
    rows, offsets = values.astype(np.int64) - np.asarray(starts), np.cumsum([0, *counts[:-1]])
    if ((rows < 0) | (rows >= np.asarray(counts))).any():
        env, column = (int(i[0]) for i in np.nonzero((rows < 0) | (rows >= np.asarray(counts))))
        last = starts[column] + counts[column] - 1
        raise ValueError(f"env {env}: is {values[env, column]}: expected {starts[column]} to {last}")
    out = np.zeros((len(values), sum(counts)), np.float32)
    out[np.arange(len(values))[:, None], rows + offsets] = 1.0
    return out
