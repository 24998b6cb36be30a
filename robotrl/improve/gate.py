"""The gate: a candidate takes the policy's place only where it is shown to be better."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robotrl.api.judging.judge import JudgeSettings, judge
from robotrl.api.judging.sides import Side
from robotrl.api.judging.text import apart_words, score_words, to_json, verdict_words
from robotrl.fn.evidence.sequential import Outcome, PairedTest
from robotrl.improve.target import Target
from robotrl.registry import make_sim
from robotrl.spec import HasStateIds, Split

ALPHA = 0.05
"""Largest chance that any round accepts a candidate that is not better."""
NO_EVIDENCE = "no evidence"
GateOutcome = Outcome | Literal["no evidence"]


class GateSettings(NamedTuple):
    """Settings of the gate."""

    detect: float = 0.1
    """Smallest difference of success that matters."""
    rounds: int = 1
    """Number of rounds, over which the chance of a false acceptance is divided."""
    split: Split = "val"
    starts: int | None = None
    seed: int = 0
    num_envs: int = 64
    device: str = "cpu"

    @property
    def test(self) -> PairedTest:
        """The test of one round: its chance of a false "better" is that of all rounds over their number."""
        return PairedTest(self.detect, ALPHA / self.rounds)


class GateDecision(NamedTuple):
    """Decision on a candidate."""

    accepted: bool
    outcome: str
    """A `GateOutcome`."""
    why: str
    """One sentence."""
    sides: dict[str, str]
    """Score of the policy of before, and of the candidate, in words."""
    verdict: dict[str, Any] | None
    """The verdict with every outcome (`robotrl.api.judging.text.to_json`); None without one."""


def gate(current: Path, candidate: Path, target: Target, settings: GateSettings, number: int) -> GateDecision:
    """Judge a candidate against the policy of before, on the same starts of the sim.

    Args:
        current: run or checkpoint of the policy of before.
        candidate: run of the candidate.
        target: the policy that is improved, with its sim.
        settings: see `GateSettings`.
        number: the round, from 1, which draws its own order of starts.

    Raises:
        ConfigError: the split has fewer starts than asked for.
    """
    found = judge(
        Side(current, (current,)),
        Side(candidate, (candidate,)),
        JudgeSettings(
            settings.test,
            target.sim,
            target.options,
            settings.split,
            settings.starts,
            settings.seed + number,
            settings.num_envs,
            settings.device,
        ),
    )
    accepted = found.outcome == "better"
    words = f"the candidate is {verdict_words(found)}: {apart_words(found.contrasts[0], found)}"
    before, after = found.sides
    return GateDecision(
        accepted,
        found.outcome,
        words if accepted else f"{words}; only a better one is accepted",
        {"before": score_words(before, found), "candidate": score_words(after, found)},
        to_json(found),
    )


def without_evidence(why: str) -> GateDecision:
    """No change, for nothing was judged."""
    return GateDecision(False, NO_EVIDENCE, f"{why}: nothing shows that the candidate is better", {}, None)


def judges(target: Target, split: Split) -> str:
    """Reason for which a policy's sim cannot judge; empty if it can."""
    with closing(make_sim(target.sim, num_envs=1, seed=0, **target.options)) as vec:
        if not isinstance(vec, HasStateIds):
            return f"sim {target.sim!r} has no numbered starts (HasStateIds)"
        return "" if len(vec.state_ids(split)) else f"sim {target.sim!r} has no starts of split {split!r}"
