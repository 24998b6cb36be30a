"""An evaluation in words: which figure comes first, and its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from robotrl.api.evaluation import run_of
from robotrl.fn.stats import bootstrap, mean
from robotrl.report.text import number
from robotrl.rollout.evaluate import EvalResult, rated

Score = Literal["success", "return"]


def score_of(path: Path | None, result: EvalResult) -> Score:
    """The figure that comes first.

    That is the success where the sim says by what rule it judges and somebody stated that rule; the return where nobody
    did; what a run chooses its best checkpoint by where the task itself says what success is.
    """
    if result.rule is not None:
        return "success" if result.rule.stated else "return"
    run = None if path is None else run_of(path)
    chosen = "success" if run is None else run.config.get("evaluation", {}).get("score", "success")
    return "return" if chosen == "return" else "success"


def rule_words(result: EvalResult) -> str:
    """What counted as success, in words."""
    if result.rule is None:
        return "as the sim counts it"
    return (
        f"by {result.rule.text}" if result.rule.stated else f"not stated by the environment; here: {result.rule.text}"
    )


def rate_words(result: EvalResult) -> tuple[str, str]:
    """The success rate and its interval: "96.9 %" and "95 % interval 84.3 to 99.4 %"."""
    rate = result.rate
    return f"{100 * rate.value:.1f} %", f"95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %"


def return_words(result: EvalResult) -> tuple[str, str]:
    """The mean return and its bootstrap interval over the episodes: "493.2" and "95 % interval 480.1 to 500.0"."""
    ret = bootstrap(result.returns, middle=mean)
    return number(ret.value), f"95 % interval {number(ret.low)} to {number(ret.high)}"


def told(result: EvalResult, split: str, seed: int, score: Score) -> str:
    """The evaluation in one line."""
    over = f"over {len(result.ids)} starts of split {split}, seed {seed}"
    length = f"mean length {result.length.mean():.1f} steps"
    if score == "return":
        ret, span = return_words(result)
        return f"return {ret} ({span}) {over}; {rated(result).rstrip(',')}, {length}"
    return f"{rated(result)} {over}; mean return {result.returns.mean():.3f}, {length}"
