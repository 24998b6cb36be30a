"""Weights that stay as they are: copies of a network share them, and what a learner stores leaves them out.

An adapted policy of seven billion weights learns some ten million. Its averaged copy, its frozen reference, and each
checkpoint of its learner then cost those ten million, and nobody who copies a network or asks for its `state_dict` has
to know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn


class Frozen(nn.Parameter):
    """A weight that no learner changes; made by `freeze`."""

    learns: bool
    """Whether it required a gradient before."""

    def __new__(cls, weight: Tensor) -> Self:  # pyright: ignore[reportInconsistentConstructor]
        """Of the same memory as `weight`."""
        made = torch.Tensor._make_subclass(cls, weight.detach(), False)
        made.learns = weight.requires_grad
        return made

    def __deepcopy__(self, memo: Any) -> Self:
        """Itself: a copy of its network shares it."""
        return self


def freeze(module: nn.Module, learning: Collection[str]) -> None:
    """Freeze all parameters of a network but some, in place.

    Their names do not change. `state_dict` leaves them out; `load_state_dict` does not miss them.

    Args:
        module: the network.
        learning: names of the parameters that go on learning.
    """
    made: dict[int, Frozen] = {}
    for path, part in module.named_modules():
        start = f"{path}." if path else ""
        own = {k: p for k, p in part.named_parameters(recurse=False) if start + k not in learning}
        for name, parameter in own.items():
            # one that two layers share stays shared
            frozen = made.setdefault(id(parameter), Frozen(parameter))
            setattr(part, name, frozen)
        if own:
            keep_out(part)


def keep_out(part: nn.Module) -> None:
    """Let a module's `state_dict` leave out its frozen weights, and `load_state_dict` not miss them."""
    part.register_state_dict_post_hook(_leave_out)
    part.register_load_state_dict_pre_hook(_put_in)


def thaw(module: nn.Module) -> None:
    """Give a network weights of its own instead of frozen ones, in place; they learn if they did before."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if isinstance(parameter, Frozen):
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(parameter.detach().clone(), parameter.learns)
                setattr(part, name, made[id(parameter)])


def _leave_out(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any]) -> None:
    del metadata
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, Frozen):
            # gone already where a network was frozen, thawed and frozen again
            state.pop(prefix + name, None)


def _put_in(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    del rest
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, Frozen):
            state.setdefault(prefix + name, parameter)
