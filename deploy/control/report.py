"""Report of a control run: episodes, timing and safety statistics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from robotrl.deploy.bundle import strict
from robotrl.deploy.control.safety import Counters
from robotrl.deploy.control.shadow import ShadowReport
from robotrl.deploy.robots.start_motion import StartedBy

REPORT_BEGINS = re.compile(rb'\{\s*"schema_version": 1,\s*"bundle_id": "[0-9a-f]{64}",\s*"robot": ')
"""Pattern of the first bytes of a report file, see `robotrl deploy --json`."""


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of measured times, in microseconds."""

    p50: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True)
class Histogram:
    """Counts between edges, `len(edges) - 1` of them; the last one includes larger values."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class EpisodeReport:
    """Result of one episode."""

    state_id: int
    success: bool
    ticks: int
    duration_s: float


@dataclass(frozen=True)
class ControlReport:
    """Report of a control run.

    Args:
        bundle_id: identity of the bundle.
        robot: name of the robot.
        seed: seed of the sampler's noise.
        rate_hz: control rate, from the bundle.
        servo_hz: rate at which the servo commands the robot.
        episodes: results of the episodes, in order.
        successes: number of successful episodes.
        ticks: control ticks run.
        lateness_us: time from a control tick's deadline to the servo's wake-up, all ticks.
        servo_lateness_us: the same for all ticks of the servo, those between control ticks and of motions to a start
            pose included.
        inference_us: time from the request to the chunk.
        busy_us: time from the wake-up until the command is sent, all control ticks.
        observation_age_us: age of the observation when it is read.
        deadline_misses: control periods in which no command was sent, those of motions to a start pose left out.
        over_budget: ticks whose inference took longer than the bundle's latency budget.
        chunks_expired: chunks that were dropped before their end, because their next action was too late.
        lateness_histogram_us: histogram of the lateness, for plots.
        safety: counters of the safety chain, without the ticks of motions to a start pose.
        start_deadline_misses: control periods of such motions in which no command was sent.
        start_safety: counters of the safety chain in such motions; zeros where the servo moves no robot to its start.
        robot_steps_made_up: inner steps that the robot's process caught up after late wake-ups.
        robot_time_lost_s: simulated time that it could not catch up.
        torn_reads: messages that were being written while they were read, and were read again.
        golden_error: largest difference on the golden ticks, as a fraction of the action range.
        scheduling: active scheduling, as text.
        inference: "local", or the address of the policy server.
        runtime: "python" or "native": what ran the servo.
        engine: what computed the policy's graph: see `InferenceSession.engine`.
        started_by: what brought the robot to its starts; "driver": a motion that the safety chain did not see.
        shadow: comparison with a policy in the shadow of this one; None without one.
        log: path of the log, if there is one.
        log_error: reason why the log is not whole, if it is not.
    """

    bundle_id: str
    robot: str
    seed: int
    rate_hz: float
    servo_hz: float
    episodes: tuple[EpisodeReport, ...]
    successes: int
    ticks: int
    lateness_us: Percentiles
    servo_lateness_us: Percentiles
    inference_us: Percentiles
    busy_us: Percentiles
    observation_age_us: Percentiles
    deadline_misses: int
    over_budget: int
    chunks_expired: int
    lateness_histogram_us: Histogram
    safety: Counters
    start_deadline_misses: int
    start_safety: Counters
    robot_steps_made_up: int
    robot_time_lost_s: float
    torn_reads: int
    golden_error: float
    scheduling: str
    inference: str
    runtime: str
    engine: str
    started_by: StartedBy
    shadow: ShadowReport | None
    log: str | None
    log_error: str | None

    @property
    def success_rate(self) -> float:
        """Fraction of successful episodes."""
        return self.successes / len(self.episodes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return strict.to_json(self)


class TickTimes(NamedTuple):
    """Measured times of a run's ticks, in nanoseconds."""

    lateness: list[int]
    inference: list[int]
    busy: list[int]
    age: list[int]


def percentiles(times_ns: list[int]) -> Percentiles:
    """Compute percentiles in microseconds; zeros for no times."""
    if not times_ns:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    p50, p99, p999 = np.percentile(np.asarray(times_ns, np.float64) / 1e3, (50, 99, 99.9)).tolist()
    return Percentiles(p50, p99, p999, max(times_ns) / 1e3)


def histogram(times_ns: list[int]) -> Histogram:
    """Compute a histogram with logarithmic bins from 1 us to 100 ms; the first bin begins at 0."""
    edges = np.concatenate(([0.0], np.geomspace(1.0, 1e5, 41)))
    micro = np.minimum(np.asarray(times_ns, np.float64) / 1e3, edges[-1])
    counts, _ = np.histogram(micro, edges)
    return Histogram(tuple(edges.tolist()), tuple(int(c) for c in counts))
