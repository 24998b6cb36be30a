"""A gate on a score: a change is kept only where the score rises by a margin."""

from __future__ import annotations

import math
from typing import NamedTuple


class ScoreGate(NamedTuple):
    """A decision on a change."""

    before: float
    after: float
    accepted: bool

    @classmethod
    def of(cls, before: float, after: float, margin: float) -> ScoreGate:
        """Accept if after - before >= margin |before|; a score that is not finite is rejected.

        Args:
            before: score without the change, finite.
            after: score with it.
            margin: least rise, as a fraction of the score before; 0 or more.
        """
        return cls(before, after, math.isfinite(after) and after - before >= margin * abs(before))
