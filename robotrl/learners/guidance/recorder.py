"""Suggestions recorded beside the steps that they are for, in a replay."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from robotrl.learners.guidance.suggester import Suggester
from robotrl.replay.buffer import Replay
from robotrl.replay.corrections import Correction, Corrector
from robotrl.replay.layout import STEP
from robotrl.replay.types import StepRecord
from robotrl.spec import Arrays
from robotrl.spec.late_rewards import LateRewards

SUGGESTED = "suggested"
"""Name of suggested chunks in a batch."""
COLUMN = f"{STEP}{SUGGESTED}"
"""Name of the replay's column: (A,) in the sim's units, NaN where there is no suggestion."""


class SuggestionRecorder:
    """Asks before each step, and stores the answers with that step, those that come later as well.

    It stands between collector and replay twice: as a corrector it sees each step before it is made, and as a sink it
    passes the step on with the suggestion. A ticket is the replay's index of the step, which is never reused.

    Args:
        suggester: who suggests.
        replay: where the steps go.
        watcher: who corrects actions, if anybody.
    """

    def __init__(self, suggester: Suggester, replay: Replay, watcher: Corrector | None) -> None:
        self.layout = replay.layout
        self._suggester, self._replay, self._watcher = suggester, replay, watcher
        self._now: Tensor | None = None
        self.too_old = 0
        """Suggestions whose step had been overwritten."""

    def __call__(self, obs: Arrays, action: Tensor, started: Tensor) -> Correction:
        """Ask about a step; nothing is corrected but by the watcher. See `Corrector`."""
        heads = self._replay.ring.heads
        tickets = torch.from_numpy(heads * len(heads) + np.arange(len(heads)))
        self._now = self._suggester.suggest(obs, started, tickets)
        if self._watcher is not None:
            return self._watcher(obs, action, started)
        return Correction(action, torch.zeros_like(started))

    def add(self, record: StepRecord) -> None:
        """Store a step with its suggestion; see `Sink`."""
        assert self._now is not None
        self._replay.add(record._replace(extras={**record.extras, COLUMN: self._now}))
        self._now = None

    def cut(self) -> None:
        """See `Sink`."""
        self._replay.cut()

    def add_late(self, late: LateRewards) -> int:
        """See `Sink`."""
        return self._replay.add_late(late)

    def deliver(self, limit_s: float) -> None:
        """Store the suggestions that arrived after their step; waits up to `limit_s` seconds for missing ones."""
        tickets, actions = self._suggester.arrived(limit_s)
        if len(tickets):
            self.too_old += len(tickets) - self._replay.set_extra(COLUMN, tickets, actions)

    def metrics(self) -> dict[str, float]:
        """Scalars to log."""
        found = {f"guidance/{name}": value for name, value in self._suggester.metrics().items()}
        return found | ({"guidance/too_old": float(self.too_old)} if found else {})
