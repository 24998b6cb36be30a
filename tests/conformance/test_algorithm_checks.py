"""`robotrl.testing.algorithms` finds what it is there to find: an algorithm of one page with one fault at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.errors import CapabilityError
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.parts import Part
from robotrl.policies.gaussian import GaussianCfg
from robotrl.rollout.collector import Collector, Decision
from robotrl.spec import HasDensity
from robotrl.spec.algorithms import LearnerCfg
from robotrl.testing import algorithms as checks
from robotrl.testing.algorithms import AlgorithmCase
from tests.kits.learner_kit import TRANSFORMS
from tests.kits.walk_sim import Walk

GAUSSIAN = GaussianCfg(horizon=2, hidden=(8,))


@dataclass(frozen=True)
class NudgeCfg(LearnerCfg):
    """Settings of an algorithm that pulls actions to those of steps that paid."""

    fault: str = ""
    """Its fault."""
    lr: float = 0.01
    """Step size."""

    def build(self, setup: Setup) -> Nudge:
        return Nudge(self, setup)


class Nudge(Learner):
    """Regresses the mean on what was done, weighted by what it paid."""

    iterations = 10

    def __init__(self, cfg: NudgeCfg, setup: Setup) -> None:
        self.fault, self.lr = cfg.fault, cfg.lr
        sim = setup.make_sim()
        policy: Any = setup.init_policy
        self.policy = setup.fresh(sim.observation_spec, sim.action_spec, TRANSFORMS) if policy is None else policy
        if self.fault != "accepts all" and not isinstance(self.policy, HasDensity):
            raise CapabilityError("policy lacks HasDensity")
        self.momentum = [torch.zeros_like(x) for x in self.policy.parameters()]
        self.generator = torch.Generator().manual_seed(0 if self.fault == "one seed" else setup.seed)
        self._stepper = self.collector = Collector(sim, self.policy.horizon, 0.9)
        self.collector.reset(setup.seed, {"stagger": True})
        self.extra = 0

    def decide(self, obs: dict[str, Tensor]) -> Decision:
        generator = None if self.fault == "global stream" else self.generator
        with torch.no_grad():
            raw = self.policy.density(self.policy.encode(obs)).sample(generator)
        return Decision(self.policy.to_actions(raw), {"raw": raw})

    def iterate(self) -> dict[str, float]:
        self.iteration += 1
        rollout = self.collector.collect(self.decide, 8)
        valid = rollout.valid.flatten()
        obs = {key: value.flatten(0, 1)[valid] for key, value in rollout.obs.items()}
        raw, paid = rollout.record["raw"].flatten(0, 1)[valid], rollout.reward.flatten()[valid]
        loss = ((self.policy.mean(self.policy.encode(obs)) - raw) ** 2).mean((1, 2)) @ (paid - paid.mean())
        gradients = torch.autograd.grad(loss / len(paid), list(self.policy.parameters()), allow_unused=True)
        if self.fault != "learns nothing":
            with torch.no_grad():
                for x, speed, gradient in zip(self.policy.parameters(), self.momentum, gradients, strict=True):
                    if gradient is not None:
                        x -= self.lr * speed.mul_(0.9).add_(gradient)
        return {"loss": float("nan") if self.fault == "logs nan" else loss.item()}

    @property
    def env_steps(self) -> int:
        # per env, not over all envs
        return super().env_steps // (32 if self.fault == "counts one env" else 1)

    def parts(self) -> dict[str, Part]:
        parts: dict[str, Part] = {"policy": self.policy, "generator": self.generator, "collector": self.collector}
        if self.fault == "no generator":
            del parts["generator"]
        return parts

    def state(self) -> dict[str, Any]:
        momentum = {} if self.fault == "no momentum" else {"momentum": [x.clone() for x in self.momentum]}
        return super().state() | momentum

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        if self.fault == "no count":
            self.iteration = 0
        for mine, stored in zip(self.momentum, state.get("momentum", self.momentum), strict=True):
            mine.copy_(stored)


@dataclass
class LooseCfg(LearnerCfg):
    """Settings that can be changed."""

    values: list[int] = field(default_factory=list)

    def build(self, setup: Setup) -> Nudge:
        return Nudge(NudgeCfg(), setup)


FAULTS: tuple[tuple[str, Callable[[AlgorithmCase], None]], ...] = (
    ("logs nan", checks.iterations_log_finite_numbers),
    ("counts one env", checks.env_steps_are_those_of_the_sim),
    ("learns nothing", checks.the_policy_learns),
    ("global stream", checks.equal_seeds_learn_the_same),
    ("no momentum", checks.it_resumes_bit_for_bit),
    ("no generator", checks.it_resumes_bit_for_bit),
    ("no count", checks.a_checkpoint_is_of_its_moment),
    ("accepts all", checks.a_policy_that_cannot_is_refused),
)


def case_of(cfg: Any) -> AlgorithmCase:
    return AlgorithmCase("nudge", cfg, lambda: Walk(32), GAUSSIAN)


@pytest.mark.parametrize("fault, check", FAULTS)
def test_the_kit_finds_a_fault(fault: str, check: Callable[[AlgorithmCase], None]) -> None:
    with pytest.raises((AssertionError, AttributeError)) as found:
        check(case_of(NudgeCfg(fault)))
    # without the fault it passes
    check(case_of(NudgeCfg()))
    assert str(found.value)


@pytest.mark.parametrize("cfg", [NudgeCfg(), LooseCfg()])
def test_settings_that_are_not_registered_or_can_be_changed_are_found(
    cfg: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robotrl.registry import ALGORITHMS

    rows = ALGORITHMS.rows()
    monkeypatch.setattr(ALGORITHMS, "rows", lambda: {**rows, "nudge": f"{__name__}:LooseCfg"})
    with pytest.raises(AssertionError):
        checks.settings_are_frozen_json(case_of(cfg))


def test_every_check_has_a_fault_that_it_finds() -> None:
    assert {check for _, check in FAULTS} | {checks.settings_are_frozen_json} == set(checks.CHECKS)


def test_a_difference_is_named_by_its_place() -> None:
    state = {"a": [torch.zeros(2), {"b": float("nan")}]}
    assert checks.difference(state, {"a": [torch.zeros(2), {"b": float("nan")}]}) is None
    assert checks.difference(state, {"a": [torch.zeros(2), {"b": 1.0}]}) == "state.a[1].b"
    assert checks.difference(state, {"a": [torch.tensor([0.0, -1e-45]), {"b": float("nan")}]}) == "state.a[0]"
