"""Policies with a condition: whether an action is better than usual is an input (RECAP, arXiv 2511.14759).

A cloned policy gets two numbers beside its context: 1, 0 for a positive action, 0, 1 for a negative one, and 0, 0 where
the condition is dropped. It is cloned with the label of each recorded action, and acts with the positive one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, check_at_least, out_of_range
from robotrl.fn import chain
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import Deployed
from robotrl.policies.closed_form import ClosedFormPolicy, SampledAction
from robotrl.policies.generative import GenerativePolicy
from robotrl.policies.networks.condition import POSITIVE, ConditionNet, appended
from robotrl.policies.over_base import PolicyOverBase
from robotrl.spec import ActOut, Density, HasChain, Mode


@dataclass(frozen=True)
class ConditionedCfg:
    """Config of the condition."""

    guidance: float = 1.0
    """Guidance beta, 0 or more: the velocity is v(dropped) + beta (v(positive) - v(dropped)). 1 acts with the positive
    condition, 0 without a condition; above 1, a decision costs twice the network evaluations. A policy in closed form
    has 1 only."""
    hidden: tuple[int, ...] = (64,)
    """Widths of the condition network's hidden layers."""
    horizon: int | None = None
    """Expected chunk length of the base policy; None accepts any."""

    def build(self, base: nn.Module) -> ConditionedPolicy:
        """Put a condition on a base policy; until it is trained, the policy acts as the base does.

        Raises:
            CapabilityError: the base policy's actions are no function of a context of features alone.
            ConfigError: a setting out of range.
        """
        kind = ConditionedChainPolicy if isinstance(base, GenerativePolicy) else ConditionedClosedFormPolicy
        return kind(base, self)


class ConditionedPolicy(PolicyOverBase, ABC):
    """A policy with a condition: its context is the base policy's, with the two numbers of the condition behind it.

    Args:
        base: the policy to condition.
        cfg: the config.

    Raises:
        CapabilityError: another kind of base policy, or guidance that it cannot have.
        ConfigError: a setting out of range, or a base policy with chunks of another length.
    """

    Cfg: ClassVar[type] = ConditionedCfg
    changeable: ClassVar[tuple[str, ...]] = ("guidance",)
    keyed_noise: ClassVar[Literal[True]] = True
    bases: ClassVar[type]
    """Kind of policies that it takes as its base."""

    def __init__(self, base: Any, cfg: ConditionedCfg) -> None:
        if not isinstance(base, self.bases):
            raise CapabilityError(
                f"policy {type(base).__name__} cannot be conditioned: expected a flow, shortcut, diffusion, Gaussian,"
                " Beta or categorical policy, whose context is a vector of features"
            )
        if not 0 <= cfg.guidance < math.inf:
            raise out_of_range("policy.guidance", cfg.guidance, "0 or more")
        for width in cfg.hidden:
            check_at_least("policy.hidden", width, 1)
        super().__init__(base, cfg.horizon)
        self.cfg = cfg
        self.condition = ConditionNet(self.context_width, cfg.hidden)

    @property
    def deploy_mode(self) -> Mode:
        """Mode in which the base policy is deployed."""
        return self.base.deploy_mode

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D + 2) of the base policy, and the positive condition."""
        return appended(self.base.encode(obs), POSITIVE)

    def dropped(self, ctx: Tensor) -> Tensor:
        """Context (B, D) that the base policy acts on without the condition, given one (B, D + 2) with it."""
        return ctx[:, : self.context_width]

    def conditioned(self, ctx: Tensor) -> Tensor:
        """Context (B, D) that the base policy acts on, given one (B, D + 2) with its condition."""
        return self.condition(self.dropped(ctx), ctx[:, self.context_width :])

    @abstractmethod
    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Forward pass of the exported graph, under the positive condition."""
        ...


class ConditionedClosedFormPolicy(ConditionedPolicy):
    """A Gaussian, Beta or categorical policy with a condition; implements `Policy`, `HasLogProb` and `HasDensity`."""

    kind: ClassVar[str] = "conditioned"
    bases: ClassVar[type] = ClosedFormPolicy

    def __init__(self, base: Any, cfg: ConditionedCfg) -> None:
        super().__init__(base, cfg)
        if cfg.guidance != 1:
            raise CapabilityError(
                f"policy.guidance is {cfg.guidance:g}: expected 1, {type(base).__name__} has no velocity to guide"
            )

    @property
    def noise_shape(self) -> None:
        """None: it takes no noise."""
        return

    def density(self, ctx: Tensor) -> Density:
        """See `HasDensity.density`."""
        return self.base.density(self.conditioned(ctx))

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """See `HasLogProb.log_prob`."""
        return self.density(self.encode(obs)).log_prob(chunk)

    def draw(self, obs: dict[str, Tensor], generator: Noise | None) -> SampledAction:
        """Sample a normalized chunk, before any clipping, with its log-density."""
        density = self.density(self.encode(obs))
        normalized_action = density.sample(generator)
        return SampledAction(normalized_action, density.log_prob(normalized_action))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The base policy's best action under the positive condition; noise is ignored."""
        del noise
        normalized_action = self.base.best(self.conditioned(self.encode(obs)))
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row under the positive condition: sampled, or the best."""
        self.check_given(obs)
        if mode == "sample":
            return ActOut(self.to_actions(self.draw(obs, generator).normalized_action), state)
        return ActOut(self.deploy(obs, None).actions, state)


class ConditionedChainPolicy(ConditionedPolicy):
    """A flow, shortcut or diffusion policy with a condition; implements `Policy`, `HasChain` and `HasDecode`.

    Its velocity is guided (classifier-free guidance, Ho & Salimans 2022): see `ConditionedCfg.guidance`.
    """

    kind: ClassVar[str] = "conditioned-chain"
    bases: ClassVar[type] = GenerativePolicy

    @property
    def noise_shape(self) -> tuple[int, int]:
        """(H, A) of the base policy's noise."""
        return self.base.noise_shape

    @property
    def times(self) -> tuple[float, ...]:
        """See `HasChain.times`: the base policy's."""
        return self.base.times

    @property
    def deploy_noise(self) -> float:
        """Std of the initial noise at deployment, that of the base policy."""
        return self.base.deploy_noise

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """Guided velocity (B, H, A) at x (B, H, A), under the condition in the context (B, D + 2)."""
        conditioned = self.base.velocity(self.conditioned(ctx), x, t, dt)
        if self.cfg.guidance == 1:
            return conditioned
        free = self.base.velocity(self.dropped(ctx), x, t, dt)
        return free + self.cfg.guidance * (conditioned - free)

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Denoise: normalized chunk (B, H, A) from noise (B, H, A), deterministic."""
        return chain.integrate(cast(HasChain, self), ctx, noise)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Actions from observations and standard normal noise, which is scaled by the base policy's `deploy_noise`.

        Raises:
            ValueError: no noise was given.
        """
        if noise is None:
            raise ValueError(f"noise is None: a {self.kind} policy starts from noise (B, H, A)")
        normalized_action = self.decode(self.encode(obs), self.deploy_noise * noise)
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row, as deployed; `sample` starts from random noise, `mean` from zero noise."""
        self.check_given(obs)
        first = next(iter(obs.values()))
        shape = (len(first), *self.noise_shape)
        zeros = mode == "mean"
        noise = torch.zeros(shape, device=first.device) if zeros else randn(shape, generator, first.device)
        return ActOut(self.deploy(obs, noise).actions, state)
