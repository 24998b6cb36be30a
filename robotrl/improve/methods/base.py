"""Contract of a method: from a policy and a dataset of labeled episodes to a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from robotrl.config import SimCfg


class FitSettings(NamedTuple):
    """Settings of a fit that all methods share."""

    sim: SimCfg
    """Sim of the policy, whose specs the training checks."""
    seed: int = 0
    device: str = "cpu"
    settings: Mapping[str, Any] = {}
    """Config fields of the training by path, e.g. "algo.updates"."""


class HeldOutQuality(NamedTuple):
    """Quality of a critic: its values against outcomes of episodes that it has not learned from."""

    rank: float | None
    """Rank correlation of values and outcomes, -1 to 1; None where the outcomes are all alike."""
    auc: float | None
    """Probability that a random success has a higher value than a random failure; None likewise."""
    episodes: int
    """Number of held-out episodes."""
    gain: float | None = None
    """Mean value of the chosen actions less that of the policy's samples: what the critic believes, and no evidence."""


class FittedCandidate(NamedTuple):
    """A policy that may be better."""

    policy: Path
    """Its run."""
    critic: HeldOutQuality | None
    """None of a method without a critic."""


class ImproveMethod(Protocol):
    """One method of improvement."""

    name: str

    def check(self, policy: Path) -> None:
        """Check before any work that a policy can be improved in this way.

        Raises:
            CapabilityError: it cannot; what it lacks is named.
        """
        ...

    def fit(self, policy: Path, data: Path, out: Path, settings: FitSettings) -> FittedCandidate:
        """Train a candidate; a fit that was killed goes on where it was.

        Args:
            policy: run or checkpoint of the policy of before, which must not change.
            data: dataset of `robotrl.improve.pieces.write_pieces`.
            out: folder of the method's files, which may hold those of a fit that was killed.
            settings: see `FitSettings`.

        Raises:
            RobotrlError: a fault of the settings, the data or the disk.
        """
        ...
