"""The section about workers: what it says of scalars, worked by hand."""

from __future__ import annotations

from typing import Any

from robotrl.report.compare.workers_section import cluster_row, workers_section


def record(step: int, speeds: tuple[float, float], slowest: int, **more: float) -> dict[str, float]:
    row: dict[str, Any] = {"step": step, "cluster/version": step, "cluster/slowest_worker": slowest}
    row |= {f"cluster/env_steps_per_s/worker_{worker}": speed for worker, speed in enumerate(speeds)}
    row |= {f"cluster/rollout_s/worker_{worker}": 100 / speed for worker, speed in enumerate(speeds)}
    return row | {f"cluster/{name}": value for name, value in more.items()}


COUNTS = {"restarts": 1, "lost_rollouts": 1, "weights_mb": 2.5, "slowest_ratio": 1.5}
RECORDS = [
    record(1, (100.0, 50.0), 1, staleness=0, **COUNTS),
    record(2, (200.0, 50.0), 1, staleness=1, share_learn=0.25, share_wait=0.5, share_publish=0.25, **COUNTS),
    record(3, (100.0, 400.0), 0, staleness=2, share_learn=0.35, share_wait=0.6, share_publish=0.05, **COUNTS),
]


def test_medians_shares_and_the_slowest_worker():
    row = cluster_row("runs/a", RECORDS)
    assert row is not None
    first, second = row.workers
    assert first.speeds == ((1, 100.0), (2, 200.0), (3, 100.0)) and first.rollout_s == 1.0
    assert second.rollout_s == 2.0 and row.slowest == {"worker_0": 1 / 3, "worker_1": 2 / 3}
    assert row.staleness == 1.0 and row.restarts == 1 and row.weights_mb == 2.5
    assert row.shares["wait"] == 0.55 and row.shares["learn"] == 0.3


def test_the_section_names_each_worker():
    row = cluster_row("runs/<a>", RECORDS)
    assert row is not None
    text = workers_section([row])
    assert "runs/&lt;a&gt;" in text and "worker_0" in text and "worker_1" in text
    assert "waiting for workers 55" in text and "Weights sent: 2.5" in text and "<svg" in text
    assert "1.5 times as long as the median" in text


def test_a_run_without_workers_has_none():
    assert cluster_row("runs/a", [{"step": 1, "env_steps": 5.0}]) is None and workers_section([]) == ""
