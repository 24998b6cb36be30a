"""Checks that every reward source must pass; `CHECKS` lists them, each raises AssertionError.

A source of another package is checked in the same way: `for check in CHECKS: check(RewardCase(...))`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.config import WeightedReward
from robotrl.registry import REWARDS
from robotrl.rewards.relabel import RewardedSim, with_rewards
from robotrl.rewards.source import LateRewardSource, RewardSetup, RewardSource, Score, SimTransition
from robotrl.spec import Spec, VecSim
from robotrl.testing.settings import check_frozen_json

SIZES = (1, 7)
"""Numbers of envs that a source must work with."""
SETUP = RewardSetup(gamma=0.97)
WEIGHT = -0.5


class RewardCase(NamedTuple):
    """A source, and a sim on which it is checked."""

    name: str
    """Its name in the registry."""
    cfg: Any
    """Its settings."""
    changed: tuple[Any, ...]
    """Settings that must give another identity."""
    make_sim: Callable[[int, int], Any]
    """Number of envs and seed to a sim with `HasFinalObs` and `HasState`, whose episodes end within `steps` steps of
    random actions."""
    steps: int = 30


class Recorded(NamedTuple):
    """A step as a source saw it, copied before and after it was scored."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    score: Score
    ended: Tensor
    """(N,) bool."""


class RecordingCfg(NamedTuple):
    """Settings of a source that records the steps of another one."""

    cfg: Any

    def build(self, sim: VecSim, setup: RewardSetup) -> RecordingSource:
        """Build the source."""
        return RecordingSource(self.cfg.build(sim, setup))


class RecordingSource:
    """A source that records what another one sees and says."""

    def __init__(self, inner: RewardSource) -> None:
        self.inner = inner
        self.fallback, self.end_at, self.identity = inner.fallback, inner.end_at, inner.identity
        self.sees_success = inner.sees_success
        self.forget, self.state, self.load = inner.forget, inner.state, inner.load
        self.steps: list[Recorded] = []

    def score(self, transition: SimTransition) -> Score:
        """Score by the other source."""
        before = flat(transition)
        score = self.inner.score(transition)
        copied = Score(*(x.clone() for x in score))
        ended = (transition.step.terminated | transition.step.truncated).clone()
        self.steps.append(Recorded(before, flat(transition), copied, ended))
        return score


class Driven(NamedTuple):
    """A sim with a recorded source."""

    sim: RewardedSim
    source: RecordingSource
    actions: torch.Generator

    def step(self, steps: int) -> list[Score]:
        """Take steps of random actions; returns their scores."""
        first = len(self.source.steps)
        for _ in range(steps):
            self.sim.step(random_actions(self.sim, self.actions))
        return [one.score for one in self.source.steps[first:]]


@contextmanager
def driven(case: RewardCase, num_envs: int, seed: int = 3) -> Generator[Driven]:
    """The case's source on a fresh sim that was reset; both are closed at the end."""
    sim = with_rewards(
        case.make_sim(num_envs, seed), [WeightedReward(case.name, WEIGHT, RecordingCfg(case.cfg))], SETUP
    )
    source: Any = sim.rewards.sources[0].source
    with closing(sim), ended(source.inner):
        sim.reset(seed=seed)
        yield Driven(sim, source, torch.Generator().manual_seed(seed))


@contextmanager
def ended(source: RewardSource) -> Generator[RewardSource]:
    """A source that is closed at the end, if it can be."""
    try:
        yield source
    finally:
        if isinstance(source, LateRewardSource):
            source.close()


def random_actions(sim: Any, generator: torch.Generator) -> Tensor:
    """Actions (N, A) all over their bounds; choices are whole numbers."""
    spec: Spec = sim.action_spec
    low, high = (torch.tensor(bound).clamp(-1e3, 1e3) for bound in (spec.low, spec.high))
    actions = low + (high - low) * torch.rand((sim.num_envs, *spec.shape), generator=generator)
    return (actions.round() if spec.choices else actions).to(sim.device)


def flat(transition: SimTransition) -> dict[str, Tensor]:
    """Copies of all tensors of a transition, by name."""
    step = transition.step
    groups = {"obs": transition.obs, "reached": transition.reached, "step.obs": step.obs, "info": step.info}
    out = {f"{group}/{key}": x.clone() for group, found in groups.items() for key, x in found.items()}
    out |= {f"final/{key}": x.clone() for key, x in step.final_obs.items()}
    return out | {
        "action": transition.action.clone(),
        "reward": step.reward.clone(),
        "terminated": step.terminated.clone(),
        "truncated": step.truncated.clone(),
    }


def same(one: list[Score], other: list[Score], envs: Any = slice(None)) -> None:
    """Assert that scores are equal bit for bit, apart from values that are not valid."""
    assert len(one) == len(other)
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(a.valid[envs], b.valid[envs]), f"step {i}: valid differs"
        valid = a.valid[envs]
        assert torch.equal(a.value[envs][valid], b.value[envs][valid]), f"step {i}: values differ"
        assert torch.equal(a.age[envs][valid], b.age[envs][valid]), f"step {i}: ages differ"


# checks


def settings_are_frozen_json(case: RewardCase) -> None:
    """Settings are a frozen dataclass of JSON values, of the class that the registry has under the name."""
    assert REWARDS.load(case.name) is type(case.cfg)
    check_frozen_json(case.cfg)


def scores_are_one_number_an_env(case: RewardCase) -> None:
    """Shapes, dtypes and devices of scores, for one env and for several; values are finite where valid."""
    for num_envs in SIZES:
        with driven(case, num_envs) as made:
            assert math.isfinite(made.source.fallback)
            scores = made.step(case.steps)
            device, some_ended = made.sim.device, any(bool(one.ended.any()) for one in made.source.steps)
        for score in scores:
            for x, dtype in zip(score, (torch.float32, torch.bool, torch.int64), strict=True):
                assert (tuple(x.shape), x.dtype, x.device) == ((num_envs,), dtype, device)
            assert torch.isfinite(score.value[score.valid]).all()
            assert bool((score.age >= 0).all())
        assert any(bool(score.valid.any()) for score in scores), "no score is valid: nothing can be learned"
        assert num_envs == 1 or some_ended, "no episode ended: more steps"


def scores_are_deterministic(case: RewardCase) -> None:
    """Equal sims and actions give equal scores, on a fresh sim and after a reset of a used one."""
    with driven(case, 7) as made, driven(case, 7) as again:
        scores = made.step(case.steps)
        same(scores, again.step(case.steps))
        made.sim.reset(seed=3)
        made.actions.manual_seed(3)
        same(scores, made.step(case.steps))


def state_resumes_exactly(case: RewardCase) -> None:
    """The state restored in a new source goes on as the first one does; it shares no memory with the source."""
    with driven(case, 7) as made, driven(case, 7, seed=4) as again:
        made.step(case.steps // 2)
        found: Any = made.sim
        state: dict[str, Any] = found.get_state()
        kept = {key: value.copy() for key, value in state.items()}
        actions = made.actions.get_state()
        expected = made.step(case.steps)
        for key, value in state.items():
            assert isinstance(value, np.ndarray)
            assert np.array_equal(value, kept[key], equal_nan=value.dtype.kind == "f"), (
                f"{key} changed after it was given"
            )
        restored: Any = again.sim
        restored.set_state(kept)
        again.actions.set_state(actions)
        same(expected, again.step(case.steps))


def forget_leaves_other_envs_alone(case: RewardCase) -> None:
    """Forgetting one env changes no score of the others."""
    with driven(case, 7) as made, driven(case, 7) as again:
        made.step(case.steps // 2)
        again.step(case.steps // 2)
        mask = torch.zeros(7, dtype=torch.bool, device=made.sim.device)
        mask[2] = True
        made.source.forget(mask)
        same(made.step(case.steps), again.step(case.steps), ~mask)


def invalid_scores_contribute_the_fallback(case: RewardCase) -> None:
    """The reward of a step is the weight times the value, or times the fallback where it is invalid."""
    with driven(case, 7) as made:
        for _ in range(case.steps):
            step = made.sim.step(random_actions(made.sim, made.actions))
            score = made.source.steps[-1].score
            fallback = torch.full_like(score.value, made.source.fallback)
            expected = torch.where(score.valid, score.value, fallback)
            assert torch.equal(step.info[f"reward/{case.name}"], expected)
            assert torch.equal(step.info[f"reward_valid/{case.name}"], score.valid)
            assert torch.equal(step.reward, WEIGHT * expected)


def identity_is_that_of_the_settings(case: RewardCase) -> None:
    """Equal settings have equal identities, other settings others."""
    with closing(case.make_sim(2, 0)) as sim:

        def identity_of(cfg: Any) -> str:
            with ended(cfg.build(sim, SETUP)) as source:
                return source.identity

        identity = identity_of(case.cfg)
        assert isinstance(identity, str) and identity
        assert identity_of(case.cfg) == identity
        for changed in case.changed:
            assert identity_of(changed) != identity, f"{changed} has the identity of {case.cfg}"


def steps_are_not_written_to(case: RewardCase) -> None:
    """A source changes nothing of what it is shown."""
    with driven(case, 7) as made:
        made.step(case.steps)
    for recorded in made.source.steps:
        for key, x in recorded.before.items():
            assert torch.equal(x.nan_to_num(), recorded.after[key].nan_to_num()), f"{key} was written to"


CHECKS: tuple[Callable[[RewardCase], None], ...] = (
    settings_are_frozen_json,
    scores_are_one_number_an_env,
    scores_are_deterministic,
    state_resumes_exactly,
    forget_leaves_other_envs_alone,
    invalid_scores_contribute_the_fallback,
    identity_is_that_of_the_settings,
    steps_are_not_written_to,
)
