"""Interface of who suggests actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from robotrl.spec import Arrays


class Suggestions(NamedTuple):
    """Suggestions that arrived after their step."""

    tickets: Tensor
    """(n,) int64 of the steps that they were asked for."""
    actions: Tensor
    """(n, A) in the sim's units."""


def no_suggestions(width: int) -> Suggestions:
    """Suggestions of nobody, for actions of A = `width` numbers."""
    return Suggestions(torch.zeros(0, dtype=torch.int64), torch.zeros((0, width)))


class Suggester(Protocol):
    """Somebody who says what it would do; asked before each step of the training sim."""

    def suggest(self, obs: Arrays, started: Tensor, tickets: Tensor) -> Tensor:
        """Return the suggestions that are there at once.

        Args:
            obs: (N, ...) each, the observations before the step.
            started: (N,) bool, envs at the first step of an episode.
            tickets: (N,) int64, unique numbers of the steps, by which later suggestions are known.

        Returns:
            (N, A) in the sim's units; NaN where there is none, or none yet.
        """
        ...

    def arrived(self, limit_s: float = 0.0) -> Suggestions:
        """Return the suggestions that arrived since the last call; waits up to `limit_s` seconds for missing ones."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return scalars to log."""
        ...

    def state(self) -> dict[str, Any]:
        """State to resume from."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...
