"""RECAP (pi*0.6, arXiv 2511.14759): all episodes are cloned, with the advantage of each action as an input.

A value of states learns from all episodes, failures included, and labels their actions; the policy clones them by their
labels, and acts as the good ones did. See `robotrl.algos.recap`.
"""

from __future__ import annotations

from pathlib import Path

from robotrl.errors import CapabilityError
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.improve.methods.base import FitSettings, FittedCandidate
from robotrl.improve.methods.fitting import fit_run
from robotrl.improve.methods.pa_rl import HELD_OUT, quality_of
from robotrl.policies.conditioned import ConditionedCfg, ConditionedPolicy
from robotrl.run.policy_checkpoint import load_policy

DEFAULTS = {**HELD_OUT, "algo.least_rank": -1.0}
"""Settings of a fit: a value that cannot rank is refused by the round, which says so on its page, not by an error."""


class RecapMethod:
    """See the module."""

    name = "recap"

    def check(self, policy: Path) -> None:
        """See `ImproveMethod.check`."""
        found = load_policy(policy)
        try:
            conditioned = found if isinstance(found, ConditionedPolicy) else ConditionedCfg().build(found)
            clone_loss_of(conditioned.base)
        except CapabilityError as error:
            raise CapabilityError(f"{policy} cannot be improved: {error}") from error

    def fit(self, policy: Path, data: Path, out: Path, settings: FitSettings) -> FittedCandidate:
        """See `ImproveMethod.fit`."""
        given = settings._replace(settings={**DEFAULTS, **settings.settings})
        run = fit_run("recap", policy, data, out / "run", given)
        return FittedCandidate(run.path, quality_of(run.scalars))


METHOD = RecapMethod()
