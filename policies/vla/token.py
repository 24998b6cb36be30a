"""Autoregressive VLA policies: action tokens from OpenVLA's network at any size."""

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
from robotrl.policies.networks.mlp import flat_width, to_float32
from robotrl.policies.vla import bins
from robotrl.policies.vla.input_checks import check_given
from robotrl.policies.vla.networks.autoregressive import AutoregressiveVla, Decoding, Prefix
from robotrl.policies.vla.networks.init import begin
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import TowerCfg
from robotrl.policies.vla.prompt import TASK, Prompt, WordTokenizer
from robotrl.policies.vla.roles import check_square, features_key, roles, state_mask
from robotrl.spec import ActOut, Cache, Mode, Spec
from robotrl.transforms import TransformGroup

Deployment = Literal["likeliest", "median"]
DEPLOYMENTS: tuple[Deployment, ...] = ("likeliest", "median")
PADDING = 64
"""The embedding's rows are rounded up to a multiple of this, as in published models."""


@dataclass(frozen=True)
class TokenVlaCfg:
    """Config of a small `TokenVlaPolicy` trained from scratch; the defaults have 1.8 million parameters."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    decoding: Decoding = "parallel"
    """"autoregressive": one token at a time; "parallel": all tokens of a chunk at once."""
    queries: bool = False
    """Parallel decoding: learned query embeddings, one per token, instead of zeros."""
    bins: int = 256
    """Bins for each element of an action."""
    temperature: float = 1.0
    """Softmax temperature of sampling."""
    deploy: Deployment = "likeliest"
    """Deployed tokens: the "likeliest" bin of each element, or the "median" of the sampling distribution. The likeliest
    may jump between bins that are nearly as likely, the median does not."""
    camera: str = ""
    """Key of the image; optional if there is one image."""
    vision_width: int = 96
    vision_depth: int = 3
    """Blocks of each vision tower; the last one is not used."""
    vision_heads: int = 4
    patch: int = 16
    """Side of a patch, in pixels."""
    width: int = 128
    """Width of the language model."""
    depth: int = 4
    """Layers of the language model. In parallel decoding, all action tokens attend alike in the first layer."""
    heads: int = 4
    mlp: int = 256
    """Hidden width of the language model's MLPs."""
    ignored: tuple[str, ...] = ()
    """Columns of the measured state that the policy ignores; see `state_mask`."""
    label_bins: float = 0.0
    """Behavior cloning: label smoothing by a Gaussian of this standard deviation, in bins; 0 for one-hot labels."""

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> TokenVlaPolicy:
        """The policy with fresh weights."""
        return TokenVlaPolicy(observation_spec, action_spec, transforms, self)


class TokenPolicy(SpecPolicy):
    """Base class of autoregressive VLA policies; implements `Policy` and `HasTokens`.

    Args:
        observation_spec: has a square image, an instruction and, if the network needs one, a measured state.
        action_spec: one action.
        transforms: inputs by observation key, outputs for the action.
        cfg: has `horizon`, `camera`, `temperature`, `deploy`, `label_bins`.
        ignored: columns of the measured state that the policy ignores; see `TokenVlaCfg`.

    Raises:
        CapabilityError: no image or no instruction among the observations.
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
        self.roles = roles(self.observation_spec, (cfg.camera,) if cfg.camera else ())
        """Keys of the images, the instruction and the measured vectors."""
        self._picture: str = self.roles.pictures[0]
        if cfg.deploy not in DEPLOYMENTS:
            raise unknown("policy.deploy", str(cfg.deploy), DEPLOYMENTS)
        self.temperature, self.label_bins = cfg.temperature, cfg.label_bins
        self._deployed: Deployment = cfg.deploy
        self.pixels: int = check_square(observation_spec, self._picture)
        """Side of the image, in pixels."""
        self.words: tuple[str, ...] = observation_spec[self.roles.words].words
        self.state_width: int = flat_width({key: observation_spec[key] for key in self.roles.vectors})
        self.state_mask: Tensor
        self.register_buffer("state_mask", state_mask(observation_spec, self.roles.vectors, ignored), persistent=False)

    def check_state(self, wanted: int) -> None:
        """Check the width of the measured state against the network's; 0 for a network without one.

        Raises:
            ConfigError: they differ.
        """
        if wanted and self.state_width != wanted:
            raise ConfigError(
                f"observations {', '.join(self.roles.vectors) or '(none)'} have {self.state_width} numbers: expected"
                f" {wanted}, the width of the network's measured state"
            )

    @property
    def bins(self) -> int:
        """Bins for each element of an action."""
        return self.net.decoding_cfg.bins

    @property
    def _said_at_once(self) -> int:
        return self.horizon * self.action_width if self.net.decoding_cfg.decoding == "parallel" else 1

    def encode(self, obs: dict[str, Tensor]) -> Prefix:
        """Embeddings of image, prompt and state, from raw observations."""
        roles = self.roles
        normalized = self._inputs(obs)
        state = None
        if self.net.decoding_cfg.state:
            state = torch.cat([normalized[key].flatten(1) for key in roles.vectors], dim=1) * self.state_mask
        ids, token_mask = self.prompt(obs[roles.words])
        return self.net.prefix(self._patches(obs), ids, token_mask, state)

    def _patches(self, obs: dict[str, Tensor]) -> Tensor:
        """Image features, from the feature cache if present."""
        kept = features_key(self._picture)
        return obs[kept] if kept in obs else self.net.encode_images(obs[self._picture])

    def cached(self, obs: dict[str, Tensor], what: Cache) -> dict[str, Tensor]:
        """Replace the image by its features ("image-features"); see `HasCache`."""
        if what == "context":
            raise CapabilityError(
                f"policy {type(self).__name__} has no separate context: cache can be none or image-features"
            )
        rest = {key: x for key, x in obs.items() if key != self._picture}
        return {**rest, features_key(self._picture): self.net.encode_images(obs[self._picture])}

    def vision_encoder(self) -> nn.Module:
        """A frozen copy of the vision encoder: from observations to image features (B, F), the mean over patches."""
        return VisionTowers(self.net.vision_encoder(), self._picture).requires_grad_(False).eval()

    def observation_encoder(self) -> nn.Module:
        """A frozen copy that maps observations to the hidden state (B, `width`) at the prompt's last token."""
        return TokenVlaFeatures(copy.deepcopy(self)).requires_grad_(False).eval()

    @property
    def text_features_width(self) -> int:
        """F, the width of `text_features`."""
        return self.net.width

    def text_features(self, ctx: Prefix) -> Tensor:
        """Features (B, n, F) for auxiliary losses: the hidden states that predict action tokens."""
        return self.net.action_states(ctx, self.horizon * self.action_width)

    @property
    def image_features_width(self) -> int:
        """F, the width of `image_features`."""
        return self.net.patches * self.net.width

    def image_features(self, obs: dict[str, Tensor]) -> Tensor:
        """Image features (B, F): the image's tokens as the language model gets them."""
        return self.net.project(self._patches(obs)).flatten(1)

    def token_logits(self, ctx: Prefix, tokens: Tensor) -> Tensor:
        """Logits (B, H, A, bins) of tokens (B, H, A), each given those before it in autoregressive decoding."""
        logits = self.net.logits(ctx, tokens.flatten(1)).unflatten(1, (self.horizon, self.action_width))
        return to_float32(logits)

    def sample_tokens(self, ctx: Prefix, generator: noise.Noise | None, mode: Mode, at: Tensor | None = None) -> Tensor:
        """Bins (B, H, A): sampled at the temperature, by the uniform numbers `at` if given, or as deployed."""
        # (B, T) in the order of decoding: all at once, or one at a time
        places = None if at is None else iter(at.flatten(1).split(self._said_at_once, dim=1))

        def choose(logits: Tensor) -> Tensor:
            logits = to_float32(logits)
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
        """Bins (B, H, A) of normalised chunks."""
        return bins.to_bins(chunk, self.bins)

    def from_tokens(self, tokens: Tensor) -> Tensor:
        """Normalised chunks (B, H, A) of bins."""
        return bins.to_action(tokens, self.bins)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Actions from raw observations, chosen by `cfg.deploy`; `noise` is ignored."""
        return self._said(obs, None, "mean")

    def check_given(self, obs: dict[str, Tensor]) -> None:
        """Check observations against the policy's spec.

        Raises:
            ConfigError: see `robotrl.policies.vla.input_checks.check_given`.
            NumericsError: see there.
        """
        check_given(obs, self.observation_spec)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: noise.Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row: sampled at the temperature, or as deployed.

        Raises:
            ConfigError: see `check_given`.
            NumericsError: see there.
        """
        self.check_given(obs)
        return ActOut(self._said(obs, generator, mode).actions, state)

    def _said(self, obs: dict[str, Tensor], generator: noise.Noise | None, mode: Mode) -> Deployed:
        normalized_action = self.from_tokens(self.sample_tokens(self.encode(obs), generator, mode))
        return Deployed(self.to_actions(normalized_action), normalized_action)


class VisionTowers(nn.Module):
    """Vision encoder alone, with mean pooling over the patches.

    Args:
        towers: maps images (B, S, S, 3) to (B, P, F).
        picture: observation key of the image.
    """

    def __init__(self, towers: nn.Module, picture: str) -> None:
        super().__init__()
        self.towers, self.picture = towers, picture

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features (B, F) of observations."""
        return self.towers(obs[self.picture]).mean(dim=1)


class TokenVlaFeatures(nn.Module):
    """Features of image, instruction and state: the hidden state before the first action token.

    Args:
        policy: the policy whose features these are.
    """

    def __init__(self, policy: TokenPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.width: int = policy.text_features_width
        """Width of the features."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features (B, width) of observations."""
        return self.policy.net.summary(self.policy.encode(obs))


class TokenVlaPolicy(TokenPolicy):
    """An autoregressive VLA of any size, trained from scratch with the vocabulary of a sim."""

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
