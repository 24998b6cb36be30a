"""Measures the overhead of the scoring service: `python tools/scoring_overhead.py [SIDE ...]`.

Microseconds of the trainer's thread per picture, and pictures per second with scorers that do nothing: what the service
itself costs, whatever the model.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.scorer import ScorerRecipe
from robotrl.rewards.scoring.service import ScoringService

BATCH, ROUNDS = 64, 60


class FirstPixel:
    """Answers with the first pixel."""

    identity = "first pixel"
    num_outputs = 1

    def score(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the first number of each picture."""
        return pictures[:, 0, 0, :1].astype(np.float32)


def make_scorer() -> FirstPixel:
    """Factory of the recipe."""
    return FirstPixel()


def submissions(service: ScoringService, pictures: NDArray[np.uint8], fresh: bool) -> tuple[float, float]:
    """Median seconds of a submission of a batch, and of the collection of its answers.

    Args:
        service: the service.
        pictures: (B, h, w, 3).
        fresh: change each picture for each submission.
    """
    submitted, collected = list[float](), list[float]()
    for k in range(ROUNDS):
        if fresh:
            pictures[:, 0, 0, 1] = k
        tickets = np.arange(k * BATCH, (k + 1) * BATCH)
        began_s = time.perf_counter()
        assert service.submit(tickets, pictures).all()
        submitted.append(time.perf_counter() - began_s)
        while service.pending:
            time.sleep(0.001)
        began_s = time.perf_counter()
        service.collect()
        collected.append(time.perf_counter() - began_s)
    return statistics.median(submitted), statistics.median(collected)


def throughput(service: ScoringService, pictures: NDArray[np.uint8]) -> float:
    """Pictures per second from submission to collection."""
    count = 100 * BATCH
    began_s = time.perf_counter()
    for first in range(0, count, BATCH):
        assert service.submit(np.arange(first, first + BATCH), pictures).all()
        service.collect()
    service.wait(60.0)
    return count / (time.perf_counter() - began_s)


def measure(side: int) -> None:
    """Print a row of the table for pictures of this side."""
    pictures = np.random.default_rng(0).integers(0, 256, (BATCH, side, side, 3), np.uint8)
    recipe = ScorerRecipe("scoring_overhead:make_scorer")
    cells = list[str]()
    with ScoringService(recipe, ServiceCfg(cache_frames=0, flush_after_s=0.0), (side, side)) as service:
        put_s, got_s = submissions(service, pictures, fresh=True)
        cells += [f"{put_s / BATCH * 1e6:.1f}"]
    with ScoringService(recipe, ServiceCfg(flush_after_s=0.0), (side, side)) as service:
        put_s, got_s = submissions(service, pictures, fresh=True)
        known_s, _ = submissions(service, pictures, fresh=False)
        cells += [f"{put_s / BATCH * 1e6:.1f}", f"{known_s / BATCH * 1e6:.1f}", f"{got_s / BATCH * 1e6:.1f}"]
    cfg = ServiceCfg(cache_frames=0, when_full="wait", wait_s=60.0)
    with ScoringService(recipe, cfg, (side, side)) as service:
        cells.append(f"{throughput(service, pictures):,.0f}")
    print(f"| {side} x {side} | {' | '.join(cells)} |")


def main(sides: Sequence[str]) -> int:
    """Print the table."""
    # for the workers, which import the scorer from here
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    print("| picture | submit, no cache, us | submit, us | submit, known, us | collect, us | pictures/s, one worker |")
    print("| --- | --- | --- | --- | --- | --- |")
    for side in sides or ("64", "96", "224"):
        measure(int(side))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
