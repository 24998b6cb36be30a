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

    def scalars(self) -> dict[str, float]:
        """Counts, and latencies once there are any."""
        out = {name: float(value) for name, value in vars(self).items() if name != "latencies_s"}
        if self.latencies_s:
            p50, p95 = np.percentile(self.latencies_s, (50, 95))
            out |= {"latency_p50_s": float(p50), "latency_p95_s": float(p95)}
        return out
