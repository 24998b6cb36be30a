"""Sampling of minibatches for many updates at once, for learners that sample from data or a replay.

Such a learner samples the rows of as many updates as fit into a bounded memory, including all random numbers, and
passes them to the engine together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from robotrl.engine.base import Updater

ROWS_BYTES = 64 << 20
"""Approximate limit of the memory for rows sampled at once, bytes."""
Draw = Callable[[int], dict[str, Tensor]]
"""Function from a number of updates to their rows, one update after the other."""


def part(batch: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in batch.items() if name.startswith(prefix)}


def fitting(updates: int, update_bytes: int) -> int:
    """Return the number of updates whose rows are sampled at once, 1 or more.

    Args:
        updates: largest number of consecutive updates.
        update_bytes: size of the rows of one update, bytes.
    """
    return max(1, min(updates, ROWS_BYTES // update_bytes))


def run_updates(
    engine: Updater, draw: Draw, updates: int, most: int, what: str, phase: str = ""
) -> dict[str, list[Tensor]]:
    """Make some updates; the rows of up to `most` of them are sampled at once.

    Args:
        engine: engine of the loss.
        draw: function that samples the rows of some updates.
        updates: number of updates.
        most: from `fitting`; the same in every call, since buffers are made for it.
        what: position in training, for errors.
        phase: see `Engine.run`.

    Returns:
        The loss's scalars by name, as a list of parts with one entry per update.
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
    """Return means over the updates, each over those that logged the name."""
    return {name: float(torch.cat(parts).mean()) for name, parts in info.items()}
