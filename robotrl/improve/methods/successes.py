"""Cloning of the successes: the policy goes on imitating what went well, and what a person did.

It needs no critic, and is the method to beat: where failures are rare mistakes it gains what filtering gains, and no
more, since nothing tells good actions of a failed episode from bad ones.
"""

from __future__ import annotations

from pathlib import Path

from robotrl.datasets.layout import INFO
from robotrl.improve.methods.base import FitSettings, FittedCandidate
from robotrl.improve.methods.fitting import check_cloned, fit_run
from robotrl.improve.pieces import write_good


class SuccessesMethod:
    """See the module."""

    name = "successes"

    def check(self, policy: Path) -> None:
        """See `ImproveMethod.check`."""
        check_cloned(policy)

    def fit(self, policy: Path, data: Path, out: Path, settings: FitSettings) -> FittedCandidate:
        """See `ImproveMethod.fit`."""
        good = out / "successes"
        if not (good / INFO).is_file():
            write_good(good, data)
        return FittedCandidate(fit_run("bc", policy, good, out / "run", settings).path, None)


METHOD = SuccessesMethod()
