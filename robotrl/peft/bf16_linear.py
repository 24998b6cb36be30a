"""Linear layers whose weights are kept in bfloat16: half the memory of those that stay as they are.

Such a layer multiplies in bfloat16, adds up in float32, and gives what it is given: whoever calls it, an update, a
rollout or an evaluation, need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robotrl.peft.frozen import Frozen, keep_out

L = TypeVar("L", bound=nn.Linear)


class HalfLinear(nn.Linear):
    """A linear layer with frozen weights in bfloat16; made by `halve`."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out), of the input's type."""
        out = F.linear(input.to(torch.bfloat16), self.weight).to(input.dtype)
        bias = self._parameters["bias"]
        return out if bias is None else out + bias.to(input.dtype)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # a network that is made float32 as a whole means those weights that compute in it
        self.weight.data = self.weight.data.to(torch.bfloat16)
        return self


def halve(policy: nn.Module, names: Iterable[str]) -> None:
    """Keep the weights of some frozen linear layers in bfloat16, in place; their biases stay as they are."""
    for name in names:
        layer = policy.get_submodule(name)
        assert type(layer) is nn.Linear, name
        policy.set_submodule(name, _like(layer, HalfLinear, torch.bfloat16))


def half_of(layer: nn.Linear, weight: nn.Parameter) -> HalfLinear:
    """A layer with another's bias and the given weight in bfloat16."""
    return _with(layer, HalfLinear, weight)


def whole(policy: nn.Module, names: Iterable[str]) -> None:
    """Ordinary layers again, in place, with the rounded weights in float32."""
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
