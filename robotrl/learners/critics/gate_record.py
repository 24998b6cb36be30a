"""Record of a gate on a score: the score of the policy that stays, decisions, and scalars to log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robotrl.fn.evidence.score_gate import ScoreGate


class GateRecord:
    """Score of the old policy, and scalars that stay until the next decision."""

    def __init__(self) -> None:
        self.score: float | None = None
        """J of the old policy; None before the policy learns."""
        self.start = 0.0
        """J of the policy that the run began with."""
        self.scalars: dict[str, float] = {}

    def begin(self, score: float) -> None:
        """Take the score of the policy that the run begins with."""
        self.score = self.start = score

    def judge(self, after: float, margin: float) -> bool:
        """Decide on an iteration's updates; True if they stay."""
        assert self.score is not None, "the policy of before is scored first"
        found = ScoreGate.of(self.score, after, margin)
        self.score = found.after if found.accepted else found.before
        self.scalars = {
            "gate/score": found.after,
            "gate/before": found.before,
            "gate/accepted": float(found.accepted),
            "gate/gain": self.score - self.start,
        }
        return found.accepted

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"score": self.score, "start": self.start, "scalars": dict(self.scalars)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.score, self.start, self.scalars = state["score"], state["start"], dict(state["scalars"])
