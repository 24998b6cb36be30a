"""Snapshots of a training: updates that turn out to be bad are undone bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from robotrl.engine.base import Updater
from robotrl.engine.update import LossModule


class Snapshot:
    """Copy of everything that updates change: weights, Adam's moments and counts, averages and carry.

    The choice of the execution mode and the number of updates to come are not part of it: updates that are undone took
    their time all the same, and nothing is compiled anew.

    Args:
        loss: the networks in training.
        engine: their engine, between two updates.
    """

    def __init__(self, loss: LossModule, engine: Updater) -> None:
        self._engine = engine
        self._weights = [(p, p.detach().clone()) for p in loss.parameters() if p.requires_grad]
        self._state = {name: x.clone() for name, x in engine.state().items() if isinstance(x, Tensor)}

    @torch.no_grad()
    def restore(self) -> None:
        """Undo all updates since, in place."""
        for parameter, before in self._weights:
            parameter.copy_(before)
        self._engine.load(self._state)
