"""Interface of interventions."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from robotrl.replay.corrections import Correction
from robotrl.spec import Arrays


class Intervention(Protocol):
    """Chooses in each step the envs to take over, and their actions; a `Corrector` of `Collector.collect_into`.

    While an env is taken over, each of its steps is a decision of its own, and the rest of the policy's chunk is
    dropped: afterwards, the policy decides anew on the current observation.
    """

    def __call__(self, obs: Arrays, action: Tensor, started: Tensor) -> Correction:
        """Return the taken-over envs and the corrected actions.

        Args:
            obs: (N, ...) each, observations before the step.
            action: (N, A) actions of the policy, in the sim's units.
            started: (N,) bool, envs at the first step of an episode.
        """
        ...

    def close(self) -> None:
        """Release the terminal or the device."""
        ...
