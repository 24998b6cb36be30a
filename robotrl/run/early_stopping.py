"""When a run ends before its budget: evaluations in a row that are good enough."""

from __future__ import annotations

from typing import Any

from robotrl.config import SOLVED, TrainCfg
from robotrl.rollout.evaluate import EvalResult
from robotrl.spec import HasSolvedReturn, VecSim

GOOD_ENOUGH = 2
"""Evaluations in a row that end a run."""


class StopRule:
    """Counts the evaluations in a row that are good enough, by a run's config.

    Args:
        cfg: its fields `stop_at_success` and `stop_at_return`.
        sim: of the evaluations; it may state the return from which it counts as solved.
    """

    def __init__(self, cfg: TrainCfg[Any, Any], sim: VecSim) -> None:
        self._success = cfg.stop_at_success
        stated = sim.solved_return if isinstance(sim, HasSolvedReturn) else None
        self._return = stated if cfg.stop_at_return == SOLVED else cfg.stop_at_return
        self.may_stop = self._success is not None or self._return is not None
        """Whether a run may end before its budget."""

    def streak(self, before: int, result: EvalResult, best: float | None) -> int:
        """Evaluations in a row that are good enough, this one counted.

        Args:
            before: how many there were before it.
            result: of this one.
            best: the best score of those before it, None where it is the first.
        """
        if self._success is not None and result.rate.value >= self._success:
            return before + 1
        mean = float(result.returns.mean())
        if self._return is None or mean < self._return:
            return 0
        # one that still gets better is a beginning
        return before + 1 if best is not None and mean <= best else 1
