"""Rows of many updates, drawn before they are made: how learners that draw their minibatches feed the engine.

A learner that samples draws rows for as many updates as fit into a bounded memory, all randomness included, and hands
them to the engine at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from robotrl.engine.base import Updater

ROWS_BYTES = 64 << 20
"""Rows drawn at once for the next updates take about this much memory at most."""
Draw = Callable[[int], dict[str, Tensor]]
"""Rows for so many updates, one after the other."""


def part(batch: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in batch.items() if name.startswith(prefix)}


def fitting(updates: int, update_bytes: int) -> int:
    """How many of the updates get their rows drawn at once, 1 or more.

    Args:
        updates: the most that will ever be made in a row.
        update_bytes: what the rows of one take.
    """
    return max(1, min(updates, ROWS_BYTES // update_bytes))


def run_updates(
    engine: Updater, draw: Draw, updates: int, most: int, what: str, phase: str = ""
) -> dict[str, list[Tensor]]:
    """Make so many updates, the rows of up to `most` of them drawn at once.

    Args:
        engine: of the loss.
        draw: rows for a number of updates.
        updates: how many.
        most: from `fitting`; the same in every call, since buffers are made for it.
        what: where this is in training, for errors.
        phase: see `Engine.run`.

    Returns:
        What the loss logs, parts of one entry for each update.
    """
    info: dict[str, list[Tensor]] = {}
    for begin in range(0, updates, most):
        count = min(most, updates - begin)
        order = torch.arange(count * engine.minibatch)
        done = engine.run(draw(count), order, most * engine.minibatch, what, phase)
        for name, values in done.info.items():
            info.setdefault(name, []).append(values)
    return info


def means(info: Mapping[str, list[Tensor]]) -> dict[str, float]:
    """Means over the updates, each over those that logged the name."""
    return {name: float(torch.cat(parts).mean()) for name, parts in info.items()}
