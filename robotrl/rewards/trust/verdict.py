"""Verdict on a reward in plain sentences."""

from __future__ import annotations

from typing import Literal, NamedTuple

from robotrl.fn.stats import Interval
from robotrl.rewards.trust.metrics import JudgeCfg, RewardMetrics

Standing = Literal["tells", "weak", "fails", "opposed", "not judged"]


class Verdict(NamedTuple):
    """Judgment of one reward."""

    standing: Standing
    """"tells": it tells success from failure; "weak": a little; "fails": it does not; "opposed": it is higher in
    failures; "not judged": there is no truth to compare with."""
    sentences: tuple[str, ...]
    """The main sentence first; no capital letter, no full stop, and without the name of the reward."""

    @property
    def text(self) -> str:
        """All sentences in one."""
        return "; ".join(self.sentences)


def judge(metrics: RewardMetrics, cfg: JudgeCfg, event: str, unstated: str | None = None) -> Verdict:
    """Judge a reward by the AUC of its mean over an episode (or see `JudgeCfg.by`) for success; say what else was seen.

    Args:
        metrics: metrics over all episodes.
        cfg: thresholds.
        event: name of the event in the plural, "collisions" or "failures".
        unstated: why success is no truth in this sim; None if it is.
    """
    standing, main = _main(metrics, cfg, unstated)
    sentences = [main]
    if standing == "not judged" and metrics.task_over is not None:
        agrees = metrics.task_over.low > 0 and metrics.task_over.value >= cfg.follows
        says = "agrees" if agrees else "does not agree"
        sentences.append(f"its return {says} with the sim's own (rank correlation {_span(metrics.task_over)})")
    last = metrics.auc_final
    if cfg.by == "mean" and standing in ("weak", "fails", "opposed") and last is not None and last.low > 0.5:
        sentences.append(f"its last score in an episode does tell them (AUC {_span(last)})")
    same = metrics.auc_same
    if standing in ("tells", "weak") and same is not None and same.low <= 0.5:
        sentences.append(
            f"among rollouts of one actor that is not shown (AUC {_span(same)}): it may know who acts, not how well"
        )
    total = metrics.auc_return
    if standing in ("tells", "weak") and total is not None and total.high < 0.5:
        sentences.append(
            f"its sum over an episode is higher in failures (AUC {_span(total)}): a policy may earn more by not"
            " finishing"
        )
    if metrics.auc_event is not None:
        found = metrics.auc_event
        sees = "does not see" if found.low <= 0.5 else "sees" if found.value >= cfg.tells else "hardly sees"
        sentences.append(f"{sees} {event} coming within {cfg.ahead_s:g} s (AUC {_span(found)})")
    follows = max(
        (
            (found, words)
            for found, words in ((metrics.progress, "progress"), (metrics.advance, "each step's progress"))
            if found is not None
        ),
        key=lambda pair: pair[0].value,
        default=None,
    )
    if follows is not None:
        found, words = follows
        says = "follows" if found.low > 0 and found.value >= cfg.follows else "does not follow"
        sentences.append(f"{says} {words} (rank correlation {_span(found)})")
    if metrics.valid < 0.995:
        sentences.append(f"valid on {100 * metrics.valid:.0f} % of the steps")
    return Verdict(standing, tuple(sentences))


def _main(metrics: RewardMetrics, cfg: JudgeCfg, unstated: str | None) -> tuple[Standing, str]:
    won, failed = metrics.successes, metrics.episodes - metrics.successes
    if unstated is not None:
        return "not judged", f"not judged by success: {unstated}"
    if metrics.valid == 0:
        return "not judged", "not judged: none of its scores was valid"
    if not won or not failed:
        return "not judged", f"not judged: all {metrics.episodes} episodes {'failed' if failed else 'succeeded'}"
    if min(won, failed) < cfg.least:
        few = (
            f"{won} of {metrics.episodes} episodes succeeded"
            if won < failed
            else f"{failed} of {metrics.episodes} failed"
        )
        return "not judged", f"not judged: only {few}, expected {cfg.least} or more of either"
    found = metrics.auc_of(cfg.by)
    if found is None:  # the episodes without a valid score were all that succeeded, or all that failed
        return "not judged", "not judged: no score was valid in successes, or none in failures"
    auc = {"mean": "AUC", "final": "AUC of the last score", "return": "AUC of the return"}[cfg.by]
    if found.low > 0.5:
        if found.value >= cfg.tells:
            return "tells", f"tells success from failure ({auc} {_span(found)})"
        return "weak", f"tells success from failure only weakly ({auc} {_span(found)})"
    if found.high < 0.5:
        words = f"is higher in failures than in successes ({auc} {_span(found)})"
        return "opposed", f"{words}: training on it is not advised"
    return "fails", f"does not tell success from failure ({auc} {_span(found)}): training on it is not advised"


def _span(found: Interval) -> str:
    return f"{found.value:.2f}, {found.low:.2f} to {found.high:.2f}"
