"""Comparison of training runs: arms, learning curves, final scores and differences in config, as a page and as text."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.api.run_history import ABSENT, Evaluated, RunArm, RunHistory, differing, group_runs, read_history
from robotrl.errors import ConfigError, short, unknown
from robotrl.fn.stats import student_t
from robotrl.report.compare.curves import ArmCurve, ArmPoint
from robotrl.report.compare.page import (
    ArmPicture,
    ArmRow,
    ComparePage,
    FieldRow,
    RunRow,
    ScoreSpan,
    render_comparison,
)
from robotrl.report.text import number, percent, seconds

PICTURE_BYTES = 3 << 20
"""Largest file of rollouts that a page takes in."""
TOLD_FIELDS = 3
"""Number of differing fields that name an arm; the table has all of them."""
OF_EVALUATION = {
    "sim.name": "another sim",
    "sim.options": "other options of the sim",
    "evaluation.episodes": "other starts",
}
"""Config fields, or groups of them, on which scores of evaluations depend, and what a difference means."""
METHOD = (
    "Mean over seeds of each run's last evaluation during training (first starts of split val), with Student's t 95 %"
    " interval over the seeds; a single seed has no interval. Runs still in training do not count here."
)


class RunComparison(NamedTuple):
    """Compared runs."""

    arms: tuple[RunArm, ...]
    fields: dict[str, tuple[Any, ...]]
    """Config fields that differ, with the value of each arm."""

    def warnings(self) -> list[str]:
        """Reasons why scores of the arms are not comparable, a sentence each."""
        out: list[str] = []
        for group, meaning in OF_EVALUATION.items():
            names = [name for name in self.fields if name == group or name.startswith(f"{group}.")]
            each = "; ".join(f"{name} is {_by_arm(self.arms, self.fields[name])}" for name in names[:TOLD_FIELDS])
            if names:
                out.append(f"The arms were evaluated on {meaning}: {each}. Their scores do not compare.")
        rules = [arm.runs[0].setting("evaluation.score") for arm in self.arms]
        if len(set(rules)) > 1:
            each = _by_arm(self.arms, rules)
            out.append(f"The arms choose their best checkpoint by another score: evaluation.score is {each}.")
        versions = sorted({run.version or "unknown" for arm in self.arms for run in arm.runs})
        if len(versions) > 1:
            out.append(
                f"Runs began with other versions of robotrl ({', '.join(versions)}), whose evaluations may differ."
            )
        return out

    def page(self, command: str = "") -> str:
        """HTML page.

        Args:
            command: command that makes it again.
        """
        arms, by_steps = self.arms, _counts_env_steps(self.arms)
        total = sum(len(arm.runs) for arm in arms)
        running = sum(run.training for arm in arms for run in arm.runs)
        bare = sum(not run.evaluations for arm in arms for run in arm.runs)
        lede = f"{total} {'run' if total == 1 else 'runs'}, grouped by everything in their configs but the seed."
        lede += f" {running} still in training." if running else ""
        lede += f" {bare} without an evaluation." if bare else ""
        rows = [self.row(arm) for arm in arms]
        return render_comparison(
            ComparePage(
                title="Runs compared",
                verdict=self._verdict(rows),
                lede=lede,
                warnings=self.warnings(),
                arms=rows,
                success=[_curve(arm, by_steps, success_of, True) for arm in arms],
                returns=[_curve(arm, by_steps, return_of, False) for arm in arms],
                x_label="env steps" if by_steps else "iterations",
                method=METHOD,
                fields=[FieldRow(name, tuple(map(shown, values))) for name, values in self.fields.items()],
                runs=[run_row(index, run) for index, arm in enumerate(arms) for run in arm.runs],
                pictures=[_picture(index, arm) for index, arm in enumerate(arms)],
                command=command,
                reward_truth=[run.reward_truth for arm in arms for run in arm.runs if run.reward_truth is not None],
                scoring=[row for arm in arms for run in arm.runs for row in run.scoring],
                workers=[run.workers for arm in arms for run in arm.runs if run.workers is not None],
            )
        )

    def row(self, arm: RunArm) -> ArmRow:
        """Scores of an arm."""
        counted = [run for run in arm.runs if run.evaluations and not run.training]
        notes = [f"{len(counted)} of {len(arm.runs)}"]
        if running := [str(run.seed) for run in arm.runs if run.training]:
            notes.append(f"in training: seed {', '.join(running)}")
        if bare := [str(run.seed) for run in arm.runs if not run.evaluations]:
            notes.append(f"not evaluated: seed {', '.join(bare)}")
        last = max((run.iteration for run in counted), default=0)
        if short_runs := [f"{run.seed} at {run.iteration}" for run in counted if run.iteration < last]:
            notes.append(f"ended before iteration {last}: seed {', '.join(short_runs)}")
        return ArmRow(
            arm.name,
            self.about(arm),
            ", ".join(str(run.seed) for run in arm.runs),
            over_seeds([success_of(run.evaluations[-1]) for run in counted], True),
            over_seeds([return_of(run.evaluations[-1]) for run in counted], False),
            "; ".join(notes),
        )

    def about(self, arm: RunArm) -> str:
        """Settings in which an arm differs, the first few."""
        place = self.arms.index(arm)
        if not self.fields:
            return str(arm.runs[0].setting("sim.name") or "")
        # the class of the algorithm says more than its many settings
        names = sorted(self.fields, key=lambda name: not name.startswith(("types.", "sim.name")))
        texts = [
            f"{name.removeprefix('types.')} {shown(self.fields[name][place]).rpartition(':')[2]}"
            for name in names[:TOLD_FIELDS]
        ]
        more = len(names) - TOLD_FIELDS
        return ", ".join(texts) + (f" and {more} more" if more > 0 else "")

    def lines(self) -> list[str]:
        """Text table for the terminal."""
        out = [f"warning: {text}" for text in self.warnings()]
        heads = ("arm", "seeds", "success", "return", "runs", "settings that differ")
        table = [heads] + [
            (row.name, row.seeds, span_text(row.success, percent), span_text(row.ret, number), row.note, row.about)
            for row in map(self.row, self.arms)
        ]
        return [*out, *aligned(table), "", f"last evaluation of each run; {INTERVAL_WORDS}"]

    def _verdict(self, rows: Sequence[ArmRow]) -> str:
        """Main result: ordering of the arms, only where intervals do not overlap."""
        if self.warnings():
            return "The arms were not evaluated alike."
        by_return = any(arm.runs[0].setting("evaluation.score") == "return" for arm in self.arms)
        scored = [(row.name, row.ret if by_return else row.success) for row in rows]
        known = sorted(((span, name) for name, span in scored if span is not None), reverse=True)
        if not known:
            return "No run that has ended was evaluated."
        metric, show = ("return", number) if by_return else ("success", percent)
        (best, name), others = known[0], known[1:]
        caption = f"{name}: {metric} {span_text(best, show)}"
        if not others:
            return f"{caption}."
        apart = best.low > max(span.high for span, _ in others)
        few = any(span.runs == 1 for span, _ in known)
        if few or not apart:
            why = "some arms have one seed" if few else "intervals over seeds overlap"
            return f"Highest {caption}; {why}, so the order is open."
        return f"Highest {caption}, its interval above all others."


INTERVAL_WORDS = "in brackets Student's t 95 % interval over seeds, where there are two or more"


def compare_runs(paths: Sequence[Path], ignored: Sequence[str] = ()) -> RunComparison:
    """Read and group runs.

    Args:
        paths: run directories.
        ignored: config fields that do not divide runs into arms, e.g. "init_from".

    Raises:
        ConfigError: a run is given twice, or no config has an ignored field.
        DataError: there is no run at a path.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise ConfigError(f"RUN {path} is given twice: expected each run once")
        seen.add(path.resolve())
    runs = [read_history(path) for path in paths]
    known = {name for run in runs for name in run.config}
    for name in ignored:
        if name not in known:
            raise unknown("--ignore", name, known)
    arms = group_runs(runs, ignored)
    return RunComparison(tuple(arms), differing(arms, ignored))


def success_of(evaluated: Evaluated) -> float:
    """Success of an evaluation, 0 to 1."""
    return evaluated.success


def return_of(evaluated: Evaluated) -> float:
    """Mean return of an evaluation."""
    return evaluated.ret


def over_seeds(values: Sequence[float], is_rate: bool) -> ScoreSpan | None:
    """Mean and interval over runs; None without a finite value."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    if len(finite) == 1:
        return ScoreSpan(finite[0], finite[0], finite[0], 1)
    mean, low, high, runs = student_t(np.array(finite))
    return ScoreSpan(mean, max(low, 0.0), min(high, 1.0), runs) if is_rate else ScoreSpan(mean, low, high, runs)


def _counts_env_steps(arms: Sequence[RunArm]) -> bool:
    """True if the horizontal axis is env steps: each evaluated arm has taken some."""
    ends = [max(run.evaluations[-1].env_steps for run in arm.runs if run.evaluations) for arm in arms if _has(arm)]
    return all(ends)


def _has(arm: RunArm) -> bool:
    return any(run.evaluations for run in arm.runs)


def _curve(arm: RunArm, by_steps: bool, metric: Callable[[Evaluated], float], is_rate: bool) -> ArmCurve:
    """Mean over runs at each iteration that any of them was evaluated at.

    The band is over seeds; of an arm with one run, by success, over the episodes of each evaluation.
    """
    evaluated = [run for run in arm.runs if run.evaluations]
    found: dict[int, list[Evaluated]] = {}
    for run in evaluated:
        for one in run.evaluations:
            if math.isfinite(metric(one)):
                found.setdefault(one.iteration, []).append(one)
    points: list[ArmPoint] = []
    for iteration, group in sorted(found.items()):
        span = over_seeds([metric(one) for one in group], is_rate)
        assert span is not None
        x = float(np.mean([one.env_steps for one in group])) if by_steps else float(iteration)
        low, high = (span.low, span.high) if len(group) > 1 else (None, None)
        if len(evaluated) == 1 and is_rate:
            low, high = group[0].low, group[0].high
        points.append(ArmPoint(x, span.value, low, high, len(group), len(group) == len(evaluated)))
    return ArmCurve(arm.name, points)


def run_row(arm: int, run: RunHistory) -> RunRow:
    """Display texts of a run."""
    state = "in training" if run.training else "ended"
    progress = f"iteration {run.iteration:,}" + (f", {run.env_steps:,.0f} env steps" if run.env_steps else "")
    if not run.evaluations:
        none = "not evaluated yet" if run.training else "not evaluated"
        success, ret, best = none, "", ""
    else:
        last = run.evaluations[-1]
        success = f"{percent(last.success)} ({percent(last.low)} to {percent(last.high)})"
        ret = number(last.ret) if math.isfinite(last.ret) else "not logged"
        by_return = run.setting("evaluation.score") == "return"
        score = max(run.evaluations, key=return_of if by_return else success_of)
        best = f"{number(score.ret) if by_return else percent(score.success)} at {score.iteration:,}"
    learn = "" if run.learn_s is None else seconds(run.learn_s)
    return RunRow(arm, str(run.path), str(run.seed), state, progress, success, ret, best, learn)


def _picture(index: int, arm: RunArm) -> ArmPicture:
    """The newest rollouts of the first run of an arm that has any."""
    run = next((run for run in arm.runs if run.picture is not None), None)
    if run is None or run.picture is None:
        return ArmPicture(
            index, "Its runs filmed nothing: no camera, evaluation.animation 0, or no evaluation yet.", ""
        )
    caption = f"seed {run.seed}, iteration {int(run.picture.stem.removeprefix('step_')):,}"
    data = run.picture.read_bytes()
    if len(data) > PICTURE_BYTES:
        return ArmPicture(index, f"{run.picture} has {len(data) >> 20} MB, too many for a page.", "")
    return ArmPicture(index, caption, f"data:image/gif;base64,{base64.b64encode(data).decode('ascii')}")


def shown(value: Any) -> str:
    """A config value as text."""
    if value is ABSENT:
        return "no such field"
    if value is None:
        return "none"
    return value if isinstance(value, str) else short(json.dumps(value), 120)


def _by_arm(arms: Sequence[RunArm], values: Sequence[Any]) -> str:
    return ", ".join(f"{shown(value)} in {arm.name}" for arm, value in zip(arms, values, strict=True))


def span_text(span: ScoreSpan | None, show: Callable[[float], str]) -> str:
    """ "97.1 % [93.0 % to 100 %]"; "none" without a score."""
    if span is None:
        return "none"
    return show(span.value) if span.runs == 1 else f"{show(span.value)} [{show(span.low)} to {show(span.high)}]"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
