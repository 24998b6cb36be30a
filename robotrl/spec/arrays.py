"""Specs of observation and action arrays: shape, names, units and bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Spec:
    """Shape and meaning of one array, without its batch axis.

    Args:
        shape: trailing shape, e.g. (18,).
        names: one name for each element of the last axis; a name states quantity and frame ("peg_pos_x_w").
        units: one SI unit for each name ("m", "rad", "1").
        low: lower bound of each element of the last axis; -inf where there is none.
        high: upper bound, likewise.
        dtype: numpy dtype name.
        words: vocabulary of an array of word ids, indexed by id, "" for padding; empty for all other arrays.
        choices: number of values of each element of a categorical action, whose elements are whole numbers from 0 to
            choices - 1; None for all other arrays.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"
    words: tuple[str, ...] = ()
    choices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        width = self.shape[-1] if self.shape else 1
        for field in ("names", "units", "low", "high"):
            found = len(getattr(self, field))
            if found != width:
                raise ValueError(f"Spec.{field} has {found} entries: expected {width}, one for each of shape[-1]")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"Spec.names repeats a name: {self.names}")
        if self.choices is not None:
            self._check_choices(self.choices)

    def _check_choices(self, choices: tuple[int, ...]) -> None:
        if len(self.shape) != 1 or len(choices) != self.shape[0] or any(type(n) is not int or n < 2 for n in choices):
            raise ValueError(
                f"Spec.choices is {choices}: expected a whole number of 2 or more for each of {self.shape}"
            )
        if any(self.low) or self.high != tuple(n - 1.0 for n in choices):
            raise ValueError(f"Spec.choices is {choices}: expected bounds of 0 to choices - 1")

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict; infinities become None."""
        out = asdict(self)
        for field in ("low", "high"):
            out[field] = [None if abs(value) == float("inf") else value for value in out[field]]
        if not self.words:
            del out["words"]
        if self.choices is None:
            del out["choices"]
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Spec:
        """Inverse of `to_json`."""
        inf = float("inf")
        choices = data.get("choices")
        return cls(
            shape=tuple(data["shape"]),
            names=tuple(data["names"]),
            units=tuple(data["units"]),
            low=tuple(-inf if value is None else float(value) for value in data["low"]),
            high=tuple(inf if value is None else float(value) for value in data["high"]),
            dtype=data["dtype"],
            words=tuple(data.get("words", ())),
            choices=None if choices is None else tuple(choices),
        )


def is_picture(spec: Spec) -> bool:
    """True if the array is an image: uint8 of shape (h, w, channels), with any number of channels."""
    return len(spec.shape) == 3 and spec.dtype == "uint8"


def measured(observation_spec: Mapping[str, Spec]) -> tuple[str, ...]:
    """Keys of the arrays that hold measured numbers: neither images nor words."""
    return tuple(key for key, spec in observation_spec.items() if not is_picture(spec) and not spec.words)


COMMITTED, COMMITTED_MASK = "committed_actions", "committed_mask"
"""Keys of the observations of actions that are decided and not executed yet; see `committed_specs`."""


def committed_specs(action_spec: Spec, steps: int) -> dict[str, Spec]:
    """Specs of the actions that are decided and not executed yet, the next one first, and of their mask.

    `COMMITTED` (D A,) holds them in the sim's units, one after the other, and 0 where there are fewer than D;
    `COMMITTED_MASK` (D,) is 1 where there is one. A policy that reads them continues the motion that is under way
    (real-time chunking, arXiv 2512.05964).

    Args:
        action_spec: spec of one action of numbers.
        steps: D, 1 or more.
    """
    every = range(1, steps + 1)
    names = tuple(f"{name}_in_{k}" for k in every for name in action_spec.names)
    low = tuple(min(value, 0.0) for value in action_spec.low) * steps
    high = tuple(max(value, 0.0) for value in action_spec.high) * steps
    return {
        COMMITTED: Spec((len(names),), names, action_spec.units * steps, low, high),
        COMMITTED_MASK: Spec(
            (steps,), tuple(f"given_{k}" for k in every), ("1",) * steps, (0.0,) * steps, (1.0,) * steps
        ),
    }


def committed_steps(observation_spec: Mapping[str, Spec]) -> int:
    """D of `committed_specs` among the observations, 0 if they are not there."""
    return observation_spec[COMMITTED_MASK].shape[0] if COMMITTED_MASK in observation_spec else 0


LONGEST_HISTORY = 100
"""Most control steps whose observations a policy is given at once."""


def with_history(spec: Spec, steps: int) -> Spec:
    """Spec of a vector and of those of the control steps before it: (K D,), the oldest first and the present one last.

    Elements keep their names; one that is k steps old is called "NAME_k_ago".

    Args:
        spec: spec of a vector of numbers (D,).
        steps: K, 1 or more.
    """
    older = tuple(f"{name}_{k}_ago" for k in range(steps - 1, 0, -1) for name in spec.names)
    low, high = spec.low * steps, spec.high * steps
    return Spec((len(low),), older + spec.names, spec.units * steps, low, high, spec.dtype)


def history_steps(spec: Spec) -> int:
    """K of `with_history`; 1 for every other spec."""
    marks = [name.rpartition("_")[0].rpartition("_")[2] for name in spec.names[:1] if name.endswith("_ago")]
    if len(spec.shape) != 1 or not marks or not marks[0].isdecimal():
        return 1
    steps = int(marks[0]) + 1
    width, rest = divmod(spec.shape[0], steps)
    if rest or spec != with_history(present_of(spec, width), steps):
        return 1
    return steps


def present_of(spec: Spec, width: int) -> Spec:
    """Spec of the last `width` elements of a vector."""
    return Spec((width,), spec.names[-width:], spec.units[-width:], spec.low[-width:], spec.high[-width:], spec.dtype)


def overlap_weights(delay: int, planned: int, steps: int) -> tuple[float, ...]:
    """Weights by which the last chunk guides the next one (real-time chunking, arXiv 2506.07339, eq. 5).

    Those that are executed before the chunk takes over are kept; the weights of those that are only planned decay.

    Args:
        delay: d, actions from now on that are committed.
        planned: n, actions from now on that the last chunk has, the committed ones among them; at most `steps`.
        steps: D, length of the result.

    Returns:
        (D,) 1 for the first d, then c (e^c - 1) / (e - 1) with c = (n - i) / (n - d + 1), and 0 from n on.
    """
    weights = [0.0] * steps
    for i in range(planned):
        part = 1.0 if i < delay else (planned - i) / (planned - delay + 1)
        weights[i] = part * math.expm1(part) / math.expm1(1.0)
    return tuple(weights)


def without_committed(observation_spec: Mapping[str, Spec]) -> dict[str, Spec]:
    """The observations that a sim or robot measures."""
    return {key: spec for key, spec in observation_spec.items() if key not in (COMMITTED, COMMITTED_MASK)}


Arrays = dict[str, "Tensor"]
"""Tensors by name, e.g. an observation (B, ...) by key."""
Observation = Arrays
"""Named observation arrays (N, ...); the keys are those of the sim's `observation_spec`."""
