"""Frozen linear layers with bfloat16 weights, at half the memory of float32.

Such a layer multiplies in bfloat16, accumulates in float32, and returns the input's dtype, so callers need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robotrl.peft.frozen import Frozen, keep_out

L = TypeVar("L", bound=nn.Linear)


class Bf16Linear(nn.Linear):
    """Linear layer with frozen bfloat16 weights; made by `to_bf16_linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in) to (..., out), in the input's dtype."""
        out = F.linear(input.to(torch.bfloat16), self.weight).to(input.dtype)
        bias = self._parameters["bias"]
        return out if bias is None else out + bias.to(input.dtype)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # casting a whole network to float32 is meant for the weights that compute in it
        self.weight.data = self.weight.data.to(torch.bfloat16)
        return self


def to_bf16_linear(policy: nn.Module, names: Iterable[str]) -> None:
    """Convert the weights of some frozen linear layers to bfloat16, in place; their biases stay unchanged."""
    for name in names:
        layer = policy.get_submodule(name)
        assert type(layer) is nn.Linear, name
        policy.set_submodule(name, _like(layer, Bf16Linear, torch.bfloat16))


def bf16_linear_from(layer: nn.Linear, weight: nn.Parameter) -> Bf16Linear:
    """Build a bf16 linear layer with the given bfloat16 weight and another layer's bias."""
    return _with(layer, Bf16Linear, weight)


def to_float32_linear(policy: nn.Module, names: Iterable[str]) -> None:
    """Convert bf16 linear layers back to float32, in place; the weights stay rounded."""
    for name in names:
        policy.set_submodule(name, _like(policy.get_submodule(name), nn.Linear, torch.float32))


def _like(layer: nn.Module, kind: type[L], dtype: torch.dtype) -> L:
    before = layer.weight
    assert isinstance(before, Frozen)
    weight = Frozen(before.detach().to(dtype))
    weight.learns = before.learns
    made = _with(layer, kind, weight)
    keep_out(made)
    return made


def _with(layer: nn.Module, kind: type[L], weight: nn.Parameter) -> L:
    with torch.device("meta"):
        made = kind(*reversed(weight.shape), bias=False)
    made.weight = weight
    made.register_parameter("bias", dict(layer.named_parameters(recurse=False)).get("bias"))
    return made.train(layer.training)
