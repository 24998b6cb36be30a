"""Counts and latencies of an endpoint, as scalars to log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

RECENT = 1024
"""Number of answers whose latency is kept."""


@dataclass
class EndpointCounters:
    """Counts since the client was made."""

    submitted: int = 0
    hits: int = 0
    """Requests whose answer was known, or on its way for the same request."""
    dropped: int = 0
    """Requests that found the queue full."""
    refused: int = 0
    """Requests beyond the budget."""
    invalid: int = 0
    """Answers of another form than asked for."""
    failed: int = 0
    """Requests that got no answer: faults of the server or of the way there."""
    timed_out: int = 0
    """Requests without an answer within their time limit."""
    valid: int = 0
    retries: int = 0
    faults: int = 0
    """Calls that ended with a fault."""
    latencies_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=RECENT))
    """Times from submission to answer of the newest valid answers that were not known, s."""

    def counts(self) -> dict[str, int]:
        """All counts by their names."""
        return {name: value for name, value in vars(self).items() if name != "latencies_s"}

    def scalars(self) -> dict[str, float]:
        """Shares of the submitted requests, named as those of the scoring service; the other counts as numbers.

        Latencies come once there are any.
        """
        asked = max(self.submitted, 1)
        out = {
            "submitted": float(self.submitted),
            "hit_rate": self.hits / asked,
            "valid": self.valid / asked,
            "dropped": self.dropped / asked,
            "refused": self.refused / asked,
            "invalid": self.invalid / asked,
            "failed": self.failed / asked,
            "timed_out": self.timed_out / asked,
            "retries": float(self.retries),
            "faults": float(self.faults),
        }
        if self.latencies_s:
            p50, p95 = np.percentile(self.latencies_s, (50, 95))
            out |= {"latency_p50_s": float(p50), "latency_p95_s": float(p95)}
        return out
