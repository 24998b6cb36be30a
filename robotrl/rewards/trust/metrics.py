"""Metrics of a reward over scored episodes: does it tell success from failure, does it see what is coming?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_count, check_number, unknown
from robotrl.fn.evidence.reward_metrics import auc_interval, before_event, correlation_interval
from robotrl.fn.progress.metrics import rank_correlation
from robotrl.fn.stats import Interval, bootstrap, mean
from robotrl.rewards.trust.recording import TASK, ScoredEpisode

Reals = NDArray[np.float64]
JudgedBy = Literal["mean", "final", "return"]
"""Number of an episode that is compared with success: mean score, last valid score, or sum."""
JUDGED_BY: tuple[JudgedBy, ...] = ("mean", "final", "return")
LEAST_STEPS = 3
"""Fewest valid steps of an episode for a correlation within it."""


@dataclass(frozen=True)
class JudgeCfg:
    """Settings of the verdict on a reward."""

    by: JudgedBy = "mean"
    """Judge by the mean score of an episode, by its last valid score ("final"), or by the sum ("return")."""
    tells: float = 0.7
    """AUC from which a reward tells success from failure, or sees a collision coming, 0.5 to 1. Its interval must be
    above 0.5 as well. Below this value it does so weakly."""
    follows: float = 0.3
    """Rank correlation from which a reward follows the progress, 0 to 1; its interval must be above 0 as well."""
    least: int = 5
    """Fewest successes, and failures, for a verdict."""
    ahead_s: float = 2.0
    """A step's score is compared with collisions (in sims without traffic: failures that end an episode) within the
    next so many seconds."""
    samples: int = 1000
    """Bootstrap resamples of the episodes for each interval."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: one is out of range.
        """
        if self.by not in JUDGED_BY:
            raise unknown("judge.by", str(self.by), JUDGED_BY)
        check_number("judge.tells", self.tells, 0.5, 1.0)
        check_number("judge.follows", self.follows, 0.0, 1.0)
        check_count("judge.least", self.least, 1, 1_000_000, "a number of episodes")
        check_number("judge.ahead_s", self.ahead_s, 0.0, 3600.0, "s")
        check_count("judge.samples", self.samples, 100, 100_000, "a number of resamples")


class RewardMetrics(NamedTuple):
    """Metrics of one reward over some episodes. None where the truth is absent, or the same everywhere."""

    episodes: int
    successes: int
    events: int
    """Episodes with a collision, or with a failure that ended them."""
    valid: float
    """Fraction of steps with a valid score."""
    auc_mean: Interval | None
    """AUC of the episode's mean score for success."""
    auc_same: Interval | None
    """AUC of the number that decides among rollouts of one actor: a reward may know who acted, and no more."""
    auc_final: Interval | None
    """AUC of the episode's last valid score for success."""
    auc_return: Interval | None
    """AUC of the episode's return, the sum of its scores, for success."""
    auc_event: Interval | None
    """AUC of a step's score for no event within the next seconds: 1 if it is always lower shortly before one."""
    progress: Interval | None
    """Spearman's rank correlation with the progress within an episode, mean over episodes."""
    advance: Interval | None
    """The same with the change of the progress in the step."""
    progress_over: Interval | None
    """Rank correlation of the mean score and the last progress over episodes."""
    task_over: Interval | None
    """Rank correlation of the return and the sim's own return over episodes."""

    def auc_of(self, by: JudgedBy) -> Interval | None:
        """AUC by one of the numbers."""
        return {"mean": self.auc_mean, "final": self.auc_final, "return": self.auc_return}[by]


def measure(episodes: Sequence[ScoredEpisode], name: str, dt_s: float, cfg: JudgeCfg, seed: int = 0) -> RewardMetrics:
    """Metrics of one reward.

    Args:
        episodes: 1 or more.
        name: name of the reward in their scores.
        dt_s: duration of a step.
        cfg: settings.
        seed: of the bootstrap.
    """
    valid = np.concatenate([one.valid[name] for one in episodes])
    scored = [one for one in episodes if one.valid[name].any()]
    success = np.array([one.success for one in scored], bool)
    each = np.arange(len(scored))
    means = np.array([one.scores[name][one.valid[name]].mean() for one in scored])
    finals = np.array([one.scores[name][one.valid[name]][-1] for one in scored])
    returns = np.array([one.scores[name].sum() for one in scored])
    steps = max(round(cfg.ahead_s / dt_s), 1)

    actors = np.unique([one.actor for one in scored], return_inverse=True)[1]

    def auc(score: Reals, group: NDArray[np.int64] | None = None) -> Interval | None:
        return auc_interval(score, success, each, cfg.samples, seed, group)

    return RewardMetrics(
        episodes=len(episodes),
        successes=sum(one.success for one in episodes),
        events=sum(bool(one.event.any()) for one in episodes),
        valid=float(valid.mean()),
        auc_mean=auc(means),
        auc_same=auc({"mean": means, "final": finals, "return": returns}[cfg.by], actors)
        if len(set(actors.tolist())) > 1
        else None,
        auc_final=auc(finals),
        auc_return=auc(returns),
        auc_event=_auc_event(scored, name, steps, cfg.samples, seed),
        progress=_within(scored, name, False, cfg.samples, seed),
        advance=_within(scored, name, True, cfg.samples, seed),
        progress_over=_progress_over(scored, means, cfg.samples, seed),
        task_over=correlation_interval(
            returns, np.array([one.scores[TASK].sum() for one in scored]), cfg.samples, seed
        ),
    )


def by_scenario(
    episodes: Sequence[ScoredEpisode], name: str, dt_s: float, cfg: JudgeCfg, seed: int = 0
) -> dict[str, RewardMetrics]:
    """Metrics of one reward in each scenario, in the order of their names; empty without scenarios."""
    names = sorted({one.scenario for one in episodes} - {""})
    return {
        scenario: measure([one for one in episodes if one.scenario == scenario], name, dt_s, cfg, seed)
        for scenario in names
    }


def _auc_event(scored: Sequence[ScoredEpisode], name: str, steps: int, samples: int, seed: int) -> Interval | None:
    if not scored:
        return None
    valid = [one.valid[name] for one in scored]
    score = np.concatenate([one.scores[name][ok] for one, ok in zip(scored, valid, strict=True)])
    safe = np.concatenate([~before_event(one.event, steps)[ok] for one, ok in zip(scored, valid, strict=True)])
    episode = np.concatenate([np.full(int(ok.sum()), number) for number, ok in enumerate(valid)])
    return auc_interval(score, safe, episode, samples, seed)


def _within(scored: Sequence[ScoredEpisode], name: str, change: bool, samples: int, seed: int) -> Interval | None:
    """Mean over episodes of the rank correlation of the score with the progress, or with its change."""
    found: list[float] = []
    for one in scored:
        if one.progress is None:
            continue
        truth = np.diff(one.progress, prepend=np.nan) if change else one.progress
        known = one.valid[name] & np.isfinite(truth)
        if known.sum() >= LEAST_STEPS and np.ptp(truth[known]) > 0:
            found.append(rank_correlation(one.scores[name][known], truth[known]))
    return bootstrap(np.array(found), samples, seed, mean) if found else None


def _progress_over(scored: Sequence[ScoredEpisode], means: Reals, samples: int, seed: int) -> Interval | None:
    last = [np.nan if one.progress is None else _last_known(one.progress) for one in scored]
    known = np.isfinite(last)
    return correlation_interval(means[known], np.array(last)[known], samples, seed)


def _last_known(progress: Reals) -> float:
    known = progress[np.isfinite(progress)]
    return float(known[-1]) if len(known) else float("nan")
