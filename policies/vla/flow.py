"""Flow VLAs: vision-language-action policies with a flow-matching action expert (SmolVLA, pi0), at any size.

They implement `HasChain` and `HasDecode` like other generative policies: images and instruction are encoded once, each
denoising step attends to this context, and all algorithms that fine-tune or steer a flow policy apply to them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError, unknown
from robotrl.fn.chain import executed
from robotrl.policies.generative import ChainPolicy
from robotrl.policies.networks.mlp import flat_width
from robotrl.policies.vla.input_checks import check_given
from robotrl.policies.vla.networks.context import ContextSizes, SplitContext, pack, unpack
from robotrl.policies.vla.networks.init import begin
from robotrl.policies.vla.networks.pi0 import Pi0, Pi0Cfg
from robotrl.policies.vla.networks.smolvla import SmolVla, SmolVlaCfg
from robotrl.policies.vla.prompt import TASK, Prompt, WordTokenizer
from robotrl.policies.vla.roles import check_square, features_key, roles
from robotrl.spec import Cache, Spec
from robotrl.transforms import TransformGroup

Network = Literal["smolvla", "pi0"]
NETWORKS: tuple[Network, ...] = ("smolvla", "pi0")
Trained = Literal["all", "expert"]
TRAINED: tuple[Trained, ...] = ("all", "expert")
CONTEXT = "context"
"""Observation key of a cached context."""


class FlowNet(Protocol):
    """A vision-language model with an action expert. Denoising time: 0 is noise, 1 the action."""

    sizes: ContextSizes

    @property
    def image(self) -> int:
        """Side of an input image, in pixels."""
        ...

    @property
    def tokens(self) -> int:
        """P, tokens per camera image."""
        ...

    @property
    def trunk(self) -> nn.Module:
        """The vision-language model, without the expert."""
        ...

    def encode_images(self, pictures: Tensor) -> Tensor:
        """Image features: tokens (B, P, D) of a camera's images (B, S, S, 3), uint8."""
        ...

    def encode_context(
        self, shown: Sequence[Tensor | None], ids: Tensor, token_mask: Tensor, state: Tensor
    ) -> SplitContext:
        """Context that the expert attends to at each denoising step.

        Args:
            shown: (B, P, D) image tokens of each camera in the network's order, from `encode_images`; None: missing.
            ids: (B, L) token ids of the prompts.
            token_mask: (B, L) bool, False for padding.
            state: (B, S) measured state, normalised and padded.
        """
        ...

    def velocity(self, memory: SplitContext, x: Tensor, t: Tensor) -> Tensor:
        """dx/dt (B, H, A) from noise to action at x (B, H, A) and times t (B,)."""
        ...

    def expert_states(self, memory: SplitContext, x: Tensor, t: Tensor) -> Tensor:
        """The expert's last hidden states (B, H, E), of which `velocity` is a linear map."""
        ...


class FlowVla(ChainPolicy):
    """Base class of the flow VLA policies.

    Args:
        observation_spec: has square images, an instruction and measured vectors.
        action_spec: one action.
        transforms: inputs by observation key, outputs for the action.
        cfg: has `horizon`, `denoising_steps`, `deploy_noise`, `cameras` and `trained`.

    Raises:
        CapabilityError: no image or no instruction among the observations.
        ConfigError: settings out of range, or observations that do not fit the network.
    """

    changeable: ClassVar[tuple[str, ...]] = (*ChainPolicy.changeable, "trained")
    net: Any
    prompt: Prompt

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        if cfg.trained not in TRAINED:
            raise unknown("policy.trained", str(cfg.trained), TRAINED)
        self.roles = roles(self.observation_spec, cfg.cameras)
        """Keys of the images, the instruction and the measured vectors."""
        self.words: tuple[str, ...] = observation_spec[self.roles.words].words
        self.state_width: int = flat_width({key: observation_spec[key] for key in self.roles.vectors})

    @abstractmethod
    def padded(self) -> tuple[int, int]:
        """Widths of the measured state and of an action in the network, padding included."""
        ...

    def finish(self, net: nn.Module) -> None:
        """Set the network and freeze its vision-language model if configured; called at the end of a constructor."""
        self.net = net
        sizes = self.net.sizes
        self.context_width = sizes.features + sizes.state
        if self.cfg.trained == "expert":
            self.net.trunk.requires_grad_(False)

    @property
    def chunk(self) -> int:
        """Actions in the network's chunk; the first `horizon` are executed."""
        return self.horizon

    @property
    def noise_shape(self) -> tuple[int, int]:
        """(H, A) of the noise and all states of the chain, padding included."""
        return self.chunk, self.padded()[1]

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from raw observations; see `robotrl.policies.vla.networks.context`.

        Raises:
            ConfigError: the measured state has another width.
        """
        if CONTEXT in obs:
            return obs[CONTEXT]
        roles, normalized = self.roles, self._inputs(obs)
        dtype = next(self.net.parameters()).dtype
        state = torch.cat([normalized[key].flatten(1) for key in roles.vectors], dim=1).to(dtype)
        if state.shape[1] != self.state_width:
            raise ConfigError(
                f"observations {', '.join(roles.vectors)} have {state.shape[1]} numbers: expected {self.state_width}"
            )
        # pad with zeros to the network's width; the constructor checks that the state is not wider
        state = nn.functional.pad(state, (0, self.padded()[0] - self.state_width))
        ids, token_mask = self.prompt(obs[roles.words])
        shown = [self._shown(obs, key) if key else None for key in roles.pictures]
        return pack(self.net.encode_context(shown, ids, token_mask, state))

    def _shown(self, obs: dict[str, Tensor], picture: str) -> Tensor:
        """Image tokens of a camera, from the feature cache if present."""
        kept = features_key(picture)
        return obs[kept] if kept in obs else self.net.encode_images(self.resize(obs[picture]))

    def cached(self, obs: dict[str, Tensor], what: Cache) -> dict[str, Tensor]:
        """Replace images by their features, or the observation by its context; see `HasCache`."""
        if what == "context":
            rest = {key: x for key, x in obs.items() if key not in self.observation_spec}
            return {**rest, CONTEXT: self.encode(obs)}
        cameras = [key for key in self.roles.pictures if key]
        rest = {key: x for key, x in obs.items() if key not in cameras}
        return {**rest, **{features_key(key): self._shown(obs, key) for key in cameras}}

    def resize(self, picture: Tensor) -> Tensor:
        """Resize a camera's images (B, h, w, 3) to the network's (B, S, S, 3)."""
        return picture

    @property
    def image_features_width(self) -> int:
        """F, the width of `image_features`."""
        return len([key for key in self.roles.pictures if key]) * self.net.tokens * self.net.cfg.width

    def image_features(self, obs: dict[str, Tensor]) -> Tensor:
        """Image features (B, F): the tokens of all cameras as the language model gets them."""
        return torch.cat([self._shown(obs, key).flatten(1) for key in self.roles.pictures if key], dim=1)

    def check_given(self, obs: dict[str, Tensor]) -> None:
        """Check observations against the policy's spec, unless they hold a cached context.

        Raises:
            ConfigError: see `robotrl.policies.vla.input_checks.check_given`.
            NumericsError: see there.
        """
        if CONTEXT not in obs:
            check_given(obs, self.observation_spec)

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) at x, from noise (t = 0) to action (t = 1); `dt` is ignored."""
        del dt
        return self.net.velocity(unpack(ctx, self.net.sizes), x, t).to(x.dtype)

    @property
    def text_features_width(self) -> int:
        """F, the width of `text_features`."""
        return self.net.cfg.expert_width

    def text_features(self, ctx: Tensor) -> Tensor:
        """Features (B, H, F) for auxiliary losses: the expert's hidden states at zero noise and t = 0.

        The language model's last output would not do: the expert attends to the keys and values of its layers.
        """
        zeros = ctx.new_zeros((len(ctx), *self.noise_shape))
        return self.net.expert_states(unpack(ctx, self.net.sizes), zeros, ctx.new_zeros(len(ctx))).to(ctx.dtype)

    def to_actions(self, normalized_action: Tensor) -> Tensor:
        """Executed part of a normalised chunk, in the sim's units, clipped to the action bounds."""
        return super().to_actions(executed(self, normalized_action))


@dataclass(frozen=True)
class FlowVlaCfg:
    """Config of a small `FlowVlaPolicy` trained from scratch; the defaults have 1.2 to 1.5 million parameters."""

    network: Network = "smolvla"
    """Architecture: "smolvla" or "pi0"."""
    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    denoising_steps: int = 4
    """K, Euler steps from noise to action."""
    deploy_noise: float = 1.0
    """Std of the initial noise at deployment: 1 as in training, 0 for deterministic actions."""
    cameras: tuple[str, ...] = ()
    """Keys of the images in the network's order; optional if there is one image."""
    trained: Trained = "all"
    """Trained parameters: "all", or the action "expert" with a frozen vision-language model."""
    vision_width: int = 96
    vision_layers: int = 3
    vision_heads: int = 4
    patch: int = 8
    """Side of a patch, in pixels."""
    shuffle: int = 2
    """SmolVLA: `shuffle` x `shuffle` patches are merged into one token."""
    width: int = 128
    """Width of the language model."""
    layers: int = 4
    """Layers of the language model and of the expert."""
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 256
    """Hidden width of the language model's MLPs."""
    expert_width: int = 96

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> FlowVlaPolicy:
        """The policy with fresh weights."""
        return FlowVlaPolicy(observation_spec, action_spec, transforms, self)


class FlowVlaPolicy(FlowVla):
    """A flow VLA of any size, trained from scratch with the vocabulary of a sim."""

    kind: ClassVar[str] = "flow-vla"
    Cfg: ClassVar[type] = FlowVlaCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: FlowVlaCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        if cfg.network not in NETWORKS:
            raise unknown("policy.network", str(cfg.network), NETWORKS)
        sides = {check_square(observation_spec, key) for key in self.roles.pictures if key}
        if len(sides) != 1:
            raise ConfigError(f"pictures have {sorted(sides)} pixels a side: expected the same of all")
        tokenizer = WordTokenizer(self.words)
        self.prompt = Prompt(self.words, TASK, tokenizer)
        make = smolvla_sizes if cfg.network == "smolvla" else pi0_sizes
        self.finish(make(cfg, sides.pop(), len(tokenizer), *self.padded()))

    def padded(self) -> tuple[int, int]:
        """Widths of state and action, without padding."""
        return self.state_width, self.action_width


def _shared(cfg: FlowVlaCfg, image: int, state: int, action: int) -> dict[str, Any]:
    """Sizes that both networks have."""
    return {
        "width": cfg.width,
        "layers": cfg.layers,
        "heads": cfg.heads,
        "kv_heads": cfg.kv_heads,
        "head_width": cfg.width // cfg.heads,
        "mlp": cfg.mlp,
        "vision_width": cfg.vision_width,
        "vision_layers": cfg.vision_layers,
        "vision_heads": cfg.vision_heads,
        "vision_mlp": 4 * cfg.vision_width,
        "patch": cfg.patch,
        "image": image,
        "state": state,
        "action": action,
    }


def smolvla_sizes(cfg: FlowVlaCfg, image: int, words: int, state: int, action: int) -> SmolVla:
    """Build SmolVLA's network with the sizes of a config.

    Raises:
        ConfigError: inconsistent sizes.
    """
    share = cfg.expert_width / cfg.width
    shared = _shared(cfg, image, state, action)
    net = SmolVla(SmolVlaCfg(**shared, vocabulary=words, shuffle=cfg.shuffle, expert_share=share))
    begin(net, cfg.layers, words=math.sqrt(cfg.width), pictures=math.sqrt(cfg.width))
    return net


def pi0_sizes(cfg: FlowVlaCfg, image: int, words: int, state: int, action: int) -> Pi0:
    """Build pi0's network with the sizes of a config; each patch is a token.

    Raises:
        ConfigError: inconsistent sizes.
    """
    # one more id, which marks images and is never embedded
    expert = {"expert_width": cfg.expert_width, "expert_mlp": cfg.mlp}
    net = Pi0(Pi0Cfg(**_shared(cfg, image, state, action), **expert, vocabulary=words + 1, chunk=cfg.horizon))
    begin(net, cfg.layers, words=math.sqrt(cfg.width))
    return net
