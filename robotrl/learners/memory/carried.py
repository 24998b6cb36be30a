"""Memory of a policy for each env of a collector, between its decisions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from robotrl.rollout.collector import Collector, Decision
from robotrl.spec import Arrays, CarriesMemory

MEMORY, NEXT_MEMORY = "policy/memory", "policy/next_memory"
"""Keys of the memory before and after a decision, among the observations and in the record."""


class CarriedMemory:
    """Gives a policy its memory with the observations, and keeps what it records of it.

    Args:
        policy: the policy.
        collector: collector of the envs; says which of them are due, and which begin an episode.
    """

    def __init__(self, policy: CarriesMemory, collector: Collector) -> None:
        self._policy, self._collector = policy, collector
        self.memory = policy.initial_memory(collector.sim.num_envs)
        """(N, M) memory of each env after its last decision."""

    @classmethod
    def of(cls, policy: Any, collector: Collector) -> CarriedMemory | None:
        """Return the memory of a policy; None for one without."""
        return cls(policy, collector) if isinstance(policy, CarriesMemory) else None

    def given(self, obs: Arrays) -> Arrays:
        """Observations (n, ...) of the envs that are due, with the memory of each; it begins anew with an episode."""
        due = self._collector.due
        began = due[self._collector.started[due]]
        self.memory[began] = self._policy.initial_memory(len(began))
        return {**obs, MEMORY: self.memory[due]}

    def kept(self, decision: Decision) -> Decision:
        """Keep the memory after a decision."""
        self.memory[self._collector.due] = decision.record[NEXT_MEMORY]
        return decision

    def state(self) -> Tensor:
        """State for an exact resume."""
        return self.memory

    def load(self, state: Tensor) -> None:
        """Restore the result of `state`."""
        self.memory.copy_(state)
