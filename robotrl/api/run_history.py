"""Stored runs as their evaluations, state and pictures, for comparing them; runs still in training can be read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.errors import DataError
from robotrl.fn.evidence.learned_reward import learned_reward
from robotrl.report.compare.scoring_table import ScoringRow, scoring_rows
from robotrl.report.compare.workers_section import ClusterRow, cluster_row
from robotrl.report.reward_truth import RewardTruth
from robotrl.run.directory import Run
from robotrl.run.locking import is_being_written
from robotrl.run.logs import read_scalars
from robotrl.utils.files import read_json


class Evaluated(NamedTuple):
    """A periodic evaluation of a run."""

    iteration: int
    env_steps: float
    """Env steps of training before it; 0 if the algorithm takes none."""
    success: float
    low: float
    """Ends of Wilson's 95 % interval over its episodes."""
    high: float
    ret: float
    """Mean return; NaN in runs of early versions, which did not log it."""


class RunHistory(NamedTuple):
    """History of a training, read from its run directory."""

    path: Path
    config: Mapping[str, Any]
    """Flat: dotted field to JSON value, without the seed."""
    seed: int
    training: bool
    """True if a process writes it now."""
    iteration: int
    """Of the last record, 0 if there is none."""
    env_steps: float
    learn_s: float | None
    """Training time without evaluations."""
    evaluations: tuple[Evaluated, ...]
    picture: Path | None
    """Newest file of `rollouts/`."""
    version: str
    """Version of robotrl that began it; "" if unknown."""
    reward_truth: RewardTruth | None = None
    """Reward and truth of its iterations; None if it learns from the sim's own reward."""
    scoring: tuple[ScoringRow, ...] = ()
    """Its reward sources that score beside the sim."""
    workers: ClusterRow | None = None
    """Its workers; None for a run without a cluster."""

    def setting(self, field: str) -> Any:
        """Value of a config field; None if the run's config lacks it."""
        return self.config.get(field)


def read_history(path: Path) -> RunHistory:
    """Read a run without changing it.

    Raises:
        DataError: there is no run at `path`, or its files are damaged.
    """
    run = Run.open(path)
    log = path / "scalars.jsonl"
    records = read_scalars(log) if log.exists() else []
    last: Mapping[str, float] = records[-1] if records else {}
    drawn = sorted((path / "rollouts").glob("step_[0-9]*.gif"))
    return RunHistory(
        path=path,
        config=flat({name: value for name, value in run.config.items() if name not in ("seed", "revision")}),
        seed=run.seed,
        training=is_being_written(path),
        iteration=int(last.get("step", 0)),
        env_steps=last.get("env_steps", 0.0),
        learn_s=last.get("learn_s"),
        evaluations=tuple(_evaluated(record) for record in records if "eval_success" in record),
        picture=drawn[-1] if drawn else None,
        version=_version(path),
        reward_truth=_reward_truth(str(path), records, run.config),
        scoring=tuple(scoring_rows(str(path), last)),
        workers=cluster_row(str(path), records),
    )


def _reward_truth(name: str, records: Sequence[Mapping[str, float]], config: Mapping[str, Any]) -> RewardTruth | None:
    """The scalars that `robotrl.rewards.trust.divergence` compares; None without reward sources."""
    if not config.get("rewards"):
        return None
    is_rate = config.get("evaluation", {}).get("score", "success") == "success"
    truth = "rollout_success" if is_rate else "sim_return"
    weights = {one["name"]: float(one["weight"]) for one in config["rewards"]}
    points = [(row, learned_reward(row, weights)) for row in records if math.isfinite(row.get(truth, math.nan))]
    points = [(row, reward) for row, reward in points if math.isfinite(reward)]
    by_steps = any(row.get("env_steps") for row, _ in points)
    axis = "env_steps" if by_steps else "step"
    return RewardTruth(
        name,
        [row[axis] for row, _ in points],
        "env steps" if by_steps else "iterations",
        [reward for _, reward in points],
        [row[truth] for row, _ in points],
        "success in rollouts" if is_rate else "the sim's own return",
        next((row[axis] for row, _ in points if row.get("reward_diverges")), None),
    )


def _evaluated(record: Mapping[str, float]) -> Evaluated:
    rate = record["eval_success"]
    return Evaluated(
        int(record["step"]),
        record.get("env_steps", 0.0),
        rate,
        record.get("eval_low", rate),
        record.get("eval_high", rate),
        record.get("eval_return", float("nan")),
    )


def _version(path: Path) -> str:
    try:
        packages = read_json(path / "versions.json", "run versions", 1).get("packages")
    except DataError:
        return ""
    return str(packages.get("robotrl", "")) if isinstance(packages, dict) else ""


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, with dotted names: {"algo": {"lr": 1}} is {"algo.lr": 1}."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = value
    return out


class RunArm(NamedTuple):
    """Runs with the same config apart from the seed."""

    name: str
    """ "A", "B", ..., "Z", "A2", ..."""
    runs: tuple[RunHistory, ...]
    """By seed."""


def group_runs(runs: Sequence[RunHistory], ignored: Sequence[str] = ()) -> list[RunArm]:
    """Group runs into arms, in the order of their first runs.

    Args:
        runs: the runs.
        ignored: config fields that do not divide runs, beside the seed.
    """
    groups: dict[str, list[RunHistory]] = {}
    for run in runs:
        key = {name: value for name, value in run.config.items() if name not in ignored}
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(run)
    return [
        RunArm(_letter(place), tuple(sorted(group, key=lambda run: (run.seed, str(run.path)))))
        for place, group in enumerate(groups.values())
    ]


def _letter(place: int) -> str:
    letter = chr(ord("A") + place % 26)
    return letter if place < 26 else f"{letter}{place // 26 + 1}"


ABSENT = object()
"""Stands for the value of a field that a config lacks."""


def differing(arms: Sequence[RunArm], ignored: Sequence[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Config fields that differ between arms, and the value of each arm; `ABSENT` where a config lacks the field."""
    names = dict.fromkeys(name for arm in arms for name in arm.runs[0].config if name not in ignored)
    rows = {name: tuple(arm.runs[0].config.get(name, ABSENT) for arm in arms) for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}
