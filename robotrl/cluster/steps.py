"""Env steps that a shard collects for a replay, each with the version of the policy that decided it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robotrl.learners.actor.process import Outbox, to_numpy
from robotrl.learners.collection.acting import StepsActing
from robotrl.learners.collection.collectors import STEP_VERSION, StepBatch
from robotrl.replay.buffer import StepRecord
from robotrl.replay.layout import ReplayLayout
from robotrl.rollout.collector import Collector, Decision
from robotrl.spec import Arrays, VecSim

VERSION = "version"
"""Entry of a decision's record: the version of the weights that decided."""


class _Sent(Outbox):
    """Records of a batch, with the version of each step's decision and the mark of a gap before them."""

    def __init__(self, layout: ReplayLayout) -> None:
        super().__init__(layout)
        self.version = torch.zeros(layout.streams, dtype=torch.int64)
        """(N,) version of each env's running decision."""
        self.is_cut = False

    def add(self, record: StepRecord) -> None:
        """See `Replay.add`."""
        super().add(record._replace(extras=record.extras | {STEP_VERSION: self.version.float()}))

    def cut(self) -> None:
        """See `Replay.cut`; the learner's replay is cut before these steps are added to it."""
        self.is_cut = True


class ActingSteps(Collector):
    """Collector that hands over the steps of its sim instead of storing them.

    Args:
        sim: the sim.
        acting: the policy, whose decisions' records have `VERSION`.
        layout: layout of a replay of the sim's envs.
        gamma: discount of each env step.
        generator: random generator of the samples.
    """

    def __init__(
        self, sim: VecSim, acting: StepsActing, layout: ReplayLayout, gamma: float, generator: torch.Generator
    ) -> None:
        super().__init__(sim, acting.horizon, gamma)
        self._acting, self._generator = acting, generator
        self._sent = _Sent(layout)

    def steps(self, steps: int, before: int) -> StepBatch:
        """Take `steps` steps in every env; the tensors of the result are numpy arrays.

        Args:
            steps: number of steps in each env.
            before: env steps of the run before this batch.
        """

        def decide(obs: Arrays) -> Decision:
            decision = self._acting.decide(obs, self._generator, before)
            self._sent.version[self.due] = decision.record[VERSION]
            return decision

        out = self.collect_into(self._sent, decide, steps)
        records, late = self._sent.take()
        cut = tuple(range(self._sent.layout.streams)) if self._sent.is_cut else ()
        self._sent.is_cut = False
        return StepBatch(records, to_numpy(out.episodes), to_numpy(out.returns), late, cut)

    def state(self) -> dict[str, Any]:
        """See `Collector.state`."""
        return super().state() | {VERSION: self._sent.version}

    def load(self, state: dict[str, Any]) -> None:
        """See `Collector.load`."""
        super().load(state)
        version: Tensor = state[VERSION]
        self._sent.version = version.clone()
