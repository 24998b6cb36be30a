"""Converts Gymnasium action spaces to a flat action vector, and flat actions back to the environment's actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims.gymnasium_sim.spaces import BY_WRAPPER, EXACT, MOST_VALUES, UNIT_UNKNOWN
from robotrl.spec import Spec

Array = NDArray[Any]
Actions = Literal["index", "scores"]
ACTIONS: tuple[Actions, ...] = ("index", "scores")
"""Forms of a categorical action: the index of a value, or a score for each value (argmax acts)."""
LARGEST = 1e30
"""Action bounds of larger magnitude count as infinite."""


class ActionCodec(NamedTuple):
    """Flat action of the sim and its conversions to and from the environment's action."""

    spec: Spec
    decode: Callable[[Array], Array]
    """Converts actions (N, A) within the bounds of `spec` to the environment's action batch."""
    encode: Callable[[Array], Array]
    """Converts the environment's action batch to actions (N, A)."""
    note: str = ""
    """Warning about elements that were left out of the flat action; empty if none."""


class Categories(NamedTuple):
    """Flattened categorical action space (Discrete, MultiDiscrete or MultiBinary)."""

    counts: tuple[int, ...]
    """Number of values of each element."""
    starts: tuple[int, ...]
    """First value of each element."""
    shape: tuple[int, ...]
    """Shape of the environment's action."""
    dtype: Any


def action_codec(space: Space[Any], bound: float | None = None, actions: Actions = "index") -> ActionCodec:
    """Build the flat action and its decoder for an action space.

    Box: its elements, rounded for integer dtypes. Discrete, MultiDiscrete and MultiBinary: for each element the index
    of its value, from 0. With `actions` "scores": for each value of each element a score in -1 to 1; the highest score
    acts, the first of equal ones. For MultiBinary "scores" gives one score for each element; above zero means 1.
    Elements with a single possible value are left out of the flat action (not with "scores").

    Args:
        space: the action space of one environment.
        bound: replaces infinite bounds of a Box.
        actions: form of a categorical action, see `ACTIONS`.

    Raises:
        ConfigError: infinite bounds without `bound`, integers too large for float32, too many values, no element with
            more than one value, or an unsupported space.
    """
    if isinstance(space, spaces.Box):
        return _box_action(space, bound)
    if isinstance(space, spaces.MultiBinary) and actions == "scores":
        return _switches(space)
    found = _categories(space)
    if found.counts and max(found.counts) > MOST_VALUES:
        raise ConfigError(
            f"action {int(np.argmax(found.counts))} has {max(found.counts)} values: expected at most {MOST_VALUES};"
            f" {BY_WRAPPER}"
        )
    return _indices(found) if actions == "index" else _scores(found, isinstance(space, spaces.Discrete))


def _categories(space: Space[Any]) -> Categories:
    if isinstance(space, spaces.Discrete):
        return Categories((int(space.n),), (int(space.start),), (), space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts = (tuple(int(value) for value in values.flat) for values in (space.nvec, space.start))
        return Categories(counts, starts, space.shape, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        width = int(np.prod(space.shape))
        return Categories((2,) * width, (0,) * width, space.shape, space.dtype)
    raise ConfigError(
        f"action is a {type(space).__name__} space: expected Box, Discrete, MultiDiscrete or MultiBinary; {BY_WRAPPER}"
    )


def _indices(found: Categories) -> ActionCodec:
    counts, starts = np.asarray(found.counts), np.asarray(found.starts)
    moving, note = _moving(counts > 1, [f"its only value is {start}" for start in found.starts])
    choices = tuple(int(n) for n in counts[moving])
    width = len(choices)
    spec = Spec(
        shape=(width,),
        names=tuple(f"action_{i}" for i in moving),
        units=("1",) * width,
        low=(0.0,) * width,
        high=tuple(n - 1.0 for n in choices),
        choices=choices,
    )

    def decode(flat: Array) -> Array:
        values = np.repeat(starts[None], len(flat), axis=0)
        values[:, moving] += flat.astype(np.int64)
        return values.reshape(len(flat), *found.shape).astype(found.dtype)

    def encode(values: Array) -> Array:
        return (values.reshape(len(values), -1) - starts)[:, moving].astype(np.float32)

    return ActionCodec(spec, decode, encode, note)


def _scores(found: Categories, single: bool) -> ActionCodec:
    names = [
        f"score_{start + v}" if single else f"score_{i}_{start + v}"
        for i, (n, start) in enumerate(zip(found.counts, found.starts, strict=True))
        for v in range(n)
    ]
    edges, starts = np.cumsum(found.counts)[:-1], found.starts

    def decode(flat: Array) -> Array:
        best = [part.argmax(axis=1) + start for part, start in zip(np.split(flat, edges, 1), starts, strict=True)]
        return np.stack(best, axis=1).reshape(len(flat), *found.shape).astype(found.dtype)

    def encode(values: Array) -> Array:
        chosen = values.reshape(len(values), -1) - np.asarray(starts)
        parts = [np.where(np.arange(n) == chosen[:, [i]], 1.0, -1.0) for i, n in enumerate(found.counts)]
        return np.concatenate(parts, axis=1).astype(np.float32)

    return ActionCodec(_score_spec(names), decode, encode)


def _switches(space: spaces.MultiBinary) -> ActionCodec:
    shape, dtype = space.shape, space.dtype
    spec = _score_spec([f"score_{i}" for i in range(int(np.prod(shape)))])
    return ActionCodec(
        spec,
        lambda flat: (flat > 0).reshape(len(flat), *shape).astype(dtype),
        lambda values: np.where(values.reshape(len(values), -1) > 0, 1.0, -1.0).astype(np.float32),
    )


def _score_spec(names: Sequence[str]) -> Spec:
    width = len(names)
    return Spec((width,), tuple(names), ("1",) * width, (-1.0,) * width, (1.0,) * width)


def _box_action(space: spaces.Box, bound: float | None) -> ActionCodec:
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    # some environments use the largest float32 for "no bound"
    open_low, open_high = np.abs(low) > LARGEST, np.abs(high) > LARGEST
    if (open_low | open_high).any():
        if bound is None:
            column = int(np.nonzero(open_low | open_high)[0][0])
            raise ConfigError(
                f"action {column} has bounds {low[column]:g} to {high[column]:g}: expected finite ones; the option"
                " action_bound=B stands in for infinite ones"
            )
        low, high = np.where(open_low, -bound, low), np.where(open_high, bound, high)
    whole = np.dtype(space.dtype or np.float32).kind in "iu"
    if whole and max(np.abs(low).max(initial=0), np.abs(high).max(initial=0)) > EXACT:
        raise ConfigError(
            f"action is {space.dtype} with bounds {low.min():g} to {high.max():g}: expected within +-{EXACT}, beyond"
            f" which float32 rounds whole numbers; {BY_WRAPPER}"
        )
    ends = low.astype(np.float32), high.astype(np.float32)
    still = [f"its bounds are {a:g} and {b:g}" for a, b in zip(low, high, strict=True)]
    moving, note = _moving(ends[0] < ends[1], still)
    width, shape, dtype = len(moving), space.shape, np.dtype(space.dtype or np.float32)
    spec = Spec(
        shape=(width,),
        names=tuple(f"action_{i}" for i in moving),
        units=(UNIT_UNKNOWN,) * width,
        low=tuple(float(value) for value in ends[0][moving]),
        high=tuple(float(value) for value in ends[1][moving]),
    )
    all_move = width == len(low)
    # a bound rounded to float32 may lie outside the environment's own bound
    exact = all(np.array_equal(end.astype(np.float64), bound) for end, bound in zip(ends, (low, high), strict=True))

    def decode(flat: Array) -> Array:
        values = flat
        if not all_move:
            values = np.repeat(low[None], len(flat), axis=0)
            values[:, moving] = flat
        if not exact:
            values = np.clip(values, low, high)
        return (np.round(values) if whole else values).reshape(len(flat), *shape).astype(dtype)

    def encode(values: Array) -> Array:
        return values.reshape(len(values), -1)[:, moving].astype(np.float32)

    return ActionCodec(spec, decode, encode, note)


def _moving(moves: NDArray[np.bool_], why: Sequence[str]) -> tuple[NDArray[np.int64], str]:
    """Indices of the elements with more than one value, and a warning about the others.

    Raises:
        ConfigError: no element has more than one value.
    """
    still = np.flatnonzero(~moves)
    if len(still) == len(moves):
        reason = f"; of action 0, {why[0]}" if why else ""
        raise ConfigError(f"action has {len(moves)} elements and none can move{reason}: expected one or more that can")
    if not len(still):
        return np.flatnonzero(moves), ""
    numbers = ", ".join(str(i) for i in still)
    return np.flatnonzero(moves), (
        f"action {int(still[0])} cannot move: {why[int(still[0])]}; taken as constant and left out of the sim's action:"
        f" {numbers}"
    )
