"""PA-RL with chunks (Mark et al. 2024, arXiv 2412.06685): the choice among own samples by a critic is cloned.

A critic of chunks learns from all episodes, failures included. In each state it chooses among samples of the policy,
and the policy clones the choice. See `robotrl.algos.pa_rl`.
"""

from __future__ import annotations

import math
from pathlib import Path

from robotrl.errors import DataError
from robotrl.improve.methods.base import CriticQuality, FitSettings, FittedCandidate
from robotrl.improve.methods.fitting import check_cloned, fit_run

RANK, AUC = "critic/heldout_rank", "critic/heldout_auc"
"""Scalars of the run."""


class PaRlMethod:
    """See the module."""

    name = "pa-rl"

    def check(self, policy: Path) -> None:
        """See `ImproveMethod.check`."""
        check_cloned(policy)

    def fit(self, policy: Path, data: Path, out: Path, settings: FitSettings) -> FittedCandidate:
        """See `ImproveMethod.fit`."""
        run = fit_run("pa-rl", policy, data, out / "run", settings)
        return FittedCandidate(run.path, quality_of(run.scalars, run.path))


def quality_of(scalars: dict[str, list[float]], run: Path) -> CriticQuality:
    """The last held-out quality of the critic of a run.

    Raises:
        DataError: the run has logged none.
    """
    last = [
        next((value for value in reversed(scalars.get(name, [])) if not math.isnan(value)), None)
        for name in (RANK, AUC)
    ]
    rank, auc = last
    if rank is None or auc is None:
        raise DataError(f"run {run} has logged no {RANK if rank is None else AUC}: expected it of a run of pa-rl")
    return CriticQuality(rank, auc)


METHOD = PaRlMethod()
