"""Best-of-n policy: samples several chunks of a base policy and executes the one that a critic values most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robotrl.errors import check_count, unknown
from robotrl.fn.candidates.proposals import sampler_of
from robotrl.fn.candidates.select import best_of, valued
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import Deployed
from robotrl.policies.networks.executed import ExecutedChunk
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.over_base import PolicyOverBase
from robotrl.policies.q import REDUCTIONS, QEnsemble
from robotrl.spec import ActOut, Mode, Proposals

MOST_CANDIDATES = 1024
FIXED_SEED = 0xBE57
"""Seed of the candidates' noise in mode "mean"."""


@dataclass(frozen=True)
class BestOfCfg:
    """Config of the candidates and of the critics."""

    candidates: int = 16
    """n, samples of the base policy per decision, 1 to 1024; with 1 it is the base policy itself."""
    reduction: Literal["mean", "min"] = "mean"
    """Value of a candidate: mean or minimum of the critics."""
    num_critics: int = 4
    """Number of critics."""
    critic_hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics."""
    layer_norm: bool = True
    """Layer normalization in the critics."""
    horizon: int | None = None
    """Expected chunk length of the base policy; None accepts any."""

    def build(self, base: nn.Module) -> BestOfPolicy:
        """Put critics with fresh weights beside a base policy."""
        return BestOfPolicy(base, self)


class BestOfPolicy(PolicyOverBase):
    """A base policy with critics of its chunks; implements `Policy` and `HasProposals`.

    At each decision the base policy is sampled n times, from full noise as in its training, and the sample of the
    largest value is executed. The exported graph holds candidates and critics; its noise is that of all candidates.

    Args:
        base: a policy whose samples are a function of normal noise, see `sampler_of`.
        cfg: the config.

    Raises:
        CapabilityError: the base policy has no such samples.
        ConfigError: a setting out of range, or a base policy with chunks of another length.
    """

    kind: ClassVar[str] = "best-of"
    Cfg: ClassVar[type] = BestOfCfg
    keyed_noise: ClassVar[Literal[True]] = True
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "sample"
    fixed_noise: Tensor

    def __init__(self, base: Any, cfg: BestOfCfg) -> None:
        self._sampler = sampler_of(base)
        check_count("policy.candidates", cfg.candidates, 1, MOST_CANDIDATES)
        if cfg.reduction not in REDUCTIONS:
            raise unknown("policy.reduction", str(cfg.reduction), REDUCTIONS)
        super().__init__(base, cfg.horizon)
        self.cfg = cfg
        self.critic = QEnsemble(
            self.context_width,
            self.horizon,
            self.action_width,
            cfg.num_critics,
            cfg.critic_hidden,
            cfg.layer_norm,
            cfg.critic_activation,
        )
        self.executed = ExecutedChunk(base)
        fixed = torch.randn(self.noise_shape, generator=torch.Generator().manual_seed(FIXED_SEED))
        self.register_buffer("fixed_noise", fixed, persistent=False)

    @property
    def noise_shape(self) -> tuple[int, int]:
        """(n H, A) of the noise for `deploy`: that of all candidates, one after the other."""
        horizon, width = self._sampler.noise_shape
        return self.cfg.candidates * horizon, width

    def sampled(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Samples (R, H, A) of the base policy, as they would be executed."""
        return self.executed.clip(self._sampler.sample(ctx, noise))

    def value(self, ctx: Tensor, chunk: Tensor) -> Tensor:
        """Values (R,) of chunks (R, H, A)."""
        return REDUCTIONS[self.cfg.reduction](self.critic(ctx, self.executed(chunk)))

    def propose(self, obs: dict[str, Tensor], noise: Tensor) -> Proposals:
        """See `HasProposals`; scores are values, so that their softmax is no probability of the policy."""
        return Proposals(*valued(self.sampled, self.value, self.encode(obs), self._rows(noise)))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The candidate of the largest value, from standard normal noise (B, n H, A).

        Raises:
            ValueError: no noise was given.
        """
        if noise is None:
            raise ValueError(f"noise is None: a {self.kind} policy samples its candidates from noise (B, n H, A)")
        ctx = self.encode(obs)
        if self.cfg.candidates == 1:
            # there is nothing to choose, and the exported graph needs no critics
            chunk = self.sampled(ctx, noise)
        else:
            chunk = best_of(self.sampled, self.value, ctx, self._rows(noise)).chunk
        return Deployed(self.to_actions(chunk), chunk)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """The best candidate of each row, as deployed; "mean" takes candidates from a fixed set of noise."""
        self.check_given(obs)
        first = next(iter(obs.values()))
        shape = (len(first), *self.noise_shape)
        noise = self.fixed_noise.expand(shape) if mode == "mean" else randn(shape, generator, first.device)
        return ActOut(self.deploy(obs, noise).actions, state)

    def _rows(self, noise: Tensor) -> Tensor:
        """Noise (B, n H, A) as rows of candidates (B, n, H, A)."""
        return noise.unflatten(1, (self.cfg.candidates, self._sampler.noise_shape[0]))
