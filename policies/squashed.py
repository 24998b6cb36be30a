"""Tanh-Gaussian policy: a normal distribution that depends on the observation, squashed into the action's bounds."""

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
"""Bounds of the log-deviation before squashing (Haarnoja et al. 2018b)."""
EDGE = 1e-6
"""Actions closer than this to their bounds are moved off them, where the density is infinite."""


@dataclass(frozen=True)
class SquashedCfg:
    """Size of a `SquashedPolicy`."""

    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    activation: Activation = "relu"
    """Between the layers."""
    set_features: int = 0
    """Numbers that a list with a mask becomes besides its rows, e.g. road users; 0 leaves it at the rows."""
    image_channels: tuple[int, ...] = (32, 64, 64)
    """For pictures: channels of the convolutions, each of which halves height and width."""
    image_features: int = 64
    """Numbers that a picture becomes."""
    image_pool: Pool = "flatten"
    """Between convolutions and features: all they give, or where each channel is largest."""
    image_norm: ImageNorm = "none"
    """After each convolution: nothing, or the picture's mean and deviation taken out."""

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> SquashedPolicy:
        """The policy with fresh weights."""
        return SquashedPolicy(observation_spec, action_spec, transforms, self)


class SquashedPolicy(NetworkPolicy):
    """Satisfies `Policy` and `HasLogProb`; its densities are of normalised actions within [-1, 1]."""

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
        """Mean and log-deviation (B, H, A) each, before squashing."""
        # a network that computed in fewer bits hands its numbers back in the context's: densities need them
        out = self.net(ctx).to(ctx.dtype).view(-1, 2, self.horizon, self.action_width)
        mean, log_std = out.unbind(1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def mean(self, ctx: Tensor) -> Tensor:
        """The squashed mean (B, H, A), which is what is deployed."""
        return self.moments(ctx)[0].tanh()

    def draw_with(self, ctx: Tensor, noise: Tensor) -> SampledAction:
        """Actions and their densities from given noise, differentiable in both (the reparametrisation of SAC).

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
        """A normalised chunk with noise, and its density."""
        ctx = self.encode(obs)
        shape = (len(ctx), self.horizon, self.action_width)
        return self.draw_with(ctx, randn(shape, generator, ctx.device, ctx.dtype))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The squashed mean; takes no noise."""
        del noise
        raw = self.mean(self.encode(obs))
        return Deployed(self.to_actions(raw), raw)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: drawn, or the squashed mean."""
        raw = self.draw(obs, generator).raw if mode == "sample" else self.mean(self.encode(obs))
        return ActOut(self.to_actions(raw), state)


def log_slope(before: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) in a form that neither overflows nor loses digits: 2 (log 2 - u - softplus(-2 u))."""
    return 2 * (math.log(2) - before - softplus(-2 * before))
