"""Contexts of a policy's decisions, as an on-policy learner computes them: with memory or without.

A policy without memory encodes each observation for itself, so a row of an update is one decision. A policy with memory
is trained by truncated backpropagation through time (Werbos 1990): a row is a segment of consecutive decisions, with
the memory that was stored at its beginning. The stored memory is kept among a rollout's observations, so values and
advantages are computed by the same code for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from robotrl.engine.engine import UPDATES_PER_CALL, EngineMode
from robotrl.engine.minibatches import part
from robotrl.errors import out_of_range
from robotrl.learners.memory.carried import MEMORY, NEXT_MEMORY
from robotrl.learners.memory.segments import cut_segments
from robotrl.learners.on_policy import OBS, OnPolicyBatch
from robotrl.learners.parts import Part
from robotrl.rollout.collector import Collector
from robotrl.rollout.storage import Rollout
from robotrl.spec import Arrays, HasMemory

JOINED = "joined"
"""Row of an update: see `CutSegments.joined`."""


class Encoded(NamedTuple):
    """Decisions of a minibatch with their contexts."""

    rows: dict[str, Tensor]
    """(B, ...) rows, one for each decision."""
    ctx: Tensor
    """(B, D)."""


class Contexts(Protocol):
    """Computes contexts of a policy; see `contexts_of`."""

    updates_per_call: int
    """Updates that the engine compiles into one graph."""

    def decide(self, obs: Arrays, collector: Collector) -> tuple[Tensor, Arrays]:
        """Contexts (n, D) of the envs that are due, and values to record with their decisions."""
        ...

    def encode(self, obs: Arrays) -> Tensor:
        """Contexts (B, D) of a rollout's observations, each decision for itself."""
        ...

    def encode_rows(self, rows: dict[str, Tensor]) -> Encoded:
        """Contexts of a minibatch of rows that `rows_of` made."""
        ...

    def remembered(self, rollout: Rollout) -> Rollout:
        """The rollout with the policy's memory among its observations."""
        ...

    def rows_of(self, batch: OnPolicyBatch, rollout: Rollout) -> dict[str, Tensor]:
        """Rows of an update."""
        ...

    def count(self, field: str, decisions: int) -> int:
        """Number of rows of so many decisions.

        Raises:
            ConfigError: it is not whole; `field` names the setting.
        """
        ...

    def capacity(self, decisions: int) -> int:
        """Largest number of rows of at most so many decisions."""
        ...

    def engine_mode(self, asked: EngineMode) -> EngineMode:
        """Mode of the engine, given the setting."""
        ...

    def parts(self) -> dict[str, Part]:
        """Parts of a learner's state."""
        ...


class SingleContexts:
    """Contexts of a policy with `encode`; implements `Contexts`.

    Args:
        policy: the policy.
    """

    updates_per_call = UPDATES_PER_CALL

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def decide(self, obs: Arrays, collector: Collector) -> tuple[Tensor, Arrays]:
        """See `Contexts`."""
        del collector
        return self._policy.encode(obs), {}

    def encode(self, obs: Arrays) -> Tensor:
        """See `Contexts`."""
        return self._policy.encode(obs)

    def encode_rows(self, rows: dict[str, Tensor]) -> Encoded:
        """See `Contexts`."""
        return Encoded(rows, self._policy.encode(part(rows, OBS)))

    def remembered(self, rollout: Rollout) -> Rollout:
        """See `Contexts`."""
        return rollout

    def rows_of(self, batch: OnPolicyBatch, rollout: Rollout) -> dict[str, Tensor]:
        """See `Contexts`."""
        del rollout
        return {**batch.rows(), "value": batch.value}

    def count(self, field: str, decisions: int) -> int:
        """See `Contexts`."""
        del field
        return decisions

    def engine_mode(self, asked: EngineMode) -> EngineMode:
        """See `Contexts`."""
        return asked

    def capacity(self, decisions: int) -> int:
        """See `Contexts`."""
        return decisions

    def parts(self) -> dict[str, Part]:
        """See `Contexts`."""
        return {}


class SegmentContexts:
    """Contexts of a policy with memory, and the memory of each env; implements `Contexts`.

    Args:
        policy: the policy.
        length: L, decisions in a segment.
        num_envs: N.
    """

    # the loop over a segment is unrolled in the graph: more updates would take many times as long to compile
    updates_per_call = 1

    def __init__(self, policy: HasMemory, length: int, num_envs: int) -> None:
        self._policy, self._length = policy, length
        self.memory = policy.initial_memory(num_envs)
        """(N, M) memory of each env after its last decision."""

    def decide(self, obs: Arrays, collector: Collector) -> tuple[Tensor, Arrays]:
        """See `Contexts`; the memory of an env begins anew with each episode."""
        due = collector.due
        began = due[collector.started[due]]
        self.memory[began] = self._policy.initial_memory(len(began))
        before = self.memory[due]
        ctx, after = self._policy.advance(obs, before)
        self.memory[due] = after
        return ctx, {MEMORY: before, NEXT_MEMORY: after}

    def encode(self, obs: Arrays) -> Tensor:
        """See `Contexts`."""
        return self._policy.advance(obs, obs[MEMORY]).ctx

    def encode_rows(self, rows: dict[str, Tensor]) -> Encoded:
        """See `Contexts`."""
        obs = part(rows, OBS)
        ctx = self._policy.unroll(obs, obs[MEMORY], rows[JOINED])
        return Encoded({name: x.flatten(0, 1) for name, x in rows.items()}, ctx.flatten(0, 1))

    def remembered(self, rollout: Rollout) -> Rollout:
        """See `Contexts`; the observation after an episode's end is met with the memory of its last decision."""
        record = dict(rollout.record)
        before, after = record.pop(MEMORY), record.pop(NEXT_MEMORY)
        obs, next_obs = {**rollout.obs, MEMORY: before}, {**rollout.next_obs, MEMORY: after}
        return rollout._replace(obs=obs, next_obs=next_obs, record=record)

    def rows_of(self, batch: OnPolicyBatch, rollout: Rollout) -> dict[str, Tensor]:
        """See `Contexts`; arrays (S, L, ...)."""
        rows, joined = cut_segments(rollout.valid, rollout.terminated | rollout.truncated, self._length)
        decisions = {**batch.rows(), "value": batch.value}
        return {name: x[rows] for name, x in decisions.items()} | {JOINED: joined}

    def count(self, field: str, decisions: int) -> int:
        """See `Contexts`."""
        if decisions % self._length:
            raise out_of_range(field, decisions, f"a multiple of algo.bptt_steps, {self._length}")
        return decisions // self._length

    def engine_mode(self, asked: EngineMode) -> EngineMode:
        """See `Contexts`; the loop over a segment takes minutes to compile, which "auto" does not foresee."""
        return "eager" if asked == "auto" else asked

    def capacity(self, decisions: int) -> int:
        """See `Contexts`."""
        return math.ceil(decisions / self._length)

    def parts(self) -> dict[str, Part]:
        """See `Contexts`."""
        return {"memory": self}

    def state(self) -> dict[str, Tensor]:
        """State for an exact resume."""
        return {"memory": self.memory}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.memory.copy_(state["memory"])


def contexts_of(policy: Any, length: int, num_envs: int) -> Contexts:
    """The contexts of a policy.

    Args:
        policy: with `HasMemory`, or with `encode`.
        length: decisions in a segment of a policy with memory.
        num_envs: N.
    """
    return SegmentContexts(policy, length, num_envs) if isinstance(policy, HasMemory) else SingleContexts(policy)
