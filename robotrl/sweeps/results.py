"""Results of a sweep: a table of settings with means and intervals over seeds, and the ranking of a rung."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.api.comparing import INTERVAL_WORDS, aligned, over_seeds, span_text
from robotrl.config import TrainCfg
from robotrl.report.compare.page import ScoreSpan
from robotrl.report.text import number, percent
from robotrl.run.logs import read_scalars
from robotrl.run.sessions.record import has_finished
from robotrl.sweeps.plan import CheckedSetting

SCHEMA_VERSION = 1


class Rung(NamedTuple):
    """A number of env steps or iterations at which runs pause."""

    unit: str
    """ "env_steps" or "iterations"."""
    at: int

    @property
    def options(self) -> tuple[str, ...]:
        """Options of `robotrl train` by which a run pauses here."""
        flag = "--pause-at-env-steps" if self.unit == "env_steps" else "--pause-at-iteration"
        return flag, str(self.at)

    def reached(self, record: Mapping[str, float]) -> bool:
        """True if a run was here, or beyond, when it wrote a record of its log."""
        return record.get("env_steps" if self.unit == "env_steps" else "step", 0.0) >= self.at

    def text(self) -> str:
        """ "4,096 env steps"."""
        return f"{self.at:,} {self.unit.replace('_', ' ')}"


class RunScore(NamedTuple):
    """Scores of a run."""

    seed: int
    iteration: int
    env_steps: float
    success: float | None
    """Success at the last evaluation, 0 to 1; None without one."""
    ret: float | None
    """Mean return at the last evaluation; None without one."""
    done: bool
    """True if it has finished, or has come to the rung."""


def records_until(path: Path, rung: Rung | None) -> list[dict[str, float]]:
    """Records of a run's log, up to the first that reaches a rung; of a run that has not begun there are none."""
    log = path / "scalars.jsonl"
    records = read_scalars(log) if log.exists() else []
    if rung is None:
        return records
    first = next((number for number, record in enumerate(records, 1) if rung.reached(record)), len(records))
    return records[:first]


def run_score(path: Path, seed: int, rung: Rung | None, config: TrainCfg[Any, Any]) -> RunScore:
    """Scores of a run at its end, or at a rung: what it does afterwards does not count.

    Args:
        path: the run's directory; need not exist.
        seed: its seed.
        rung: where it ended for the sweep; None for its own end.
        config: its config; a run without evaluations goes by the rollouts of its iterations.
    """
    records = records_until(path, rung)
    source = "eval" if config.evaluation.episodes else "rollout"
    last: Mapping[str, float] = records[-1] if records else {}
    return RunScore(
        seed,
        int(last.get("step", 0)),
        last.get("env_steps", 0.0),
        _last(records, f"{source}_success"),
        _last(records, f"{source}_return"),
        has_finished(path) or (rung is not None and bool(records) and rung.reached(records[-1])),
    )


def _last(records: Sequence[Mapping[str, float]], name: str) -> float | None:
    return next((record[name] for record in reversed(records) if math.isfinite(record.get(name, math.nan))), None)


class SettingResult(NamedTuple):
    """Row of a setting."""

    checked: CheckedSetting
    runs: tuple[RunScore, ...]
    success: ScoreSpan | None
    ret: ScoreSpan | None
    out_at: Rung | None
    """Rung at which it dropped out; None if it was trained to its end."""

    def span(self, score: str) -> ScoreSpan | None:
        """Mean and interval of a score, "success" or "return"."""
        return self.success if score == "success" else self.ret


def setting_result(checked: CheckedSetting, out: Path, seeds: Sequence[int], rung: Rung | None) -> SettingResult:
    """Row of a setting.

    Args:
        checked: the setting.
        out: the sweep's folder.
        seeds: the sweep's seeds.
        rung: where the setting dropped out; None if it did not.
    """
    runs = tuple(run_score(checked.run(out, seed).path, seed, rung, checked.config) for seed in seeds)
    # what stopped on its way says nothing about the setting
    success = [run.success for run in runs if run.done and run.success is not None]
    ret = [run.ret for run in runs if run.done and run.ret is not None]
    return SettingResult(checked, runs, over_seeds(success, True), over_seeds(ret, False), rung)


def score_of(settings: Sequence[CheckedSetting]) -> str:
    """Score that settings are ranked by: "return" if any chooses its best checkpoint by it, else "success"."""
    return "return" if any(one.config.evaluation.score == "return" for one in settings) else "success"


def ranked(rows: Sequence[SettingResult], score: str) -> list[SettingResult]:
    """Rows from the best to the worst: those trained longer first, then by the mean, equal ones by the other score.

    Args:
        rows: the rows, in the order of the plan, which decides between equals.
        score: "success" or "return".
    """
    other = "return" if score == "success" else "success"

    def key(row: SettingResult) -> tuple[float, float, float]:
        length = math.inf if row.out_at is None else row.out_at.at
        return (-length, -_mean(row.span(score)), -_mean(row.span(other)))

    return sorted(rows, key=key)


def _mean(span: ScoreSpan | None) -> float:
    return -math.inf if span is None else span.value


def promoted(rows: Sequence[SettingResult], score: str, eta: int) -> list[SettingResult]:
    """Rows of a rung whose settings go on: one of `eta`, at least one.

    A setting goes on only if each of its runs came to the rung and has a score.

    Args:
        rows: rows at the rung, in the order of the plan.
        score: "success" or "return".
        eta: one of so many goes on.
    """
    whole = [row for row in rows if (span := row.span(score)) is not None and span.runs == len(row.runs)]
    best = {row.checked.setting.name for row in ranked(whole, score)[: max(1, len(rows) // eta)]}
    return [row for row in rows if row.checked.setting.name in best]


def table_lines(rows: Sequence[SettingResult], score: str) -> list[str]:
    """Text table, and the best setting with what the intervals say about it.

    Args:
        rows: all rows, from the best to the worst.
        score: "success" or "return".
    """
    heads = ("setting", "success", "return", "env steps", "runs")
    table = [heads] + [
        (
            row.checked.setting.name,
            span_text(row.success, percent),
            span_text(row.ret, number),
            f"{sum(run.env_steps for run in row.runs) / len(row.runs):,.0f}",
            _note(row),
        )
        for row in rows
    ]
    return [*aligned(table), "", f"last evaluation of each run; {INTERVAL_WORDS}", verdict(rows, score)]


def _note(row: SettingResult) -> str:
    missing = [str(run.seed) for run in row.runs if not run.done]
    parts = [f"{len(row.runs) - len(missing)} of {len(row.runs)}"]
    parts += [f"not finished: seed {', '.join(missing)}"] if missing else []
    parts += [f"out at {row.out_at.text()}"] if row.out_at is not None else []
    return "; ".join(parts)


def verdict(rows: Sequence[SettingResult], score: str) -> str:
    """The best setting, and whether its interval overlaps others'.

    Args:
        rows: all rows, from the best to the worst.
        score: "success" or "return".
    """
    spans = [(row, span) for row in rows if row.out_at is None and (span := row.span(score)) is not None]
    if not spans:
        return "best: open, no setting has a score"
    (best, span), others = spans[0], [other for _, other in spans[1:]]
    said = f"best: {best.checked.setting.name}, {score} {span_text(span, percent if score == 'success' else number)}"
    if not others:
        return f"{said}; no other was trained to the end" if len(rows) > 1 else said
    if any(one.runs == 1 for one in (span, *others)):
        return f"{said}; settings with one seed have no interval, so the order is open"
    overlapping = sum(other.high >= span.low for other in others)
    if overlapping:
        return f"{said}; its interval overlaps {overlapping} of {len(others)} others', so the order is open"
    return f"{said}; its interval lies above all others'"


def table_json(rows: Sequence[SettingResult], score: str) -> dict[str, Any]:
    """The table as JSON values. It has no times, so that a sweep that was killed and went on gives the same.

    Args:
        rows: all rows, from the best to the worst.
        score: "success" or "return".
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "score": score,
        "verdict": verdict(rows, score),
        "settings": [
            {
                "name": row.checked.setting.name,
                "values": row.checked.setting.values,
                "arguments": list(row.checked.arguments),
                "success": _span_json(row.success),
                "return": _span_json(row.ret),
                "out_at": None if row.out_at is None else row.out_at._asdict(),
                "runs": [{"run": f"{row.checked.setting.name}/seed-{run.seed}", **_run_json(run)} for run in row.runs],
            }
            for row in rows
        ],
    }


def _span_json(span: ScoreSpan | None) -> dict[str, Any] | None:
    if span is None:
        return None
    ends = {"low": span.low, "high": span.high} if span.runs > 1 else {"low": None, "high": None}
    return {"mean": span.value, **ends, "runs": span.runs}


def _run_json(run: RunScore) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "iteration": run.iteration,
        "env_steps": run.env_steps,
        "success": run.success,
        "return": run.ret,
        "done": run.done,
    }
