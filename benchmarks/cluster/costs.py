"""Constants of the cost model of docs/clusters/cost.md, and how far iterations are from it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kit.figures import Figure, paired, spread
from robotrl.cluster.collector import ShardedRollouts
from robotrl.cluster.merging import joined_rollouts
from robotrl.cluster.shard import ShardRollout
from robotrl.cluster.weights import WeightPublisher
from robotrl.rollout.storage import Rollout
from robotrl.utils.devices import CPU

WORKERS = (1, 2, 4)
SHORT = 2
"""Steps of a rollout that costs its order alone."""
NOTES = {
    "publish": "p: a version of the weights is made",
    "order": "h: growth of a short rollout's time with each worker",
    "step": "r: an env step is joined to the rollout of all envs",
    "sent": "an env step as it is sent",
}
UNITS = {"publish": "ms", "order": "ms", "step": "us", "sent": "bytes"}


class Iteration(NamedTuple):
    """A measured rollout."""

    workers: int
    env_steps: int
    """Of each worker."""
    collect_s: float
    """Mean over workers of the time in which each collected."""
    slowest: float
    """Time of the slowest as a multiple of the mean."""
    wall_s: float


def predicted(one: Iteration, publish_s: float, order_s: float, step_s: float) -> float:
    """Time of an iteration without updates and delay, s, by the model."""
    learner = one.workers * (order_s + one.env_steps * step_s)
    return publish_s + one.slowest * one.collect_s + learner


def slope(workers: Sequence[int], seconds: Sequence[float]) -> float:
    """Growth of a time with each worker, s, by least squares."""
    return float(np.polyfit(workers, seconds, 1)[0])


def iteration(one: ShardedRollouts, workers: int, steps: int) -> Iteration:
    """Measure a rollout."""
    began = time.perf_counter()
    parts = one.gather(steps)
    joined_rollouts(_rollouts(parts), CPU)
    wall_s = time.perf_counter() - began
    seconds = [part.collect_s for part in parts]
    mean = statistics.fmean(seconds)
    return Iteration(workers, parts[0].env_steps, mean, max(seconds) / mean, wall_s)


def measured(routes: Mapping[int, ShardedRollouts], network: Any, steps: int, rounds: int) -> dict[str, Any]:
    """Samples of the constants, and the model's deviation.

    Args:
        routes: a collector for each number of workers.
        network: the policy whose weights are published.
        steps: steps of a long rollout.
        rounds: repetitions.
    """
    publisher = WeightPublisher()
    parts = routes[max(routes)].gather(steps)
    env_steps = sum(part.env_steps for part in parts)
    bytes_each = sum(map(_bytes, (part.rollout for part in parts))) / env_steps
    runs = {f"short_{workers}": partial(_seconds, partial(one.gather, SHORT)) for workers, one in routes.items()} | {
        "publish": partial(_seconds, partial(publisher.publish, network, None)),
        "join": partial(_seconds, partial(joined_rollouts, _rollouts(parts), CPU)),
    }
    timed = paired(runs, rounds).samples
    short = zip(*(timed[f"short_{workers}"] for workers in routes), strict=True)
    samples = {
        "publish": [1e3 * sample for sample in timed["publish"]],
        "order": [1e3 * slope(list(routes), list(seconds)) for seconds in short],
        "step": [1e6 * sample / env_steps for sample in timed["join"]],
        "sent": [bytes_each],
    }
    constants = [statistics.median(samples[name]) for name in ("publish", "order", "step")]
    publish_s, order_s, step_s = constants[0] / 1e3, constants[1] / 1e3, constants[2] / 1e6
    long = [iteration(one, workers, steps) for _ in range(rounds) for workers, one in routes.items()]
    off = [one.wall_s / predicted(one, publish_s, order_s, step_s) - 1 for one in long]
    return {"samples": samples, "long": [list(one) for one in long], "off": off}


def figures(found: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures of a cell's result."""
    out: dict[str, Figure] = {}
    for name, samples in found["samples"].items():
        middle = spread(samples)
        out[f"cost_{name}"] = Figure(
            middle.median, UNITS[name], runs=len(samples), low=middle.low, high=middle.high, note=NOTES[name]
        )
    off = spread(found["off"])
    out["cost_off"] = Figure(
        off.median,
        "",
        runs=len(found["off"]),
        low=off.low,
        high=off.high,
        note="measured time of an iteration over the model's, less 1",
    )
    return out


def rows(figures: Mapping[str, Figure]) -> list[str]:
    """Rows of a table of the constants."""
    return [
        f"| {NOTES[name]} | {figures[f'cost_{name}'].value:,.3g} {UNITS[name]} |"
        for name in NOTES
        if f"cost_{name}" in figures
    ] + (
        [f"| measured iterations against the model | {100 * (figures['cost_off'].value or 0):+.0f} % |"]
        if "cost_off" in figures
        else []
    )


def _seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _rollouts(parts: Sequence[ShardRollout]) -> list[Rollout]:
    return [part.rollout for part in parts if isinstance(part.rollout, Rollout)]


def _bytes(value: Any) -> int:
    """Bytes of the arrays in nested tuples and dicts."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if isinstance(value, tuple | list) else 0
