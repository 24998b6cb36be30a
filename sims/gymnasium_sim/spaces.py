"""Gymnasium's spaces as array specs, and arrays between the two.

An observation space becomes named arrays (`leaves`); an action space becomes one flat vector (`action_codec`).
Everything here is about data: nothing steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from robotrl.errors import ConfigError, unknown
from robotrl.sims.gymnasium_sim.words import Words
from robotrl.spec import INSTRUCTION, Spec

Array = NDArray[Any]
Path = tuple[str | int, ...]

UNIT_UNKNOWN = "?"
"""Gymnasium's spaces carry no units."""
STATE = "state"
"""The array of a space that has no parts."""
LARGEST = 1e30
"""Bounds of an action beyond this are none."""


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


class ActionCodec(NamedTuple):
    """The flat action of the sim, and what it becomes."""

    spec: Spec
    decode: Callable[[Array], Array]
    """(N, A) within the bounds of `spec` to the batch that the environment takes."""


def leaves(space: Space[Any], top: str = STATE, structure: Mapping[str, int] | None = None) -> tuple[Leaf, ...]:
    """The arrays of an observation space, in the space's order.

    Box: float32 of the same shape; images (integers of one byte with two axes or more) stay as they are. Discrete and
    MultiDiscrete: one column a value, 1 where it holds. MultiBinary: zeros and ones. Words: their numbers. Dict and
    Tuple: one array for each part; names of nested parts are joined with "_".

    Args:
        space: the space of one environment.
        top: name of the array of a space that has no parts.
        structure: groups of columns with their lengths, in order, that name the columns of a flat Box.

    Raises:
        ConfigError: a space of another kind, or two parts with one name.
    """
    found = tuple(_walk(space, (), top, structure))
    keys = [leaf.key for leaf in found]
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
        start, n = int(space.start), int(space.n)
        names = tuple(f"{key}_is_{start + i}" for i in range(n))
        return [Leaf(key, path, (), _flags(names), lambda raw: one_hot(raw[:, None], (start,), (n,)))]
    if isinstance(space, spaces.MultiDiscrete):
        return [_multi_discrete(space, path, key)]
    if isinstance(space, spaces.MultiBinary):
        width = int(np.prod(space.shape))
        names = tuple(f"{key}_{i}" for i in range(width))
        return [
            Leaf(key, path, space.shape, _flags(names), lambda raw: raw.reshape(len(raw), width).astype(np.float32))
        ]
    kinds = ("Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple")
    raise unknown(f"observation {key!r}: kind of space", type(space).__name__, kinds)


def _box(space: spaces.Box, path: Path, key: str, structure: Mapping[str, int] | None) -> Leaf:
    image = space.dtype.itemsize == 1 and len(space.shape) >= 2
    shape = space.shape or (1,)
    width = shape[-1]
    names = tuple(f"{key}_{i}" for i in range(width))
    if structure is not None and len(shape) == 1 and sum(structure.values()) == width:
        names = tuple(f"{group}_{i}" for group, length in structure.items() for i in range(length))
    # a spec has one bound for each element of the last axis: the widest over the other axes
    rows = space.low.reshape(-1, width), space.high.reshape(-1, width)
    dtype = str(space.dtype) if image else "float32"
    low, high = rows[0].min(axis=0), rows[1].max(axis=0)
    if not image:
        low, high = low.astype(np.float32), high.astype(np.float32)
    spec = Spec(
        shape=shape,
        names=names,
        units=(UNIT_UNKNOWN,) * width,
        low=tuple(float(bound) for bound in low),
        high=tuple(float(bound) for bound in high),
        dtype=dtype,
    )
    return Leaf(key, path, space.shape, spec, lambda raw: raw.reshape(len(raw), *shape).astype(dtype))


def _multi_discrete(space: spaces.MultiDiscrete, path: Path, key: str) -> Leaf:
    counts = tuple(int(n) for n in space.nvec.flat)
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


def action_codec(space: Space[Any], bound: float | None = None) -> ActionCodec:
    """The flat action of an action space.

    Box: its elements, rounded where they are whole numbers. Discrete: a score in -1 to 1 for each value, the highest
    acts (the first of equals); MultiDiscrete: likewise for each of its parts. MultiBinary: a score for each, above zero
    means 1.

    Args:
        space: the action space of one environment.
        bound: what stands in for infinite bounds of a Box.

    Raises:
        ConfigError: infinite bounds without `bound`, or a space of another kind.
    """
    if isinstance(space, spaces.Box):
        return _box_action(space, bound)
    if isinstance(space, spaces.Discrete):
        start, n = int(space.start), int(space.n)
        dtype = space.dtype
        spec = _scores(tuple(f"score_{start + i}" for i in range(n)))
        return ActionCodec(spec, lambda flat: (flat.argmax(axis=1) + start).astype(dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete_action(space)
    if isinstance(space, spaces.MultiBinary):
        shape, dtype = space.shape, space.dtype
        spec = _scores(tuple(f"score_{i}" for i in range(int(np.prod(shape)))))
        return ActionCodec(spec, lambda flat: (flat > 0).reshape(len(flat), *shape).astype(dtype))
    kinds = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")
    raise unknown("action: kind of space", type(space).__name__, kinds)


def _box_action(space: spaces.Box, bound: float | None) -> ActionCodec:
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    # some environments write the largest float32 for "no bound"
    open_low, open_high = np.abs(low) > LARGEST, np.abs(high) > LARGEST
    if (open_low | open_high).any():
        if bound is None:
            column = int(np.nonzero(open_low | open_high)[0][0])
            raise ConfigError(
                f"action {column} has bounds {low[column]:g} to {high[column]:g}: expected finite ones; the option"
                " action_bound=B stands in for infinite ones"
            )
        low, high = np.where(open_low, -bound, low), np.where(open_high, bound, high)
    width, shape, dtype = len(low), space.shape, np.dtype(space.dtype or np.float32)
    spec = Spec(
        shape=(width,),
        names=tuple(f"action_{i}" for i in range(width)),
        units=(UNIT_UNKNOWN,) * width,
        low=tuple(float(np.float32(value)) for value in low),
        high=tuple(float(np.float32(value)) for value in high),
    )
    whole = np.issubdtype(dtype, np.integer)

    def decode(flat: Array) -> Array:
        return (np.round(flat) if whole else flat).reshape(len(flat), *shape).astype(dtype)

    return ActionCodec(spec, decode)


def _multi_discrete_action(space: spaces.MultiDiscrete) -> ActionCodec:
    counts = [int(n) for n in space.nvec.flat]
    starts = [int(start) for start in space.start.flat]
    names = [
        f"score_{i}_{start + v}" for i, (n, start) in enumerate(zip(counts, starts, strict=True)) for v in range(n)
    ]
    edges = np.cumsum(counts)[:-1]
    shape, dtype = space.shape, space.dtype

    def decode(flat: Array) -> Array:
        best = [part.argmax(axis=1) + start for part, start in zip(np.split(flat, edges, 1), starts, strict=True)]
        return np.stack(best, axis=1).reshape(len(flat), *shape).astype(dtype)

    return ActionCodec(_scores(names), decode)


def _scores(names: Sequence[str]) -> Spec:
    width = len(names)
    return Spec((width,), tuple(names), ("1",) * width, (-1.0,) * width, (1.0,) * width)
