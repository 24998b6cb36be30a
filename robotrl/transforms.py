"""Frozen transforms of arrays between the sim's units and the network's, as declarative data.

A `TransformGroup` holds transforms of observations before the network (`inputs`, in order) and of actions after it
(`outputs`, in order). New inputs are appended and new outputs prepended, so the inverse order cannot be wrong. Each
transform says `where` it runs in an exported policy: inside the ONNX graph or on the host. The same data has a numpy
and a torch backend, which tests compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from robotrl.spec.json_fields import settings_from_json

if TYPE_CHECKING:
    from torch import Tensor

Where = Literal["graph", "host"]


@dataclass(frozen=True)
class Affine:
    """`y = x * scale + offset`, elementwise on the last axis of array `key`."""

    key: str
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    where: Where = "graph"

    @property
    def constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(scale, offset)."""
        return self.scale, self.offset


@dataclass(frozen=True)
class Clip:
    """`y = min(max(x, low), high)`, elementwise on the last axis of array `key`; NaN stays NaN."""

    key: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    where: Where = "graph"

    @property
    def constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(low, high)."""
        return self.low, self.high


Transform = Affine | Clip
KINDS: dict[str, type[Affine] | type[Clip]] = {"affine": Affine, "clip": Clip}


def to_json(transform: Transform) -> dict[str, Any]:
    """A JSON-ready dict, its class under "kind"."""
    kind = next(name for name, cls in KINDS.items() if isinstance(transform, cls))
    return {"kind": kind, **asdict(transform)}


def from_json(data: dict[str, Any]) -> Transform:
    """Inverse of `to_json`.

    Raises:
        ValueError: unknown kind, or fields that the kind does not have.
    """
    kind = data.get("kind")
    if kind not in KINDS:
        raise ValueError(f"transform kind {kind!r} is unknown: known: {', '.join(KINDS)}")
    cls = KINDS[str(kind)]
    given = settings_from_json({name: value for name, value in data.items() if name != "kind"})
    names = {field.name for field in fields(cls)}
    if set(given) != names:
        raise ValueError(f"transform {kind!r} has fields {sorted(given)}: expected {sorted(names)}")
    return cls(**given)


def normalize(key: str, mean: Sequence[float], std: Sequence[float], floor: float = 1e-6) -> Affine:
    """`Affine` that maps data with this mean and standard deviation to mean 0 and standard deviation 1.

    An element with a standard deviation below `floor` is constant in the data; it is centered but not scaled.
    """
    m, s = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    scale = 1.0 / np.where(s < floor, 1.0, s)
    return Affine(key, tuple(scale.tolist()), tuple((-m * scale).tolist()))


def bounds_to_unit(key: str, low: Sequence[float], high: Sequence[float]) -> Affine:
    """`Affine` that maps [low, high] to [-1, 1].

    Raises:
        ValueError: a bound is infinite, or low is not below high.
    """
    lo, hi = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if not (np.isfinite(lo).all() and np.isfinite(hi).all() and (lo < hi).all()):
        raise ValueError(f"bounds of {key!r} must be finite and low < high: low={list(low)}, high={list(high)}")
    scale = 2.0 / (hi - lo)
    return Affine(key, tuple(scale.tolist()), tuple((-1.0 - lo * scale).tolist()))


def inverse(affine: Affine) -> Affine:
    """`Affine` that undoes this one; an element with scale 0 is mapped to 0."""
    there = np.asarray(affine.scale, np.float64)
    scale = np.divide(1.0, there, out=np.zeros_like(there), where=there != 0)
    offset = -np.asarray(affine.offset, np.float64) * scale
    return Affine(affine.key, tuple(scale.tolist()), tuple(offset.tolist()), affine.where)


@dataclass(frozen=True)
class TransformGroup:
    """Transforms around a network: `inputs` before it, `outputs` after it."""

    inputs: tuple[Transform, ...] = ()
    outputs: tuple[Transform, ...] = ()

    def push(self, inputs: Sequence[Transform] = (), outputs: Sequence[Transform] = ()) -> TransformGroup:
        """Add transforms closer to the network: inputs appended, outputs prepended."""
        return TransformGroup(self.inputs + tuple(inputs), tuple(outputs) + self.outputs)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"inputs": [to_json(t) for t in self.inputs], "outputs": [to_json(t) for t in self.outputs]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TransformGroup:
        """Inverse of `to_json`."""
        return cls(tuple(from_json(t) for t in data["inputs"]), tuple(from_json(t) for t in data["outputs"]))


def composed_affine(transforms: TransformGroup, key: str, width: int) -> Affine:
    """Composition of the `Affine`s of `key` (width,) in `transforms.outputs`, without the clips."""
    scale, offset = np.ones(width), np.zeros(width)
    for transform in transforms.outputs:
        if isinstance(transform, Affine) and transform.key == key:
            scale = scale * np.asarray(transform.scale)
            offset = offset * np.asarray(transform.scale) + np.asarray(transform.offset)
    return Affine(key, tuple(scale.tolist()), tuple(offset.tolist()))


def numpy_backend(transforms: Sequence[Transform]) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Function that applies `transforms` in order to a dict of float32 arrays; other keys are unchanged."""
    steps: list[tuple[Transform, np.ndarray, np.ndarray]] = [
        (t, np.asarray(a, np.float32), np.asarray(b, np.float32)) for t in transforms for a, b in [t.constants]
    ]

    def apply(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = dict(arrays)
        for transform, a, b in steps:
            x = out[transform.key]
            out[transform.key] = x * a + b if isinstance(transform, Affine) else np.minimum(np.maximum(x, a), b)
        return out

    return apply


def torch_backend(
    transforms: Sequence[Transform], device: Any = None
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Like `numpy_backend`, for torch tensors; constants live on `device`."""
    import torch

    steps: list[tuple[Transform, Tensor, Tensor]] = [
        (t, torch.tensor(a, dtype=torch.float32, device=device), torch.tensor(b, dtype=torch.float32, device=device))
        for t in transforms
        for a, b in [t.constants]
    ]

    def apply(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        out = dict(arrays)
        for transform, a, b in steps:
            x = out[transform.key]
            out[transform.key] = x * a + b if isinstance(transform, Affine) else torch.minimum(torch.maximum(x, a), b)
        return out

    return apply
