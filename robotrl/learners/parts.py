"""Parts of a learner's state: each is saved and restored in one way, so that learners only name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from robotrl.engine.distributed import SEEDS
from robotrl.run.checkpoint import generator_state, set_generator_state


class Stateful(Protocol):
    """An object with a state: collectors, engines, normalizers, replay buffers."""

    def state(self) -> Any:
        """Return the state for an exact resume: nested dicts of tensors and JSON values."""
        ...

    def load(self, state: Any) -> None:
        """Restore the result of `state`."""
        ...


@runtime_checkable
class Follower(Protocol):
    """A part that a process other than the first one cannot resume exactly, because only the first one saved it."""

    def follow(self, state: Any, seed: int) -> None:
        """Resume from the first process's state, with new episodes."""
        ...


Part = nn.Module | torch.Generator | Stateful | None
"""Networks, random generators, objects with a state; None for a part that the learner does not have."""


def saved(parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return the states of all parts; None for a part that is None."""
    return {name: _state(part) for name, part in parts.items()}


def _state(part: Part) -> Any:
    if part is None:
        return None
    if isinstance(part, torch.Generator):
        return generator_state(part)
    return part.state_dict() if isinstance(part, nn.Module) else part.state()


def restore(part: Part, state: Any) -> None:
    """Restore a part exactly; the state of a part that is None is left alone."""
    if isinstance(part, torch.Generator):
        set_generator_state(part, state)
    elif isinstance(part, nn.Module):
        part.load_state_dict(state)
    elif part is not None:
        part.load(state)


def follow(part: Part, state: Any, seed: int) -> None:
    """Restore a part from the state of the first process, with new episodes and random streams.

    Args:
        part: the part.
        state: the first process's state of it.
        seed: seed of the new streams; different from the seed at the start of the run.
    """
    if isinstance(part, torch.Generator):
        part.manual_seed(seed % SEEDS)
    elif isinstance(part, Follower):
        part.follow(state, seed % SEEDS)
    else:
        restore(part, state)
