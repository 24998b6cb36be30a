"""Parameters of many networks as one flat vector, and the networks' tensors as views of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError


class FlatViews:
    """Names and shapes of parameters that are stored consecutively in a flat vector.

    Args:
        names: names of the parameters, in order.
        shapes: their shapes.
    """

    def __init__(self, names: list[str], shapes: list[torch.Size]) -> None:
        self._names, self._shapes = names, shapes
        self._sizes = [shape.numel() for shape in shapes]

    def __call__(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters in a vector (P,), as views of it."""
        parts = zip(self._names, flat.split(self._sizes) if self._sizes else (), self._shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def places(self) -> Iterator[tuple[str, tuple[int, int], torch.Size]]:
        """Iterate over the parameters: name, first and last position in the vector, shape."""
        return zip(self._names, in_turn(self._sizes), self._shapes, strict=True)


def in_turn(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """Return (begin, end) of consecutive parts of these sizes."""
    return list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


def flatten(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Concatenate all parameters to one vector, and make each parameter a view of it.

    Raises:
        ConfigError: parameters of several types or devices.
    """
    if len({(p.dtype, p.device) for p in parameters}) != 1:
        raise ConfigError("parameters are of several types or devices: expected one")
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.data = flat[offset : offset + size].view(parameter.shape)
        offset += size
    return flat
