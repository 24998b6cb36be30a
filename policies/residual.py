"""Residual policy: a frozen base policy, and a network that corrects each of its samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from robotrl.errors import check_positive, unknown
from robotrl.policies.best_of import BestOfCfg, BestOfPolicy
from robotrl.policies.networks.mlp import Activation, Mlp

ResidualInput = Literal["noise", "chunk"]
"""Input of the residual network, besides the context."""


@dataclass(frozen=True)
class ResidualPolicyCfg(BestOfCfg):
    """Config of the residual network, and of candidates and critics."""

    scale: float = 1.0
    """s: each element of a chunk moves by at most this, normalized units."""
    residual_input: ResidualInput = "noise"
    """Input of the residual network besides the context: the base policy's noise, or the chunk made of it."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the residual network's hidden layers."""
    activation: Activation = "silu"
    """Activation of the residual network."""

    def build(self, base: nn.Module) -> ResidualPolicy:
        """Put a residual of 0, and critics with fresh weights, beside a base policy."""
        return ResidualPolicy(base, self)


class Corrected(NamedTuple):
    """Samples of a base policy before and after their correction; result of `ResidualPolicy.corrected`."""

    base: Tensor
    """(R, H', A') of the base policy, as they would be executed."""
    change: Tensor
    """(R, H, A) s r, the change of the executed part, before the sum is clipped."""
    chunk: Tensor
    """(R, H', A') their sum, as it would be executed."""


class ResidualPolicy(BestOfPolicy):
    """A frozen base policy with a residual network and critics; implements `Policy` and `HasProposals`.

    A sample is clip(D(c, w) + s r(c, w)): D the base policy's chunk from context c and noise w, and r in [-1, 1] by
    tanh. The last layer of r starts at 0, so that the policy begins as its base. At each decision the best of n samples
    by the critics is executed; with n = 1 the critics are not asked. Elements of a pretrained policy's chunk that are
    not executed stay as they are.

    Args:
        base: a policy whose samples are a function of normal noise, see `sampler_of`; it is frozen, in place.
        cfg: the config.

    Raises:
        CapabilityError: the base policy has no such samples.
        ConfigError: a setting out of range, or a base policy with chunks of another length.
    """

    kind: ClassVar[str] = "residual"
    Cfg: ClassVar[type] = ResidualPolicyCfg
    cfg: ResidualPolicyCfg

    def __init__(self, base: Any, cfg: ResidualPolicyCfg) -> None:
        check_positive("policy.scale", cfg.scale)
        if cfg.residual_input not in get_args(ResidualInput):
            raise unknown("policy.residual_input", str(cfg.residual_input), get_args(ResidualInput))
        super().__init__(base, cfg)
        base.requires_grad_(False)
        read = math.prod(self._sampler.noise_shape)
        outputs = self.horizon * self.action_width
        self.residual = Mlp(self.context_width + read, cfg.hidden, outputs, 0.0, cfg.activation)

    def corrected(self, ctx: Tensor, noise: Tensor) -> Corrected:
        """Correct the base policy's samples for contexts (R, D) and noise (R, H', A')."""
        base = self.executed.clip(self._sampler.sample(ctx, noise))
        read = noise if self.cfg.residual_input == "noise" else base
        x = self.residual(torch.cat([ctx[:, : self.context_width], read.flatten(1)], dim=1))
        change = self.cfg.scale * x.view(-1, self.horizon, self.action_width).tanh()
        rest = 0, base.shape[2] - self.action_width, 0, base.shape[1] - self.horizon
        return Corrected(base, change, self.executed.clip(base + nn.functional.pad(change, rest)))

    def sampled(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Corrected samples (R, H', A'), as they would be executed."""
        return self.corrected(ctx, noise).chunk
