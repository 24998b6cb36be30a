"""RL-100's offline stage (arXiv 2510.14830): policy gradient through the denoising chain, by critics of the logs.

Critics learn from all episodes, failures included. In their states the policy samples chains, and follows the critics;
updates by which the critics' score does not rise are undone. See `robotrl.algos.rl100`.
"""

from __future__ import annotations

from pathlib import Path

from robotrl.errors import CapabilityError
from robotrl.fn.candidates.proposals import sampler_of
from robotrl.improve.methods.base import FitSettings, FittedCandidate
from robotrl.improve.methods.fitting import fit_run
from robotrl.improve.methods.pa_rl import HELD_OUT, quality_of
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasChain

GAIN = "gate/gain"
"""Scalar of the run: the critics' score of the policy, less that of the policy of before."""


class Rl100Method:
    """See the module."""

    name = "rl100"

    def check(self, policy: Path) -> None:
        """See `ImproveMethod.check`."""
        found = load_policy(policy)
        if not isinstance(found, HasChain):
            raise CapabilityError(
                f"{policy} cannot be improved: policy {type(found).__name__} lacks HasChain: rl100 needs a flow or"
                " diffusion policy; expected another method, e.g. pa-rl"
            )
        try:
            sampler_of(found)
        except CapabilityError as error:
            raise CapabilityError(f"{policy} cannot be improved: {error}") from error

    def fit(self, policy: Path, data: Path, out: Path, settings: FitSettings) -> FittedCandidate:
        """See `ImproveMethod.fit`."""
        given = settings._replace(settings={**HELD_OUT, **settings.settings})
        run = fit_run("rl100", policy, data, out / "run", given)
        return FittedCandidate(run.path, quality_of(run.scalars, GAIN))


METHOD = Rl100Method()
