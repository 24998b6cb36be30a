"""Frozen weights, which copies of a network share and `state_dict` leaves out.

A LoRA-adapted policy of seven billion weights trains some ten million. Its averaged copy, its frozen reference and each
checkpoint of its learner then take only those ten million, and code that copies a network or calls `state_dict` does
not need to know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn


class Frozen(nn.Parameter):
    """A frozen weight; made by `freeze`."""

    learns: bool
    """True if it required a gradient before."""

    def __new__(cls, weight: Tensor) -> Self:  # pyright: ignore[reportInconsistentConstructor]
        """Create it on the memory of `weight`."""
        made = torch.Tensor._make_subclass(cls, weight.detach(), False)
        made.learns = weight.requires_grad
        return made

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: copies of the network share it."""
        return self


def freeze(module: nn.Module, learning: Collection[str]) -> None:
    """Freeze all parameters of a network except some, in place.

    Their names do not change. `state_dict` leaves them out; `load_state_dict` does not expect them.

    Args:
        module: the network.
        learning: names of the parameters that stay trainable.
    """
    made: dict[int, Frozen] = {}
    for path, part in module.named_modules():
        start = f"{path}." if path else ""
        own = {k: p for k, p in part.named_parameters(recurse=False) if start + k not in learning}
        for name, parameter in own.items():
            # a weight shared by two layers stays shared
            frozen = made.setdefault(id(parameter), Frozen(parameter))
            setattr(part, name, frozen)
        if own:
            keep_out(part)


def keep_out(part: nn.Module) -> None:
    """Exclude frozen weights from a module's `state_dict` and `load_state_dict`."""
    part.register_state_dict_post_hook(_leave_out)
    part.register_load_state_dict_pre_hook(_put_in)


def thaw(module: nn.Module) -> None:
    """Replace frozen weights by independent parameters, in place; they are trainable if they were before."""
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
            # removed already if a network was frozen, thawed and frozen again
            state.pop(prefix + name, None)


def _put_in(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    del rest
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, Frozen):
            state.setdefault(prefix + name, parameter)
