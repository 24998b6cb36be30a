"""`robotrl.testing.policies` finds what it is there to find: policies with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.policies.base import Deployed
from robotrl.policies.flow import FlowCfg, FlowPolicy
from robotrl.policies.gaussian import GaussianCfg, GaussianPolicy
from robotrl.policies.recurrent import RecurrentCfg, RecurrentPolicy
from robotrl.spec import ActOut, Recalled
from robotrl.testing import policies as checks
from robotrl.testing.policies import ACTION_SPEC, OBSERVATION_SPEC, TRANSFORMS, PolicyCase

GAUSSIAN, FLOW = GaussianCfg(horizon=3, hidden=(32, 32)), FlowCfg(horizon=3)
RECURRENT = RecurrentCfg(horizon=3, memory=16, hidden=(32, 32))


class HalfDensity(GaussianPolicy):
    """Its log-probability lacks the logarithm of 2 of something."""

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        return super().log_prob(obs, chunk) - 0.7

    def draw(self, obs: dict[str, Tensor], generator: Any) -> Any:
        drawn = super().draw(obs, generator)
        return drawn._replace(log_prob=drawn.log_prob - 0.7)


class WideDensity(GaussianPolicy):
    """It draws half as far from the mean as its log-probability says."""

    def draw(self, obs: dict[str, Tensor], generator: Any) -> Any:
        mean = self.mean(self.encode(obs))
        raw = (super().draw(obs, generator).normalized_action + mean) / 2
        return type(super().draw(obs, generator))(raw, self.log_prob(obs, raw))


class OtherClaim(GaussianPolicy):
    """`draw` claims another density than `log_prob`."""

    def draw(self, obs: dict[str, Tensor], generator: Any) -> Any:
        drawn = super().draw(obs, generator)
        return drawn._replace(log_prob=drawn.log_prob + 0.01)


class NoEntropy(GaussianPolicy):
    """The entropy of its density is that of another one."""

    def density(self, ctx: Tensor) -> Any:
        inner = super().density(ctx)

        class Wrong:
            std, sample, log_prob = inner.std, staticmethod(inner.sample), staticmethod(inner.log_prob)

            def entropy(self) -> Tensor:
                return inner.entropy() + 0.1

        return Wrong()


class Crowd(GaussianPolicy):
    """A row's context is relative to the mean of its batch."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        ctx = super().encode(obs)
        return ctx - ctx.mean(0)


class FlowCrowd(FlowPolicy):
    """Its velocity sees the other rows."""

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        return super().velocity(ctx, x, t, dt) + 0.1 * x.mean(0)


class Blind(GaussianPolicy):
    """It does not use where the tip is."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        return super().encode({**obs, "tip": torch.zeros_like(obs["tip"])})


class Global(GaussianPolicy):
    """It draws from torch's global generator."""

    def act(self, obs: dict[str, Tensor], state: Any = None, generator: Any = None, mode: Any = "sample") -> ActOut:
        return super().act(obs, state, None, mode)


class Loose(GaussianPolicy):
    """It clips nothing."""

    def to_actions(self, normalized_action: Tensor) -> Tensor:
        return 4 * normalized_action


class OtherDeploy(GaussianPolicy):
    """Evaluated by its mean, deployed a little beside it."""

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        raw = self.best(self.encode(obs)) + 0.01
        return Deployed(self.to_actions(raw), raw)


class Forgetful(GaussianPolicy):
    """Its description loses its settings."""

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "cfg": {"horizon": 3, "hidden": [32, 32], "initial_std": 0.123}}


class Restless(FlowPolicy):
    """Its velocity depends on chance."""

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        return super().velocity(ctx, x, t, dt) + 0.01 * torch.randn_like(x)


class OtherDecoder(FlowPolicy):
    """It decodes in one step whatever its grid is."""

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        zero = torch.zeros(len(ctx))
        return noise + self.velocity(ctx, noise, zero, zero + 1)


class Deaf(GaussianPolicy):
    """No gradient reaches its network."""

    def mean(self, ctx: Tensor) -> Tensor:
        return super().mean(ctx).detach() + 0 * self.log_std.sum()


class Amnesiac(RecurrentPolicy):
    """It forgets the episode at each decision."""

    def advance(self, obs: dict[str, Tensor], memory: Tensor) -> Recalled:
        return super().advance(obs, torch.zeros_like(memory))


class Endless(RecurrentPolicy):
    """Its memory passes from one episode to the next."""

    def unroll(self, obs: dict[str, Tensor], memory: Tensor, joined: Tensor) -> Tensor:
        return super().unroll(obs, memory, torch.ones_like(joined))


@dataclass
class Loosened:
    """Settings that can be changed."""

    horizon: int = 3
    hidden: tuple[int, ...] = (32, 32)


class Unfrozen(GaussianPolicy):
    """A policy with settings that can be changed."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.cfg = Loosened()


FAULTS: tuple[tuple[type, Callable[[PolicyCase], None]], ...] = (
    (HalfDensity, checks.samples_have_the_density_that_is_claimed),
    (WideDensity, checks.samples_have_the_density_that_is_claimed),
    (OtherClaim, checks.samples_have_the_density_that_is_claimed),
    (HalfDensity, checks.density_is_the_one_of_log_prob),
    (NoEntropy, checks.density_is_the_one_of_log_prob),
    (Crowd, checks.rows_do_not_see_each_other),
    (FlowCrowd, checks.rows_do_not_see_each_other),
    (Blind, checks.every_observation_matters),
    (Global, checks.mean_is_deterministic_and_samples_are_seeded),
    (Loose, checks.chunks_are_within_bounds),
    (OtherDeploy, checks.deployed_is_what_was_evaluated),
    (Forgetful, checks.its_description_rebuilds_it),
    (Restless, checks.the_ratio_of_a_chain_is_one),
    (OtherDecoder, checks.its_chain_is_its_decoder_on_a_rising_grid),
    (Deaf, checks.it_overfits_a_single_chunk),
    (Crowd, checks.it_declares_what_it_can_do),  # another class is registered under its kind
    (Unfrozen, checks.settings_are_frozen_json),
    (Amnesiac, checks.its_memory_carries_an_episode),
    (Endless, checks.its_memory_carries_an_episode),
)


BASES: dict[type, Any] = {FlowPolicy: FLOW, RecurrentPolicy: RECURRENT, GaussianPolicy: GAUSSIAN}
"""Policies without a fault, and the settings of their cases."""


def base_of(policy: type) -> type:
    return next(base for base in BASES if issubclass(policy, base))


def case_of(policy: type) -> PolicyCase:
    cfg = BASES[base_of(policy)]
    return PolicyCase(lambda: policy(OBSERVATION_SPEC, ACTION_SPEC, TRANSFORMS, cfg))


@pytest.mark.parametrize("fault, check", FAULTS, ids=lambda one: one.__name__)
def test_the_kit_finds_a_fault(fault: type, check: Callable[[PolicyCase], None]) -> None:
    with pytest.raises(AssertionError):
        check(case_of(fault))
    # a policy without the fault passes on the same case
    check(case_of(base_of(fault)))


def test_every_check_has_a_fault_that_it_finds() -> None:
    assert {check for _, check in FAULTS} == set(checks.CHECKS)


def test_an_observation_that_is_said_to_be_ignored_must_not_matter() -> None:
    checks.every_observation_matters(case_of(Blind)._replace(ignored=("tip",)))
    with pytest.raises(AssertionError, match="observation 'tip', element 0: matters is True"):
        checks.every_observation_matters(case_of(GaussianPolicy)._replace(ignored=("tip",)))
