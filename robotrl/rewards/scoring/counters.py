"""Counts and latencies of the service, as scalars to log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

RECENT = 1024
"""Number of answers whose latency is kept."""


@dataclass
class ServiceCounters:
    """Counts since the service began."""

    submitted: int = 0
    accepted: int = 0
    hits: int = 0
    """Pictures whose answer was known, or on its way for the same picture."""
    dropped: int = 0
    """Pictures that found the queue full."""
    refused: int = 0
    """Pictures beyond the budget."""
    unserved: int = 0
    """Pictures that came while no worker ran."""
    invalid: int = 0
    """Answers without finite outputs, pictures on which the scorer failed, and those that waited when no worker was
    left."""
    timed_out: int = 0
    restarts: int = 0
    outages: int = 0
    """Times that no worker was left."""
    scorer_errors: int = 0
    """Batches on which the scorer raised an error."""
    latencies_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=RECENT))
    """Times from submission to answer of the newest scored pictures, s."""

    def scalars(self) -> dict[str, float]:
        """Shares of the submitted pictures and counts; latencies once there are any."""
        asked = max(self.submitted, 1)
        out = {
            "hit_rate": self.hits / asked,
            "accepted": self.accepted / asked,
            "dropped": self.dropped / asked,
            "refused": self.refused / asked,
            "unserved": self.unserved / asked,
            "invalid": self.invalid / asked,
            "timed_out": self.timed_out / asked,
            "scorer_errors": float(self.scorer_errors),
            "worker_restarts": float(self.restarts),
            "outages": float(self.outages),
        }
        if self.latencies_s:
            p50, p95 = np.percentile(self.latencies_s, (50, 95))
            out |= {"latency_p50_s": float(p50), "latency_p95_s": float(p95)}
        return out
