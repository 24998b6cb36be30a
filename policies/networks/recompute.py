"""Blocks that keep what goes in and compute their inside once more in the backward pass (Chen et al. 2016, 1604.06174).

A network then holds the activations of one block at a time, for a third more computing; gradients are the same. Nothing
is drawn inside our networks, so the second time gives what the first gave.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

P = ParamSpec("P")
R = TypeVar("R")
Make = Callable[[], AbstractContextManager[Any]]
_around: ContextVar[Make] = ContextVar("what blocks are computed again in", default=nullcontext)


class Recomputed(nn.Module):
    """What `recompute` puts before a block's own class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The block's own forward."""
        # what a block puts into a cache must not be put there twice
        if kwargs.get("past_key_values") is not None:
            return super().forward(*args, **kwargs)
        return through(self, super().forward, *args, **kwargs)


def recompute(network: nn.Module) -> int:
    """Let each block of a network's stacks (members of a `ModuleList`) compute its inside again, in place.

    Names and weights are as before; copies of the network do as it does. Where no gradient is taken nothing changes.

    Returns:
        How many blocks there are.
    """
    stacks = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    blocks = {block for stack in stacks for block in stack if not isinstance(block, Recomputed)}
    for block in blocks:
        block.__class__ = _recomputed(type(block))
    return len(blocks)


def through(block: nn.Module, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`function` of the arguments, computed again in the backward pass if `recompute` was told so of the block.

    Args:
        block: whose inside it is.
        function: the same each time that it is called.
        args: its arguments.
        kwargs: likewise.
    """
    if not (isinstance(block, Recomputed) and torch.is_grad_enabled()):
        return function(*args, **kwargs)
    contexts = nullcontext(), _around.get()()
    out: Any = checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts, **kwargs
    )
    return out


@contextmanager
def again_in(make: Make) -> Generator[None]:
    """Let what is computed inside be computed in such a context again, too, by when this one has been left.

    Args:
        make: a new context, of a kind that torch does not restore by itself (as it does autocast).
    """
    token = _around.set(make)
    try:
        yield
    finally:
        _around.reset(token)


@cache
def _recomputed(cls: type[nn.Module]) -> type[nn.Module]:
    """A class like `cls` whose blocks are recomputed."""
    return type(cls.__name__, (Recomputed, cls), {"__module__": cls.__module__})
