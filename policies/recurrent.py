"""Recurrent policies: a gated unit remembers the features of earlier observations, and a head in closed form acts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from robotrl.errors import check_at_least
from robotrl.fn.random.noise import Noise
from robotrl.policies.base import Deployed, DeployedWithMemory, EncoderPolicy
from robotrl.policies.beta import BetaCfg
from robotrl.policies.categorical import CategoricalCfg, CategoricalPolicy
from robotrl.policies.closed_form import ClosedFormPolicy
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.gated import GatedUnit
from robotrl.policies.networks.mlp import Activation
from robotrl.spec import ActOut, Density, Mode, Recalled, Spec
from robotrl.transforms import TransformGroup

CONTEXT = "context"
"""Observation key of the head: the context."""


@dataclass(frozen=True)
class MemoryCfg(ABC):
    """Settings that all recurrent policies share."""

    builds_memory: ClassVar[Literal[True]] = True
    horizon: int = 1
    """H, actions in a chunk; all are executed. The memory changes once per chunk."""
    memory: int = 128
    """M, width of the gated unit's memory."""
    hidden: tuple[int, ...] = (128, 128)
    """Widths of the head's hidden layers, which read the features of the observation and the memory."""
    activation: Activation = "silu"
    """Activation function between the head's layers."""
    set_features: int = 0
    """Width of the set encoder for each list with a mask (e.g. road users), next to its raw rows; 0 for rows alone."""
    set_attention: int = 0
    """Rounds of attention over all lists together (`SceneEncoder`), with `set_features`; 0 pools each list alone."""
    image_channels: tuple[int, ...] = (32, 64, 64)
    """Image encoder: channels of the convolutions, each of which halves height and width."""
    image_features: int = 64
    """Image encoder: features per image."""
    image_pool: Pool = "flatten"
    """Image encoder, after the convolutions: "flatten" keeps all values, "softmax" each channel's expected position."""
    image_norm: ImageNorm = "none"
    """Image encoder, after each convolution: no normalization, or "layer" (LayerNorm)."""

    @abstractmethod
    def head(self) -> Any:
        """Config of the policy in closed form that acts on the context."""
        ...


@dataclass(frozen=True)
class RecurrentCfg(MemoryCfg):
    """Config of a `RecurrentPolicy` with a Gaussian head."""

    initial_std: float = 0.6
    """Standard deviation at the start, in normalised action units."""

    def head(self) -> GaussianCfg:
        """See `MemoryCfg.head`."""
        return GaussianCfg(self.horizon, self.hidden, self.initial_std, self.activation)

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> RecurrentPolicy:
        """The policy with fresh weights."""
        return RecurrentPolicy(observation_spec, action_spec, transforms, self)


@dataclass(frozen=True)
class RecurrentBetaCfg(MemoryCfg):
    """Config of a `RecurrentBetaPolicy`."""

    def head(self) -> BetaCfg:
        """See `MemoryCfg.head`."""
        return BetaCfg(self.horizon, self.hidden, self.activation)

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> RecurrentBetaPolicy:
        """The policy with fresh weights."""
        return RecurrentBetaPolicy(observation_spec, action_spec, transforms, self)


@dataclass(frozen=True)
class RecurrentCategoricalCfg(MemoryCfg):
    """Config of a `RecurrentCategoricalPolicy`."""

    def head(self) -> CategoricalCfg:
        """See `MemoryCfg.head`."""
        return CategoricalCfg(self.horizon, self.hidden, self.activation)

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> RecurrentCategoricalPolicy:
        """The policy with fresh weights."""
        return RecurrentCategoricalPolicy(observation_spec, action_spec, transforms, self)


class RecurrentPolicy(EncoderPolicy):
    """Implements `Policy` and `HasMemory`: a gated unit between the observation's encoder and a head in closed form.

    The context of a decision is the features of its observation, and the memory after it. The head is a policy in
    closed form whose observation is that context. There is no `encode`: what a recurrent policy does depends on more
    than one observation, so algorithms that encode single ones do not take it.

    Args:
        observation_spec: see `EncoderPolicy`.
        action_spec: one action.
        transforms: inputs by observation key, outputs for the action.
        cfg: settings.

    Raises:
        ConfigError: invalid network sizes.
    """

    kind: ClassVar[str] = "recurrent"
    Cfg: ClassVar[type] = RecurrentCfg
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"
    keyed_noise: ClassVar[Literal[True]] = True

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: MemoryCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        check_at_least("policy.memory", cfg.memory, 1)
        self.unit = GatedUnit(self.features_width, cfg.memory)
        self.context_width: int = self.features_width + cfg.memory
        """D, the width of a context."""
        context = {CONTEXT: _unbounded(self.context_width)}
        self.head: ClosedFormPolicy = cfg.head().build(context, action_spec, TransformGroup())

    @property
    def memory_width(self) -> int:
        """See `HasMemory`."""
        return self.unit.width

    def initial_memory(self, rows: int) -> Tensor:
        """See `HasMemory`."""
        weight = self.unit.recurrent.weight
        return torch.zeros((rows, self.unit.width), dtype=weight.dtype, device=weight.device)

    def advance(self, obs: dict[str, Tensor], memory: Tensor) -> Recalled:
        """See `HasMemory`."""
        features = self._encoder().encode(obs)
        after = self.unit(self.unit.gates(features), memory)
        return Recalled(torch.cat([features, after], dim=-1), after)

    def unroll(self, obs: dict[str, Tensor], memory: Tensor, joined: Tensor) -> Tensor:
        """See `HasMemory`."""
        segments, length = joined.shape
        features = self._encoder().encode({key: x.flatten(0, 1) for key, x in obs.items()})
        features = features.view(segments, length, -1)
        gates, after, found = self.unit.gates(features), memory[:, 0], list[Tensor]()
        for step in range(length):
            before = torch.where(joined[:, step, None], after, memory[:, step])
            after = self.unit(gates[:, step], before)
            found.append(after)
        return torch.cat([features, torch.stack(found, dim=1)], dim=-1)

    def density(self, ctx: Tensor) -> Density:
        """See `HasMemory`."""
        return self.head.density(ctx)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row, and the memory (B, M) after it; without a state, each row begins an episode."""
        rows = len(next(iter(obs.values())))
        ctx, memory = self.advance(obs, self.initial_memory(rows) if state is None else state)
        normalized_action = self.density(ctx).sample(generator) if mode == "sample" else self.head.best(ctx)
        return ActOut(self.to_actions(normalized_action), memory)

    def deploy_from(self, obs: dict[str, Tensor], memory: Tensor, noise: Tensor | None) -> DeployedWithMemory:
        """One decision on the robot: the head's best chunk, from the memory (B, M) of the decision before."""
        del noise
        ctx, after = self.advance(obs, memory)
        normalized_action = self.head.best(ctx)
        return DeployedWithMemory(self.to_actions(normalized_action), normalized_action, after)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The first decision of an episode; see `deploy_from` for the others."""
        out = self.deploy_from(obs, self.initial_memory(len(next(iter(obs.values())))), noise)
        return Deployed(out.actions, out.normalized_action)


class RecurrentBetaPolicy(RecurrentPolicy):
    """A `RecurrentPolicy` with a Beta head."""

    kind: ClassVar[str] = "recurrent-beta"
    Cfg: ClassVar[type] = RecurrentBetaCfg


class RecurrentCategoricalPolicy(RecurrentPolicy):
    """A `RecurrentPolicy` with a categorical head, for actions that are choices."""

    kind: ClassVar[str] = "recurrent-categorical"
    Cfg: ClassVar[type] = RecurrentCategoricalCfg
    acts: ClassVar[Literal["numbers", "choices"]] = "choices"

    def lead_from(self, obs: dict[str, Tensor], memory: Tensor) -> Tensor:
        """(B,) margins between the first and the second choice; see `CategoricalPolicy.lead_of`."""
        assert isinstance(self.head, CategoricalPolicy)
        return self.head.lead_of(self.advance(obs, memory).ctx)


def _unbounded(width: int) -> Spec:
    """Spec of a vector of any numbers."""
    names = tuple(f"{CONTEXT}_{i}" for i in range(width))
    return Spec((width,), names, ("1",) * width, (-float("inf"),) * width, (float("inf"),) * width)
