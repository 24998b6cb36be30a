"""Scalars of a cluster run: speed of each worker, the slowest one, and the share of time of each stage."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from robotrl.cluster.shard import ShardRollout

LISTED = 64
"""Up to so many workers have scalars of their own; of more, the fastest, the median and the slowest are logged."""

COUNTS = frozenset(
    {
        *("requests_paid", "cost", "submitted", "retries", "faults", "lost", "queue_length", "pending"),
        *("scorer_errors", "worker_restarts", "outages", "down", "gate_asked", "gate_held", "gate_missed"),
        "gate_failed",
    }
)
"""Scalars of what scores beside a sim that are added up over the workers; others are shares, of which the mean is
taken."""


class ClusterScalars:
    """Gathers the scalars of rollouts."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}
        self._ended: float | None = None

    def add(self, parts: Sequence[ShardRollout], began: float, published: float, taken: float) -> None:
        """Add a rollout.

        Args:
            parts: the shards' rollouts.
            began: time at which the learner asked for it, s.
            published: time at which the weights were on their way, s.
            taken: time at which all shards' rollouts were there, s.
        """
        seconds = [part.collect_s for part in parts]
        speeds = [part.env_steps / max(part.collect_s, 1e-9) for part in parts]
        slowest = max(range(len(parts)), key=seconds.__getitem__)
        found = {
            "cluster/wait_s": taken - published,
            "cluster/rollout_s": seconds[slowest],
            "cluster/slowest_worker": float(slowest),
            "cluster/slowest_ratio": seconds[slowest] / max(statistics.median(seconds), 1e-9),
        }
        if len(parts) <= LISTED:
            for shard, (speed, took) in enumerate(zip(speeds, seconds, strict=True)):
                found[f"cluster/env_steps_per_s/worker_{shard}"] = speed
                found[f"cluster/rollout_s/worker_{shard}"] = took
        else:
            for name, chosen in (("fastest", max), ("median", statistics.median), ("slowest", min)):
                found[f"cluster/env_steps_per_s/{name}"] = chosen(speeds)
        if self._ended is not None:
            # from the end of the last collection to the end of this one
            whole = max(taken - self._ended, 1e-9)
            found |= {
                "cluster/share_learn": (began - self._ended) / whole,
                "cluster/share_publish": (published - began) / whole,
                "cluster/share_wait": (taken - published) / whole,
            }
        self._ended = taken
        names = dict.fromkeys(name for part in parts for name in part.scalars)
        for name in names:
            values = [part.scalars[name] for part in parts if name in part.scalars]
            # what was asked and paid is that of the run
            together = name.startswith("scoring/") and name.rpartition("/")[2] in COUNTS
            found[name] = math.fsum(values) if together else statistics.fmean(values)
        self._found = found

    def take(self) -> dict[str, float]:
        """Return the scalars of the last rollout."""
        found, self._found = self._found, {}
        return found
