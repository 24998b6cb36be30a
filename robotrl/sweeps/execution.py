"""Trains the runs of a sweep, rung by rung; every decision follows from the plan and the runs' files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from robotrl.jobs.job import JobPlace
from robotrl.jobs.training_runs import FailedRun, TrainingRun, train_runs
from robotrl.run.checkpoint_store import CheckpointStore
from robotrl.run.locking import StopSignals
from robotrl.run.sessions.record import has_finished
from robotrl.sweeps.plan import CheckedSetting, SweepPlan
from robotrl.sweeps.results import Rung, SettingResult, promoted, records_until, score_of, setting_result


class SweepResult(NamedTuple):
    """Result of a sweep, or of the part of it that a signal let through."""

    rows: list[SettingResult]
    """All settings, in the order of the plan."""
    failed: list[FailedRun]


def run_sweep(
    plan: SweepPlan, settings: Sequence[CheckedSetting], out: Path, place: JobPlace, signals: StopSignals
) -> SweepResult:
    """Train the runs of a sweep, from wherever they are.

    Args:
        plan: the plan.
        settings: its settings, with their configs.
        out: the sweep's folder.
        place: where runs are trained.
        signals: installed handlers; a signal stops all runs, which save.
    """
    halving = plan.halving
    rungs = [] if halving is None else [Rung(halving.unit, at) for at in halving.rungs]
    score = score_of(settings)
    going = list(settings)
    out_at: dict[str, Rung] = {}
    failed: list[FailedRun] = []
    for rung in (*rungs, None):
        if not going:  # every setting has failed
            break
        options = (*plan.session_options, *(rung.options if rung is not None else ()))
        # seed by seed, so that a sweep that is stopped has runs of every setting
        runs = [one.run(out, seed) for seed in plan.seeds for one in going]
        missing = [run for run in runs if not is_done(run, rung)]
        title = f"sweep {out.name}" + (f" to {rung.text()}" if rung is not None else "")
        done = len(runs) - len(missing)
        failed += train_runs(missing, place, signals, title=title, done=done, options=options)
        if signals.received is not None:
            break
        if rung is not None and halving is not None:
            rows = [setting_result(one, out, plan.seeds, rung) for one in going]
            best = [row.checked.setting.name for row in promoted(rows, score, halving.eta)]
            out_at |= {one.setting.name: rung for one in going if one.setting.name not in best}
            going = [one for one in going if one.setting.name in best]
    rows = [setting_result(one, out, plan.seeds, out_at.get(one.setting.name)) for one in settings]
    return SweepResult(rows, failed)


def is_done(run: TrainingRun, rung: Rung | None) -> bool:
    """True if a run has come to its end, or has a checkpoint at a rung or beyond."""
    if has_finished(run.path):
        return True
    saved = CheckpointStore(run.path / "checkpoints", 1).entries()
    if rung is None or not saved:
        return False
    return any(rung.reached(record) and record["step"] <= saved[-1].step for record in records_until(run.path, rung))
