"""Arrays of either engine: numpy arrays on the native one, torch tensors on MuJoCo Warp.

A task that runs on both computes with operators, indexing, in-place assignment and the functions of its physics' `xp`
alone. numpy is such a namespace itself; `array_api_compat.torch` gives torch's functions the same names and arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Array = Any
"""A `numpy.ndarray` or a `torch.Tensor`, of all envs, on the device of the physics."""


class ArrayNamespace(Protocol):
    """Functions of the array API standard that tasks use, and `einsum`, which both libraries have.

    Each is free of copies to the host. Arguments named `device` and `dtype` are those of another array, so that a task
    names no device.
    """

    @property
    def bool(self) -> Any:
        """Type of flags."""
        ...

    @property
    def int64(self) -> Any:
        """Type of numbers and indices."""
        ...

    def asarray(self, obj: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
        """Array of numbers of the host, or of another array in another type."""
        ...

    def arange(self, stop: int, /, *, device: Any = None) -> Array:
        """Indices 0 to `stop` - 1."""
        ...

    def empty(self, shape: tuple[int, ...], /, *, dtype: Any = None, device: Any = None) -> Array:
        """New array whose numbers are still to be written."""
        ...

    def zeros(self, shape: tuple[int, ...], /, *, dtype: Any = None, device: Any = None) -> Array:
        """New array of zeros."""
        ...

    def zeros_like(self, x: Array, /, *, dtype: Any = None) -> Array:
        """Zeros of the shape, device and, by default, type of an array."""
        ...

    def stack(self, arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
        """Arrays side by side along a new axis."""
        ...

    def concat(self, arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
        """Arrays one after the other along an axis that they have."""
        ...

    def where(self, condition: Array, x1: Array, x2: Array, /) -> Array:
        """The first where a flag is true, else the second."""
        ...

    def clip(self, x: Array, low: Any, high: Any, /) -> Array:
        """Numbers cut to a range; bounds are arrays or numbers, None for no bound."""
        ...

    def min(self, x: Array, /, *, axis: int) -> Array:
        """Smallest number along an axis."""
        ...

    def max(self, x: Array, /, *, axis: int, keepdims: bool = False) -> Array:
        """Largest number along an axis."""
        ...

    def maximum(self, x1: Array, x2: Array, /) -> Array:
        """Larger of two arrays' numbers; for a bound that is a number, `clip` saves a copy to the device."""
        ...

    def abs(self, x: Array, /) -> Array:
        """Magnitudes."""
        ...

    def floor(self, x: Array, /) -> Array:
        """Numbers rounded down."""
        ...

    def sqrt(self, x: Array, /) -> Array:
        """Square roots."""
        ...

    def exp(self, x: Array, /) -> Array:
        """Exponentials."""
        ...

    def sin(self, x: Array, /) -> Array:
        """Sines."""
        ...

    def cos(self, x: Array, /) -> Array:
        """Cosines."""
        ...

    def acos(self, x: Array, /) -> Array:
        """Angles of cosines."""
        ...

    def atan2(self, x1: Array, x2: Array, /) -> Array:
        """Angles of the points (x2, x1)."""
        ...

    def hypot(self, x1: Array, x2: Array, /) -> Array:
        """Lengths of the vectors (x1, x2)."""
        ...

    def vecdot(self, x1: Array, x2: Array, /) -> Array:
        """Inner products along the last axis."""
        ...

    def einsum(self, subscripts: str, /, *operands: Array) -> Array:
        """Sum of products."""
        ...
