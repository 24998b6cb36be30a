"""A scorer for the tests of the scoring service, and pictures that carry their ticket; workers import this module."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.scorer import ScorerRecipe
from robotrl.rewards.scoring.service import ScoringService

SIDE = 4
SHAPE = (SIDE, SIDE)
"""Height and width of the pictures."""
FAULT = (slice(None), 1, 0, 0)
"""Pixel that says which fault a picture causes."""
NAN, INFINITE, RAISE, DIE, DIE_ONCE, HANG, SLOW, SHAPELESS = range(1, 9)


def pictures_of(tickets: NDArray[np.int64], faults: dict[int, int] | None = None) -> NDArray[np.uint8]:
    """(n, 4, 4, 3) pictures: the first three pixels carry the ticket, one the fault, the rest is noise.

    Args:
        tickets: (n,) below 2**24.
        faults: fault by ticket.
    """
    out = (tickets[:, None, None, None] * np.arange(1, 49).reshape(1, SIDE, SIDE, 3) % 251).astype(np.uint8)
    for channel in range(3):
        out[:, 0, 0, channel] = tickets >> (8 * channel) & 255
    out[FAULT] = [(faults or {}).get(ticket, 0) for ticket in tickets.tolist()]
    return out


def answers_of(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 2): the ticket in the picture, and the mean of its pixels."""
    first = pictures[:, 0, 0].astype(np.int64)
    tickets = first[:, 0] + (first[:, 1] << 8) + (first[:, 2] << 16)
    return np.stack([tickets.astype(np.float32), pictures.reshape(len(pictures), -1).mean(1, np.float32)], 1)


class PixelScorer:
    """Answers what `answers_of` says.

    Args:
        log: file that gets a line for each batch: process, number of pictures; "" writes none.
        delay_s: longest random delay of a batch.
        slow_s: delay of a batch with a SLOW picture.
        identity: the scorer's.
        ill: file; while it is there every batch ends the worker, or, if its text is "slow", takes `slow_s`.
    """

    num_outputs = 2

    def __init__(self, log: str, delay_s: float, slow_s: float, identity: str, ill: str = "") -> None:
        self.identity, self._ill = identity, ill
        self._log, self._delay_s, self._slow_s = log, delay_s, slow_s
        self._random = random.Random(os.getpid())

    def score(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        out = answers_of(pictures)
        faults = pictures[FAULT]
        if self._log:
            with Path(self._log).open("a") as file:
                file.write(f"{os.getpid()} {len(pictures)}\n")
        if self._ill and Path(self._ill).exists():
            if Path(self._ill).read_text() != "slow":
                os._exit(5)
            time.sleep(self._slow_s)
        if self._delay_s:
            time.sleep(self._random.uniform(0, self._delay_s))
        if (faults == SLOW).any():
            time.sleep(self._slow_s)
        if (faults == HANG).any():
            time.sleep(1000)
        if (faults == RAISE).any():
            raise ValueError("a picture of the moon")
        if (faults == DIE).any():
            os._exit(7)
        if (faults == DIE_ONCE).any() and not Path(self._log + ".died").exists():
            Path(self._log + ".died").touch()
            os._exit(9)
        if (faults == SHAPELESS).any():
            return out[:, 0]
        out[faults == NAN, 1] = np.nan
        out[faults == INFINITE, 0] = np.inf
        return out


def make_scorer(
    log: str = "",
    delay_s: float = 0.0,
    slow_s: float = 0.3,
    identity: str = "pixels",
    fails: str = "",
    start_s: float = 0.0,
    ill: str = "",
) -> Any:
    """The factory of the recipes; `fails` makes it fail, and `start_s` slow."""
    if log and start_s:
        Path(log).write_text(f"{os.getpid()} 0\n")
    time.sleep(start_s)
    if ill and Path(ill).exists() and Path(ill).read_text() == "no start":
        raise LookupError("the weights are gone")
    if fails == "raise":
        raise LookupError("no weights in this folder")
    if fails == "exit":
        os._exit(3)
    if fails == "differs":
        identity = f"{identity}-{os.getpid()}"
    if fails == "no scorer":
        return 7
    if fails == "no outputs":
        scorer = PixelScorer(log, delay_s, slow_s, identity)
        scorer.num_outputs = 0
        return scorer
    return PixelScorer(log, delay_s, slow_s, identity, ill)


def service_of(cfg: ServiceCfg | None = None, **arguments: Any) -> ScoringService:
    """A service with the scorer of this module."""
    recipe = ScorerRecipe("tests.kits.scoring_kit:make_scorer", arguments)
    return ScoringService(recipe, ServiceCfg() if cfg is None else cfg, SHAPE)


def batches_in(log: Path) -> list[tuple[int, int]]:
    """Process and number of pictures of each batch in a log."""
    if not log.exists():
        return []
    return [(int(pid), int(count)) for pid, count in (line.split() for line in log.read_text().splitlines())]
