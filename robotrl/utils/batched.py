"""Computations in chunks of rows, so that intermediate results fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


def parts(arrays: Mapping[str, Tensor], rows: int) -> Iterator[dict[str, Tensor]]:
    """Split arrays (B, ...), one or more, into chunks (b, ...) of `rows` rows; the last one may be smaller."""
    count = len(next(iter(arrays.values())))
    return ({key: x[begin : begin + rows] for key, x in arrays.items()} for begin in range(0, count, rows))


def arrays_in_parts(
    compute: Callable[[dict[str, Tensor]], Mapping[str, Tensor]], arrays: Mapping[str, Tensor], rows: int
) -> dict[str, Tensor]:
    """Apply a function from arrays to arrays (B, ...) in chunks of rows; B is 1 or more."""
    found = [compute(some) for some in parts(arrays, rows)]
    return {key: torch.cat([some[key] for some in found]) for key in found[0]}


def in_parts(compute: Callable[[dict[str, Tensor]], Tensor], arrays: Mapping[str, Tensor], rows: int) -> Tensor:
    """Apply a function from arrays to one array (B, ...) in chunks of rows; B is 1 or more."""
    return torch.cat([compute(some) for some in parts(arrays, rows)])
