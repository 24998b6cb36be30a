"""PA-RL with chunks (Mark et al. 2024, arXiv 2412.06685): the choice among own samples by a critic is cloned.

A critic of chunks learns from all episodes, failures included. In each state it chooses among samples of the policy,
and the policy clones the choice. See `robotrl.algos.pa_rl`.
"""

from __future__ import annotations

import math
from pathlib import Path

from robotrl.improve.methods.base import FitSettings, FittedCandidate, HeldOutQuality
from robotrl.improve.methods.fitting import check_cloned, fit_run

RANK, AUC, EPISODES = "critic/heldout_rank", "critic/heldout_auc", "critic/heldout_episodes"
GAIN = "chosen_gain"
"""Scalars of the run; one that cannot be computed is left out."""
HELD_OUT = {"algo.held_out": 0.2}
"""Share of the episodes by which the critic is judged: more than elsewhere, for robots leave few."""


class PaRlMethod:
    """See the module."""

    name = "pa-rl"

    def check(self, policy: Path) -> None:
        """See `ImproveMethod.check`."""
        check_cloned(policy)

    def fit(self, policy: Path, data: Path, out: Path, settings: FitSettings) -> FittedCandidate:
        """See `ImproveMethod.fit`."""
        given = settings._replace(settings={**HELD_OUT, **settings.settings})
        run = fit_run("pa-rl", policy, data, out / "run", given)
        return FittedCandidate(run.path, quality_of(run.scalars))


def quality_of(scalars: dict[str, list[float]], gain_name: str = GAIN) -> HeldOutQuality:
    """The last held-out quality of the critic of a run.

    Args:
        scalars: the run's scalars by name.
        gain_name: name of what the critic believes that the policy has gained.
    """
    rank, auc, episodes, gain = (_last(scalars.get(name, [])) for name in (RANK, AUC, EPISODES, gain_name))
    return HeldOutQuality(rank, auc, int(episodes or 0), gain)


def _last(values: list[float]) -> float | None:
    """The last value that was logged; None if there is none."""
    return next((value for value in reversed(values) if not math.isnan(value)), None)


METHOD = PaRlMethod()
