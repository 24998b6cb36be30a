"""A vision-language-action policy that says tokens: OpenVLA's network at any size, on a sim that speaks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, ConfigError, check_number, unknown
from robotrl.fn.random import noise
from robotrl.fn.text import tokens
from robotrl.policies.base import Deployed, SpecPolicy
from robotrl.policies.networks.mlp import flat_width, in_full
from robotrl.policies.vla import bins
from robotrl.policies.vla.input_checks import check_given
from robotrl.policies.vla.networks.autoregressive import AutoregressiveVla, Decoding, Prefix
from robotrl.policies.vla.networks.init import begin
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import TowerCfg
from robotrl.policies.vla.prompt import TASK, Prompt, WordTokenizer
from robotrl.policies.vla.roles import check_square, heeded, roles, sight_of
from robotrl.spec import ActOut, Cache, Mode, Spec
from robotrl.transforms import TransformGroup

Deployment = Literal["likeliest", "median"]
DEPLOYMENTS: tuple[Deployment, ...] = ("likeliest", "median")
PADDING = 64
"""The embedding's rows are rounded up to a multiple of this, as published models have them."""


@dataclass(frozen=True)
class TokenVlaCfg:
    """Size of a `TokenVlaPolicy` that is trained from nothing; some 1.8 million parameters."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    decoding: Decoding = "parallel"
    """One token after the other, or all of a chunk at once."""
    queries: bool = False
    """Whether the tokens of parallel decoding are said from learned embeddings, each its own, and not from zeros."""
    bins: int = 256
    """Of each element of an action."""
    temperature: float = 1.0
    """Of drawing."""
    deploy: Deployment = "likeliest"
    """What is said when deployed: the likeliest bin of each element, or the median one of what would be drawn. The
    likeliest jumps between bins that are nearly as likely, the median does not."""
    camera: str = ""
    """Key of the picture; may be left out where there is one."""
    vision_width: int = 96
    vision_depth: int = 3
    """Blocks of each tower; the last one is not computed with."""
    vision_heads: int = 4
    patch: int = 16
    """Pixels of a patch's side."""
    width: int = 128
    """Of the language model."""
    depth: int = 4
    """In parallel decoding, what stands in the actions' places sees all alike in the first layer."""
    heads: int = 4
    mlp: int = 256
    """Between the layers of its MLPs."""
    ignored: tuple[str, ...] = ()
    """Columns of the measured state that are not looked at; see `heeded`."""
    label_bins: float = 0.0
    """Cloning: standard deviation, in bins, over which the wanted token is spread; 0 wants one bin alone."""

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> TokenVlaPolicy:
        """The policy with fresh weights."""
        return TokenVlaPolicy(observation_spec, action_spec, transforms, self)


class TokenPolicy(SpecPolicy):
    """What policies share whose network says tokens; satisfies `Policy` and `HasTokens`.

    Args:
        observation_spec: has a square picture, an instruction and, where the network takes one, a measured state.
        action_spec: one action.
        transforms: inputs by observation key, outputs for the action.
        cfg: has `horizon`, `camera`, `temperature`, `deploy`, `label_bins`.
        ignored: columns of the measured state that are not looked at; see `TokenVlaCfg`.

    Raises:
        CapabilityError: no picture or no instruction among the observations.
        ConfigError: settings out of range, or observations that do not fit the network.
    """

    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"
    keyed_noise: ClassVar[Literal[True]] = True
    changeable: ClassVar[tuple[str, ...]] = ("temperature", "deploy", "label_bins")
    net: AutoregressiveVla
    prompt: Prompt

    def __init__(
        self,
        observation_spec: dict[str, Spec],
        action_spec: Spec,
        transforms: TransformGroup,
        cfg: Any,
        ignored: Sequence[str] = (),
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        check_number("policy.temperature", cfg.temperature, 0.01, 100.0)
        check_number("policy.label_bins", cfg.label_bins, 0.0, 64.0)
        self.seen = roles(self.observation_spec, (cfg.camera,) if cfg.camera else ())
        """Which arrays of an observation are what."""
        self._picture: str = self.seen.pictures[0]
        if cfg.deploy not in DEPLOYMENTS:
            raise unknown("policy.deploy", str(cfg.deploy), DEPLOYMENTS)
        self.temperature, self.label_bins = cfg.temperature, cfg.label_bins
        self._deployed: Deployment = cfg.deploy
        self.pixels: int = check_square(observation_spec, self._picture)
        """Of the picture's side."""
        self.words: tuple[str, ...] = observation_spec[self.seen.words].words
        self.state_width: int = flat_width({key: observation_spec[key] for key in self.seen.vectors})
        self.heeded: Tensor
        self.register_buffer("heeded", heeded(observation_spec, self.seen.vectors, ignored), persistent=False)

    def check_state(self, wanted: int) -> None:
        """Hold the measured state against the width that a network was made for; 0 sees none.

        Raises:
            ConfigError: it has another.
        """
        if wanted and self.state_width != wanted:
            raise ConfigError(
                f"observations {', '.join(self.seen.vectors) or '(none)'} have {self.state_width} numbers: expected"
                f" {wanted}, the width of the network's measured state"
            )

    @property
    def bins(self) -> int:
        """Of each element of an action."""
        return self.net.speech.bins

    @property
    def _said_at_once(self) -> int:
        return self.horizon * self.action_width if self.net.speech.decoding == "parallel" else 1

    def encode(self, obs: dict[str, Tensor]) -> Prefix:
        """Picture, prompt and state as embeddings, from raw observations."""
        seen = self.seen
        normalised = self._inputs(obs)
        state = None
        if self.net.speech.state:
            state = torch.cat([normalised[key].flatten(1) for key in seen.vectors], dim=1) * self.heeded
        ids, there = self.prompt(obs[seen.words])
        return self.net.prefix(self._patches(obs), ids, there, state)

    def _patches(self, obs: dict[str, Tensor]) -> Tensor:
        """Of the picture, or what was kept of them."""
        kept = sight_of(self._picture)
        return obs[kept] if kept in obs else self.net.sight(obs[self._picture])

    def cached(self, obs: dict[str, Tensor], what: Cache) -> dict[str, Tensor]:
        """Observations in which patches stand for the picture ("sight"); see `HasCache`."""
        if what == "context":
            raise CapabilityError(f"policy {type(self).__name__} reads while it speaks: cache can be none or sight")
        rest = {key: x for key, x in obs.items() if key != self._picture}
        return {**rest, sight_of(self._picture): self.net.sight(obs[self._picture])}

    def eye(self) -> nn.Module:
        """A frozen copy of what sees: pictures (B, S, S, 3), bytes, to features (B, F), the mean over patches."""
        return VisionTowers(self.net.eye(), self._picture).requires_grad_(False).eval()

    def reader(self) -> nn.Module:
        """A frozen copy that makes observations to the hidden state (B, `width`) at the prompt's last token."""
        return TokenVlaFeatures(copy.deepcopy(self)).requires_grad_(False).eval()

    @property
    def reading_width(self) -> int:
        """F of `reading`."""
        return self.net.width

    def reading(self, ctx: Prefix) -> Tensor:
        """(B, n, F) the hidden states from which actions are said; what is known elsewhere comes too late for them."""
        return self.net.speaking(ctx, self.horizon * self.action_width)

    @property
    def looking_width(self) -> int:
        """F of `looking`."""
        return self.net.patches * self.net.width

    def looking(self, obs: dict[str, Tensor]) -> Tensor:
        """(B, F) the picture's patches as the language model gets them."""
        return self.net.seen(self._patches(obs)).flatten(1)

    def token_logits(self, ctx: Prefix, tokens: Tensor) -> Tensor:
        """(B, H, A, bins) logits of each token of (B, H, A), given those before it where it is one after the other."""
        logits = self.net.logits(ctx, tokens.flatten(1)).unflatten(1, (self.horizon, self.action_width))
        return in_full(logits)

    def sample_tokens(self, ctx: Prefix, generator: noise.Noise | None, mode: Mode, at: Tensor | None = None) -> Tensor:
        """(B, H, A) bins: drawn at the temperature, taken from where `at` says, or as deployed."""
        # (B, T) in the order in which they are said: all at once, or one after the other
        places = None if at is None else iter(at.flatten(1).split(self._said_at_once, dim=1))

        def choose(logits: Tensor) -> Tensor:
            logits = in_full(logits)
            if mode == "mean" and self._deployed == "likeliest":
                return logits.argmax(dim=-1)
            share = (logits / self.temperature).softmax(dim=-1)
            if mode == "mean":
                return tokens.median(share)
            share = share.flatten(0, -2)
            said = noise.choose(share, generator) if places is None else noise.choose_at(share, next(places).flatten())
            return said.reshape(logits.shape[:-1])

        said = self.net.sample(ctx, self.horizon * self.action_width, choose)
        return said.unflatten(1, (self.horizon, self.action_width))

    def to_tokens(self, chunk: Tensor) -> Tensor:
        """(B, H, A) bins of normalised chunks."""
        return bins.to_bins(chunk, self.bins)

    def from_tokens(self, tokens: Tensor) -> Tensor:
        """(B, H, A) normalised chunks of bins."""
        return bins.to_action(tokens, self.bins)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Raw observations to actions, as `cfg.deploy` has them; `noise` must be None."""
        return self._said(obs, None, "mean")

    def check_given(self, obs: dict[str, Tensor]) -> None:
        """Refuse observations that are not what the policy was made for.

        Raises:
            ConfigError: see `robotrl.policies.vla.input_checks.check_given`.
            NumericsError: see there.
        """
        check_given(obs, self.observation_spec)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: noise.Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: drawn at the temperature, or as deployed.

        Raises:
            ConfigError: see `check_given`.
            NumericsError: see there.
        """
        self.check_given(obs)
        return ActOut(self._said(obs, generator, mode).actions, state)

    def _said(self, obs: dict[str, Tensor], generator: noise.Noise | None, mode: Mode) -> Deployed:
        raw = self.from_tokens(self.sample_tokens(self.encode(obs), generator, mode))
        return Deployed(self.to_actions(raw), raw)


class VisionTowers(nn.Module):
    """Vision towers alone.

    Args:
        towers: (B, S, S, 3) to (B, P, F).
        picture: key of the observation that they see.
    """

    def __init__(self, towers: nn.Module, picture: str) -> None:
        super().__init__()
        self.towers, self.picture = towers, picture

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features (B, F) of observations."""
        return self.towers(obs[self.picture]).mean(dim=1)


class TokenVlaFeatures(nn.Module):
    """What a policy makes of picture, words and state, before it says anything.

    Args:
        policy: of which this is.
    """

    def __init__(self, policy: TokenPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.width: int = policy.reading_width
        """Of the features."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features (B, width) of observations."""
        return self.policy.net.summary(self.policy.encode(obs))


class TokenVlaPolicy(TokenPolicy):
    """A network of any size, trained from nothing on the words of a sim."""

    kind: ClassVar[str] = "token-vla"
    Cfg: ClassVar[type] = TokenVlaCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: TokenVlaCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg, cfg.ignored)
        tokenizer = WordTokenizer(self.words)
        self.prompt = Prompt(self.words, TASK, tokenizer)
        used = len(tokenizer) + cfg.bins
        rows = -(-used // PADDING) * PADDING
        tower = TowerCfg(
            cfg.vision_width, cfg.vision_depth, cfg.vision_heads, 4 * cfg.vision_width, cfg.patch, self.pixels
        )
        text = TextCfg(cfg.width, cfg.depth, cfg.heads, cfg.heads, cfg.mlp, rows, rows - used, stop=WordTokenizer.STOP)
        queries = cfg.horizon * self.action_width if cfg.queries else 0
        self.net = OpenVla(OpenVlaCfg((tower, tower), text, cfg.bins, cfg.decoding, self.state_width, queries))
        begin(self.net, cfg.depth)
