"""The verdict on a candidate: paired starts in rounds, until the test has decided."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.api.evaluation import actor_of, make_sim_of, sim_of
from robotrl.api.judging.sides import Side, check_pairs, notes_on_training
from robotrl.api.verdict import Score, rule_words, score_of
from robotrl.errors import CapabilityError, out_of_range
from robotrl.fn.evidence.sequential import Outcome, PairedDecision, PairedTest, decide, fixed_plan, interval
from robotrl.fn.stats import Interval, student_t
from robotrl.registry import check_num_envs
from robotrl.rollout.evaluate import EvalResult, evaluate
from robotrl.spec import HasStateIds, Split, VecSim

MOST_OF_PLAN = 2.0
"""Starts at which the test gives up, over those of a fixed plan."""


class JudgeSettings(NamedTuple):
    """Settings of a verdict."""

    test: PairedTest
    sim: str | None = None
    """Name of the sim; None takes the baseline's, with its options."""
    options: Mapping[str, Any] | None = None
    """Options of the sim by name, which override those of the baseline's run."""
    split: Split = "test"
    starts: int | None = None
    """Most starts of each policy; None for twice those of a fixed plan, or all that the split has."""
    seed: int = 0
    """Draws the order of the starts, and the policies' noise."""
    num_envs: int = 64
    device: str = "cpu"


class SideOutcomes(NamedTuple):
    """Outcomes of one side."""

    side: Side
    success: NDArray[np.float64]
    """(S, n) 1 or 0 of each policy and start."""
    returns: NDArray[np.float64]
    """(S, n) undiscounted."""


class Contrast(NamedTuple):
    """The candidate against one other side."""

    other: Path
    differences: NDArray[np.float64]
    """(n,) of each start, -1 to 1, in the order drawn."""
    decision: PairedDecision
    apart: Interval
    """Mean difference over all starts that were run, with its interval at any time (`interval`)."""
    over_seeds: Interval | None
    """Mean difference with Student's interval over pairs of seeds; None for one pair."""


class Judgment(NamedTuple):
    """A verdict with what it stands on."""

    outcome: Outcome
    contrasts: tuple[Contrast, ...]
    """Against the baseline, and against the control if there is one."""
    sides: tuple[SideOutcomes, ...]
    """Baseline, candidate, and control if there is one."""
    ids: NDArray[np.int64]
    """(n,) starts that were run, in the order drawn."""
    most: int
    """Starts at which the test gives up."""
    score: Score
    rule: str
    """Rule of success, or of the return, in words."""
    sim: str
    settings: JudgeSettings

    @property
    def planned(self) -> int:
        """Starts of a fixed plan with the same chances of error, if half of the starts differ."""
        return fixed_plan(self.settings.test)


def judge(baseline: Side, candidate: Side, settings: JudgeSettings, control: Side | None = None) -> Judgment:
    """Judge a candidate against a baseline, and against a control if there is one.

    All policies drive the same starts in one order, which is drawn beforehand. Where success counts, a start's
    difference is the candidate's mean success over seeds less the other side's. Where the return counts, it is 1 if
    the candidate's is higher, -1 if it is lower, meaned over pairs of seeds.

    Args:
        baseline: the policy of before.
        candidate: the policy that may be better.
        settings: the test, the sim and the starts.
        control: a policy of the same training on shuffled labels. The candidate is only better if it is better than
            the control, too.

    Raises:
        CapabilityError: the sim has no numbered starts, or a policy does not fit it.
        ConfigError: a number out of range, an unknown sim, or sides with other numbers of seeds.
        DataError: nothing readable is at a path.
    """
    check_num_envs("--num-envs", settings.num_envs)
    others = [baseline] if control is None else [baseline, control]
    for other in others:
        check_pairs(other, candidate)
    name, had = sim_of(baseline.policies[0], settings.sim)
    sides = [baseline, candidate, *others[1:]]
    for note in notes_on_training(name, {**had, **(settings.options or {})}, sides):
        warnings.warn(note, stacklevel=2)
    vec = make_sim_of(
        baseline.policies[0],
        settings.sim,
        num_envs=settings.num_envs,
        seed=settings.seed,
        options=settings.options,
        device=settings.device,
    )
    try:
        return _judge(sides, settings, vec, name)
    finally:
        vec.close()


def _judge(sides: Sequence[Side], settings: JudgeSettings, vec: VecSim, name: str) -> Judgment:
    order = _order(vec, name, settings)
    actors = [[(path, actor_of(path, vec, settings.seed)) for path in side.policies] for side in sides]
    rounds: list[list[list[EvalResult]]] = []
    while True:
        done = sum(len(first[0][0].ids) for first in rounds)
        ids = order[done : done + settings.num_envs]
        progress = f"starts {done + 1} to {done + len(ids)} of at most {len(order)}"
        rounds.append(
            [
                [
                    evaluate(actor, vec, ids=ids, seed=settings.seed, description=f"{path}, {progress}")
                    for path, actor in row
                ]
                for row in actors
            ]
        )
        outcomes = tuple(_joined(side, [one[place] for one in rounds]) for place, side in enumerate(sides))
        first = rounds[0][0][0]
        score = score_of(sides[0].policies[0], first)
        contrasts = tuple(contrast(outcomes[1], other, score, settings.test) for other in (outcomes[0], *outcomes[2:]))
        found = combined([each.decision.outcome for each in contrasts])
        if found != "open" or done + len(ids) == len(order):
            ran = order[: done + len(ids)]
            return Judgment(found, contrasts, outcomes, ran, len(order), score, rule_words(first), name, settings)


def _joined(side: Side, rounds: Sequence[Sequence[EvalResult]]) -> SideOutcomes:
    """Outcomes of a side over all rounds, each of which has a result for each policy."""
    return SideOutcomes(
        side,
        np.hstack([np.stack([one.success.astype(np.float64) for one in row]) for row in rounds]),
        np.hstack([np.stack([one.returns for one in row]) for row in rounds]),
    )


def combined(outcomes: Sequence[Outcome]) -> Outcome:
    """Outcome against all other sides: "better" only if it is better than each; else the first that is decided."""
    if all(outcome == "better" for outcome in outcomes):
        return "better"
    decided: list[Outcome] = [outcome for outcome in outcomes if outcome not in ("better", "open")]
    return decided[0] if decided else "open"


def contrast(candidate: SideOutcomes, other: SideOutcomes, score: Score, test: PairedTest) -> Contrast:
    """Decide on the outcomes so far."""
    by_success = candidate.success - other.success
    apart = by_success if score == "success" else np.sign(candidate.returns - other.returns)
    pairs, starts = apart.mean(axis=1), apart.mean(axis=0)
    return Contrast(
        other.side.path,
        starts,
        decide(starts, test),
        Interval(float(starts.mean()), *interval(starts, test.detect, test.alpha), len(starts)),
        student_t(pairs) if len(pairs) > 1 else None,
    )


def _order(vec: VecSim, name: str, settings: JudgeSettings) -> NDArray[np.int64]:
    """Starts that may be run, in the order drawn."""
    if not isinstance(vec, HasStateIds):
        raise CapabilityError(f"sim {name!r} lacks HasStateIds: policies cannot be judged on the same starts")
    there = np.asarray(vec.state_ids(settings.split), np.int64)
    if settings.starts is not None and not 1 <= settings.starts <= len(there):
        raise out_of_range("--starts", settings.starts, f"1 to {len(there)}, the size of split {settings.split!r}")
    most = settings.starts or min(len(there), math.ceil(MOST_OF_PLAN * fixed_plan(settings.test)))
    # in a fixed order, the first starts could be the easy ones
    return np.random.default_rng(settings.seed).permutation(there)[:most]
