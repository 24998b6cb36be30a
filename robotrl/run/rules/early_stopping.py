"""Early stopping: ends a run before its budget after consecutive good evaluations."""

from __future__ import annotations

from typing import Any

from robotrl.config import SOLVED, TrainCfg
from robotrl.rollout.evaluate import EvalResult
from robotrl.spec import HasSolvedReturn, VecSim

GOOD_ENOUGH = 2
"""Consecutive good evaluations that end a run."""


class StopRule:
    """Counts consecutive evaluations that reach the config's target.

    Args:
        cfg: config with the fields `stop_at_success` and `stop_at_return`.
        sim: evaluation sim, which may state the return from which it counts as solved; None without evaluations.
    """

    def __init__(self, cfg: TrainCfg[Any, Any], sim: VecSim | None) -> None:
        self._success = cfg.stop_at_success
        stated = sim.solved_return if isinstance(sim, HasSolvedReturn) else None
        self._return = stated if cfg.stop_at_return == SOLVED else cfg.stop_at_return
        self.may_stop = self._success is not None or self._return is not None
        """True if the run may end before its budget."""

    def streak(self, before: int, result: EvalResult, best: float | None) -> int:
        """Number of consecutive good evaluations, including this one.

        Args:
            before: number before this one.
            result: result of this evaluation.
            best: best earlier score; None for the first evaluation.
        """
        if self._success is not None and result.rate.value >= self._success:
            return before + 1
        mean = float(result.returns.mean())
        if self._return is None or mean < self._return:
            return 0
        # while the return still improves, the count starts again at 1
        return before + 1 if best is not None and mean <= best else 1
