"""Schedule of a run's evaluations and checkpoints, in env steps or iterations, and the bound on evaluations."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from robotrl.config import DEFAULT_EVERY, TrainCfg


class Progress(NamedTuple):
    """Progress of a run after an iteration."""

    iteration: int
    """Iterations made."""
    before: int
    """Env steps before the last of them."""
    env_steps: int
    """Env steps after it."""


def is_marked(at: Progress, every: int | None, every_env_steps: int | None) -> bool:
    """True if the last iteration reached a mark: it crossed a multiple of env steps, or its number is a multiple.

    Args:
        at: the progress.
        every: iterations between two marks; 0 marks none, whatever the env steps; None is `DEFAULT_EVERY`. Beside
            `every_env_steps` it is for iterations that take no env steps, those of an offline part.
        every_env_steps: env steps between two marks, instead of iterations; 0 marks none; None counts iterations.
    """
    if every == 0:
        return False
    offline = every is not None and at.env_steps == at.before
    if every_env_steps is not None and not offline:
        return every_env_steps > 0 and at.env_steps // every_env_steps > at.before // every_env_steps
    every = DEFAULT_EVERY if every is None else every
    return at.iteration % every == 0


def is_evaluated(cfg: TrainCfg[Any, Any], at: Progress) -> bool:
    """True if an evaluation is asked for after this iteration, apart from the one at the end."""
    return is_marked(at, cfg.evaluation.every, cfg.evaluation.every_env_steps)


def is_due(cfg: TrainCfg[Any, Any], at: Progress) -> bool:
    """True if a checkpoint follows this iteration, apart from the one at the end."""
    return is_evaluated(cfg, at) or is_marked(at, cfg.checkpoint_every, cfg.checkpoint_every_env_steps)


class EvalBudget:
    """Bounds evaluations to a share of all env steps; by steps and not by time, so that a run repeats exactly.

    Args:
        max_share: largest share of evaluations in all env steps so far, above 0; 1 is no bound.
        env_steps: env steps that evaluations took before, in a resumed run.
    """

    def __init__(self, max_share: float, env_steps: int = 0) -> None:
        self.env_steps = env_steps
        self._max_share = max_share
        self._warned = False

    def allows(self, trained: int) -> bool:
        """True if the evaluations so far leave room for another one; warns at the first that is left out.

        Args:
            trained: env steps of training; 0 for algorithms that step no sim, which have no bound.
        """
        if not trained or self.env_steps <= self._max_share * (self.env_steps + trained):
            return True
        if not self._warned:
            self._warned = True
            share = self.env_steps / (self.env_steps + trained)
            warnings.warn(
                f"evaluations took {self.env_steps:,} env steps beside {trained:,} of training, a share of {share:.2f}:"
                f" evaluation.max_share is {self._max_share:g}, so some are left out; expected fewer"
                " evaluation.episodes, a larger evaluation.every_env_steps, or evaluation.max_share 1",
                stacklevel=3,
            )
        return False
