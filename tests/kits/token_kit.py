"""A policy that says tokens on the walk, small enough for tests: one network, which reads the token before."""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.fn.random import noise
from robotrl.policies.base import Deployed, SpecPolicy
from tests.kits.learner_kit import ACTION, SPECS, TRANSFORMS


class WalkTokensCfg(NamedTuple):
    """Settings of `WalkTokens`."""

    horizon: int = 2


class WalkEyes(nn.Module):
    """The context that a policy says its tokens from."""

    width = 8

    def __init__(self, policy: WalkTokens) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.policy.encode(obs)


class WalkTokens(SpecPolicy):
    """Says one of `bins` bins for each of two actions; the second one depends on the first. `HasTokens`."""

    deploy_mode: Literal["mean"] = "mean"
    bins, temperature, label_bins = 7, 1.0, 0.0

    def __init__(self) -> None:
        super().__init__(SPECS, ACTION, TRANSFORMS, WalkTokensCfg())
        self.eyes = nn.Linear(2, 8)
        self.said = nn.Embedding(self.bins + 1, 8)
        self.head = nn.Linear(8, self.bins)

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        return self.eyes(self._inputs({"walk": obs["walk"]})["walk"]).tanh()

    def token_logits(self, ctx: Tensor, tokens: Tensor) -> Tensor:
        before = torch.cat([torch.full_like(tokens[:, :1], self.bins), tokens[:, :-1]], dim=1)
        return self.head((ctx[:, None, None] + self.said(before)).tanh())

    def sample_tokens(self, ctx: Tensor, generator: Any, mode: Any, at: Tensor | None = None) -> Tensor:
        tokens = torch.zeros((len(ctx), 2, 1), dtype=torch.int64)
        for h in range(2):
            share = self.token_logits(ctx, tokens)[:, h, 0].softmax(dim=-1)
            tokens[:, h, 0] = share.argmax(dim=-1) if mode == "mean" else noise.choose(share, generator)
        return tokens

    def to_tokens(self, chunk: Tensor) -> Tensor:
        return ((chunk.clamp(-1, 1) + 1) / 2 * (self.bins - 1)).round().long()

    def from_tokens(self, tokens: Tensor) -> Tensor:
        return tokens / (self.bins - 1) * 2 - 1

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        said = self.from_tokens(self.sample_tokens(self.encode(obs), None, "mean"))
        return Deployed(self.to_actions(said), said)

    def observation_encoder(self) -> WalkEyes:
        return WalkEyes(copy.deepcopy(self)).requires_grad_(False).eval()


def walk_tokens(seed: int = 0) -> WalkTokens:
    torch.manual_seed(seed)
    return WalkTokens()
