"""Attention gates: which scenes are worth asking a larger model about; and what a gate caught and missed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, short
from robotrl.rewards.scoring.scorer import ScorerRecipe
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.spec import VecSim
from robotrl.spec.vehicle import HasTimeToCollision


def require_objects(sim: VecSim, field: str) -> HasTimeToCollision:
    """The sim, as one that knows how soon the ego collides.

    Raises:
        CapabilityError: it does not.
    """
    if not isinstance(sim, HasTimeToCollision):
        raise CapabilityError(
            f"{field} is 'objects', and sim {type(sim).__name__} lacks HasTimeToCollision: expected 'words' or"
            " 'scorer', which look at the picture"
        )
    return sim


class WordGate:
    """Opens where a picture resembles the sentences of danger more than most pictures do.

    Args:
        safe: number of safe sentences, the first of the outputs.
        window: its upper end is the threshold.
    """

    def __init__(self, safe: int, window: CalibratedWindow) -> None:
        self._safe, self.window = safe, window

    def __call__(self, similarity: Tensor) -> Tensor:
        """Take similarities (n, K) into account; returns (n,) bool, none before the threshold is found."""
        score = similarity[:, self._safe :].max(dim=1).values - similarity[:, : self._safe].mean(dim=1)
        self.window.see(score)
        found = self.window.window
        return torch.zeros(len(score), dtype=torch.bool) if found is None else score >= found[1]


class ScorerGate:
    """Gate of a detector or classifier of one's own: it opens where the output reaches a threshold.

    Where the scorer fails, or its output is not a number, the gate stays shut: a fault costs scenes, not the run.

    Args:
        factory: see `ScorerRecipe.factory`; the scorer has one output.
        threshold: smallest output that opens the gate.
        field: name of the setting, for errors.

    Raises:
        ConfigError: the factory cannot be imported, or does not return a scorer of one output.
    """

    def __init__(self, factory: str, threshold: float, field: str) -> None:
        self._scorer = ScorerRecipe(factory).make()
        if self._scorer.num_outputs != 1:
            raise ConfigError(
                f"{field} is {factory!r}, whose scorer has {self._scorer.num_outputs} outputs: expected 1"
            )
        self._threshold, self._field = threshold, field
        self._warned = False

    def __call__(self, pictures: NDArray[np.uint8]) -> tuple[Tensor, int]:
        """Open (n,) bool for pictures (n, h, w, 3), and the number of those for which there was no output."""
        fault = "an output is NaN"
        try:
            output = self._scorer.score(pictures)[:, 0]
        except Exception as error:
            output = np.full(len(pictures), np.nan, np.float32)
            fault = f"{type(error).__name__}: {short(' '.join(str(error).split()), 200)}"
        failed = int(np.isnan(output).sum())
        if failed and not self._warned:
            self._warned = True
            warnings.warn(f"{self._field}: {fault}; the gate stays shut there, and gate_failed counts it", stacklevel=2)
        return torch.from_numpy(output >= self._threshold), failed


@dataclass
class GateCounters:
    """Counts since the start, as scalars to log."""

    seen: int = 0
    """Scenes that the gate decided about."""
    open: int = 0
    asked: int = 0
    """Open scenes about which the larger model was asked."""
    held: int = 0
    """Open scenes soon after another request of their env."""
    missed: int = 0
    """Open scenes that were not asked about, as the queue was full, the budget spent or the clip gone."""
    true: int = 0
    """Scenes that matter by the sim's own truth."""
    caught: int = 0
    """Those of them for which the gate was open."""
    comparable: int = 0
    """Scenes of which the sim says whether they matter."""
    open_comparable: int = 0
    failed: int = 0
    """Pictures for which the scorer of gate "scorer" had no number."""

    def count(self, opened: Tensor, truth: Tensor | None) -> None:
        """Count decisions (n,) bool, with the truth (n,) bool where the sim knows it."""
        self.seen += len(opened)
        self.open += int(opened.sum())
        if truth is not None:
            self.comparable += len(opened)
            self.open_comparable += int(opened.sum())
            self.true += int(truth.sum())
            self.caught += int((truth & opened).sum())

    def scalars(self) -> dict[str, float]:
        """Shares of the scenes; recall and precision once there is something to judge."""
        seen = max(self.seen, 1)
        out = {
            "gate_open": self.open / seen,
            "gate_asked": float(self.asked),
            "gate_held": float(self.held),
            "gate_missed": float(self.missed),
            "gate_failed": float(self.failed),
        }
        if self.true:
            out["gate_recall"] = self.caught / self.true
        if self.open_comparable:
            out["gate_precision"] = self.caught / self.open_comparable
        return out

    def state(self) -> NDArray[np.int64]:
        """Counts to resume from."""
        return np.array(list(vars(self).values()), np.int64)

    def load(self, state: NDArray[np.generic]) -> None:
        """Restore the result of `state`."""
        # states of before had fewer counts
        vars(self).update(zip(list(vars(self)), state.tolist(), strict=False))
