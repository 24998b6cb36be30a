"""Activation checkpointing of a network's blocks (Chen et al. 2016, 1604.06174).

Each block stores only its input and is computed again in the backward pass, so that a network holds the activations of
one block at a time, for a third more computing; gradients are the same. Our networks contain no random operation, so
both passes give the same values.
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


class CheckpointedBlock(nn.Module):
    """Mixin that `recompute` adds to a block's class to checkpoint its forward pass."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The block's own forward pass, checkpointed."""
        # a second pass would append to the key-value cache again
        if kwargs.get("past_key_values") is not None:
            return super().forward(*args, **kwargs)
        return checkpointed_call(self, super().forward, *args, **kwargs)


def recompute(network: nn.Module) -> int:
    """Enable activation checkpointing for each block of a network (each member of a `ModuleList`), in place.

    Names and weights stay the same, and copies of the network are checkpointed, too. Without gradients nothing changes.

    Returns:
        The number of blocks.
    """
    stacks = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    blocks = {block for stack in stacks for block in stack if not isinstance(block, CheckpointedBlock)}
    for block in blocks:
        block.__class__ = _recomputed(type(block))
    return len(blocks)


def checkpointed_call(block: nn.Module, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function`, with activation checkpointing if `recompute` has enabled it for the block.

    Args:
        block: the block that the function is part of.
        function: a deterministic function.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if not (isinstance(block, CheckpointedBlock) and torch.is_grad_enabled()):
        return function(*args, **kwargs)
    contexts = nullcontext(), _around.get()()
    out: Any = checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts, **kwargs
    )
    return out


@contextmanager
def recompute_inside(make: Make) -> Generator[None]:
    """Make the second computation of checkpointed blocks run inside a context, too, after this one has ended.

    Args:
        make: creates the context; for kinds that torch does not restore by itself (it restores autocast).
    """
    token = _around.set(make)
    try:
        yield
    finally:
        _around.reset(token)


@cache
def _recomputed(cls: type[nn.Module]) -> type[nn.Module]:
    """Subclass of `cls` with the `CheckpointedBlock` mixin."""
    return type(cls.__name__, (CheckpointedBlock, cls), {"__module__": cls.__module__})
