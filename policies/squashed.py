"""Tanh-Gaussian policy of SAC: mean and std depend on the observation, tanh maps samples into the action bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import softplus

from robotrl.fn.chain import normal_log_prob
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import Deployed, NetworkPolicy
from robotrl.policies.closed_form import SampledAction
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation, Mlp
from robotrl.spec import ActOut, Mode, Spec
from robotrl.transforms import TransformGroup

LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds of the log-std before tanh (Haarnoja et al. 2018b)."""
EDGE = 1e-6
"""Minimum distance of actions to their bounds in `log_prob`, since the density is infinite there."""


@dataclass(frozen=True)
class SquashedCfg:
    """Config of a `SquashedPolicy`."""

    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """Activation function between the layers."""
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

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> SquashedPolicy:
        """The policy with fresh weights."""
        return SquashedPolicy(observation_spec, action_spec, transforms, self)


class SquashedPolicy(NetworkPolicy):
    """Tanh-Gaussian policy; implements `Policy` and `HasLogProb`, for normalised actions within [-1, 1]."""

    kind: ClassVar[str] = "squashed"
    Cfg: ClassVar[type] = SquashedCfg
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"
    keyed_noise: ClassVar[Literal[True]] = True

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: SquashedCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.net = Mlp(self.context_width, cfg.hidden, 2 * cfg.horizon * self.action_width, activation=cfg.activation)

    def moments(self, ctx: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std, (B, H, A) each, before tanh."""
        # under autocast the network returns bf16: densities need the context's precision
        out = self.net(ctx).to(ctx.dtype).view(-1, 2, self.horizon, self.action_width)
        mean, log_std = out.unbind(1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def mean(self, ctx: Tensor) -> Tensor:
        """Deployed action (B, H, A): tanh of the mean."""
        return self.moments(ctx)[0].tanh()

    def draw_with(self, ctx: Tensor, noise: Tensor) -> SampledAction:
        """Reparametrized sample with its log-density from given noise, differentiable (as in SAC).

        Args:
            ctx: (B, D).
            noise: (B, H, A) standard normal.
        """
        mean, log_std = self.moments(ctx)
        before = mean + log_std.exp() * noise
        log_prob = -0.5 * (noise**2 + math.log(2 * math.pi)) - log_std - log_slope(before)
        return SampledAction(before.tanh(), log_prob)

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """(B, H, A) log-density of normalised actions (B, H, A) within [-1, 1]."""
        return self.log_prob_of(self.encode(obs), chunk)

    def log_prob_of(self, ctx: Tensor, chunk: Tensor) -> Tensor:
        """`log_prob` from the context (B, D)."""
        mean, log_std = self.moments(ctx)
        before = chunk.clamp(-1 + EDGE, 1 - EDGE).atanh()
        return normal_log_prob(before, mean, log_std.exp()) - log_slope(before)

    def draw(self, obs: dict[str, Tensor], generator: Noise | None) -> SampledAction:
        """Sample a normalised chunk with its log-density."""
        ctx = self.encode(obs)
        shape = (len(ctx), self.horizon, self.action_width)
        return self.draw_with(ctx, randn(shape, generator, ctx.device, ctx.dtype))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Tanh of the mean; noise is ignored."""
        del noise
        normalized_action = self.mean(self.encode(obs))
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: sampled, or tanh of the mean."""
        normalized_action = (
            self.draw(obs, generator).normalized_action if mode == "sample" else self.mean(self.encode(obs))
        )
        return ActOut(self.to_actions(normalized_action), state)


def log_slope(before: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), computed stably as 2 (log 2 - u - softplus(-2 u))."""
    return 2 * (math.log(2) - before - softplus(-2 * before))
