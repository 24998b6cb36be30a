"""What an intervention promises."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from robotrl.replay.corrections import Correction
from robotrl.spec import Arrays


class Intervention(Protocol):
    """Says at each step which envs it takes over, and with which actions; a `Corrector` of `Collector.collect_into`.

    While an env is taken over, each of its steps is a decision of its own, and what was left of the policy's chunk is
    dropped: handed back, the policy decides afresh on what it sees.
    """

    def __call__(self, obs: Arrays, action: Tensor, started: Tensor) -> Correction:
        """Who takes over now.

        Args:
            obs: (N, ...) each, what the step begins with.
            action: (N, A) what the policy would do, in the sim's units.
            started: (N,) bool, envs at the first step of an episode.
        """
        ...

    def close(self) -> None:
        """Give back what it holds: the terminal, the device."""
        ...
