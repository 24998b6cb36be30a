"""Arrays of either engine: numpy arrays on the native one, torch tensors on MuJoCo Warp.

A task that runs on both computes with operators, indexing, in-place assignment and the functions of its physics' `xp`
alone. numpy is such a namespace itself; `array_api_compat.torch` gives torch's functions the same names and arguments.
"""

from __future__ import annotations

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

    def asarray(self, obj: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
        """Array of numbers of the host."""
        ...

    def zeros_like(self, x: Array, /, *, dtype: Any = None) -> Array:
        """Zeros of the shape, device and, by default, type of an array."""
        ...

    def clip(self, x: Array, low: float, high: float, /) -> Array:
        """Numbers cut to a range."""
        ...

    def min(self, x: Array, /, *, axis: int) -> Array:
        """Smallest number along an axis."""
        ...

    def max(self, x: Array, /, *, axis: int) -> Array:
        """Largest number along an axis."""
        ...

    def vecdot(self, x1: Array, x2: Array, /) -> Array:
        """Inner products along the last axis."""
        ...

    def einsum(self, subscripts: str, /, *operands: Array) -> Array:
        """Sum of products."""
        ...
