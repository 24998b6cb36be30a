"""Text summaries of an evaluation: the main figure and its confidence interval."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from robotrl.api.evaluation import run_of
from robotrl.fn.stats import bootstrap, mean
from robotrl.report.text import number
from robotrl.rollout.evaluate import EvalResult, rated

Score = Literal["success", "return"]


def score_of(path: Path | None, result: EvalResult) -> Score:
    """Main figure of an evaluation: success or return.

    If the sim states its success rule: success if somebody defined that rule, else the return. If the task itself
    defines
    success: the score by which the run chooses its best checkpoint.
    """
    if result.rule is not None:
        return "success" if result.rule.stated else "return"
    run = None if path is None else run_of(path)
    chosen = "success" if run is None else run.config.get("evaluation", {}).get("score", "success")
    return "return" if chosen == "return" else "success"


def rule_words(result: EvalResult) -> str:
    """Success rule as text."""
    if result.rule is None:
        return "as the sim counts it"
    return (
        f"by {result.rule.text}" if result.rule.stated else f"not stated by the environment; here: {result.rule.text}"
    )


def rate_words(result: EvalResult) -> tuple[str, str]:
    """Success rate and interval as text: "96.9 %" and "95 % interval 84.3 to 99.4 %"."""
    rate = result.rate
    return f"{100 * rate.value:.1f} %", f"95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %"


def return_words(result: EvalResult) -> tuple[str, str]:
    """Mean return and bootstrap interval over episodes as text: "493.2" and "95 % interval 480.1 to 500.0"."""
    ret = bootstrap(result.returns, middle=mean)
    return number(ret.value), f"95 % interval {number(ret.low)} to {number(ret.high)}"


def outcome_text(result: EvalResult, split: str, seed: int, score: Score) -> str:
    """Evaluation result in one line."""
    over = f"over {len(result.ids)} starts of split {split}, seed {seed}"
    length = f"mean length {result.length.mean():.1f} steps"
    if score == "return":
        ret, span = return_words(result)
        return f"return {ret} ({span}) {over}; {rated(result).rstrip(',')}, {length}"
    return f"{rated(result)} {over}; mean return {result.returns.mean():.3f}, {length}"
