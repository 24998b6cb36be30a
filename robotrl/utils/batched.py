"""Some rows at a time: what is computed of many observations need not fit into memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


def parts(arrays: Mapping[str, Tensor], rows: int) -> Iterator[dict[str, Tensor]]:
    """Arrays (B, ...), one or more, cut into (b, ...) with b of `rows` and, in the last part, fewer."""
    count = len(next(iter(arrays.values())))
    return ({key: x[begin : begin + rows] for key, x in arrays.items()} for begin in range(0, count, rows))


def arrays_in_parts(
    compute: Callable[[dict[str, Tensor]], Mapping[str, Tensor]], arrays: Mapping[str, Tensor], rows: int
) -> dict[str, Tensor]:
    """Arrays (B, ...) computed of arrays (B, ...), so many rows at a time; B of 1 or more."""
    found = [compute(some) for some in parts(arrays, rows)]
    return {key: torch.cat([some[key] for some in found]) for key in found[0]}


def in_parts(compute: Callable[[dict[str, Tensor]], Tensor], arrays: Mapping[str, Tensor], rows: int) -> Tensor:
    """(B, ...) what is computed of arrays (B, ...), so many rows at a time; B of 1 or more."""
    return torch.cat([compute(some) for some in parts(arrays, rows)])
