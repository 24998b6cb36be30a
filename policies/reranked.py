"""RAD-2's policy: a flow or diffusion planner that proposes candidates, and a discriminator that picks one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, ConfigError, check_count
from robotrl.fn.planner.reranking import choice_terms
from robotrl.fn.random.noise import Noise, choose, randn
from robotrl.policies.base import Deployed
from robotrl.policies.generative import GenerativePolicy
from robotrl.policies.networks.discriminator import Discriminator
from robotrl.policies.over_base import PolicyOverBase
from robotrl.spec import ActOut, Mode, Proposals

MOST_CANDIDATES = 1024
FIXED_SEED = 0x2AD2
"""Seed of the candidates' noise in mode "mean"."""


@dataclass(frozen=True)
class RerankedCfg:
    """Config of the candidates and of the discriminator."""

    candidates: int = 32
    """M, candidates per decision, 1 to 1024; with 1 it is the planner itself."""
    width: int = 64
    """Width of the discriminator's tokens, a multiple of 4."""
    rounds: int = 2
    """Rounds of attention to the scene."""
    point_width: int = 2
    """Consecutive elements of an action that are one point of a candidate: 2 for the x and y of a trajectory."""
    horizon: int | None = None
    """Expected chunk length of the planner; None accepts any."""

    def build(self, base: nn.Module) -> RerankedPolicy:
        """Put a discriminator with fresh weights beside a planner."""
        return RerankedPolicy(base, self)


class Explored(NamedTuple):
    """Result of `RerankedPolicy.explore`: candidates, and one of them drawn by its probability."""

    actions: Tensor
    """(B, H, A) the chosen candidates in the sim's units."""
    chunks: Tensor
    """(B, M, H, A) all candidates, normalized."""
    choice: Tensor
    """(B,) int64 index of the chosen ones."""
    log_prob: Tensor
    """(B,) their log-probabilities."""


class RerankedPolicy(PolicyOverBase):
    """A planner with a discriminator of its candidates; implements `Policy` and `HasProposals`.

    At each decision the planner samples M candidates, from full noise as in its training, and the discriminator scores
    them. The best one is executed; in training, one is drawn from the softmax of the scores (`explore`). The whole
    decision is followed: with trajectories as actions that is `hold` control steps of the sim.

    Args:
        base: the planner, a flow, shortcut or diffusion policy.
        cfg: the config.

    Raises:
        CapabilityError: the base policy is of another kind.
        ConfigError: a setting out of range, or a planner with chunks of another length.
    """

    kind: ClassVar[str] = "reranked"
    Cfg: ClassVar[type] = RerankedCfg
    keyed_noise: ClassVar[Literal[True]] = True
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "sample"
    fixed_noise: Tensor

    def __init__(self, base: nn.Module, cfg: RerankedCfg) -> None:
        if not isinstance(base, GenerativePolicy):
            raise CapabilityError(
                f"policy {type(base).__name__} proposes no candidates that can be ranked: expected FlowPolicy,"
                " ShortcutPolicy or DiffusionPolicy"
            )
        check_count("policy.candidates", cfg.candidates, 1, MOST_CANDIDATES)
        super().__init__(base, cfg.horizon)
        self.cfg = cfg
        self.discriminator = Discriminator(base, cfg.width, cfg.rounds, cfg.point_width)
        fixed = torch.randn(self.noise_shape, generator=torch.Generator().manual_seed(FIXED_SEED))
        self.register_buffer("fixed_noise", fixed, persistent=False)

    @property
    def noise_shape(self) -> tuple[int, int]:
        """(M H, A) of the noise for `deploy`: that of all candidates, one after the other."""
        return self.cfg.candidates * self.horizon, self.action_width

    def propose(self, obs: dict[str, Tensor], noise: Tensor) -> Proposals:
        """See `HasProposals`."""
        batch = len(noise)
        ctx = self.base.encode(obs).repeat_interleave(self.cfg.candidates, dim=0)
        flat = noise.reshape(batch * self.cfg.candidates, self.horizon, self.action_width)
        chunks = self.base.decode(ctx, flat).view(batch, self.cfg.candidates, self.horizon, self.action_width)
        return Proposals(chunks, self.discriminator(obs, chunks))

    def explore(self, obs: dict[str, Tensor], generator: torch.Generator) -> Explored:
        """Sample candidates, and draw one of them from the softmax of their scores."""
        chunks, logits = self.propose(obs, self._noise(obs, generator))
        choice = choose(logits.softmax(dim=-1), generator)
        log_prob = choice_terms(logits, choice).log_prob
        return Explored(self.to_actions(chosen(chunks, choice)), chunks, choice, log_prob)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The candidate with the best score, from standard normal noise (B, M H, A).

        Raises:
            ConfigError: no noise was given.
        """
        if noise is None:
            raise ConfigError("noise is None: a reranked policy samples its candidates from noise (B, M H, A)")
        chunks, logits = self.propose(obs, noise)
        normalized_action = chosen(chunks, logits.argmax(dim=-1))
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """The best candidate of each row, as deployed; "mean" takes candidates from a fixed set of noise."""
        self.check_given(obs)
        first = next(iter(obs.values()))
        fixed = self.fixed_noise.expand(len(first), *self.noise_shape)
        noise = fixed if mode == "mean" else self._noise(obs, generator)
        return ActOut(self.deploy(obs, noise).actions, state)

    def _noise(self, obs: dict[str, Tensor], generator: Noise | None) -> Tensor:
        first = next(iter(obs.values()))
        return randn((len(first), *self.noise_shape), generator, first.device)


def chosen(chunks: Tensor, choice: Tensor) -> Tensor:
    """The chosen chunk (B, H, A) of each row's candidates (B, M, H, A)."""
    at = choice.view(-1, 1, 1, 1).expand(-1, 1, *chunks.shape[2:])
    return chunks.gather(1, at).squeeze(1)
