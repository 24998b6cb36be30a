"""DSRL's policy (2506.15799): a frozen generative policy and an actor that chooses its initial noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, ConfigError, check_positive, unknown
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import Deployed
from robotrl.policies.networks.mlp import Activation, Mlp
from robotrl.policies.over_base import PolicyOverBase, lacking
from robotrl.policies.squashed import log_slope
from robotrl.spec import ActOut, Mode

LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of the log-std of the noise before tanh."""
MODES: tuple[Mode, ...] = ("sample", "mean")
NEEDED = ("encode", "decode", "noise_shape", "to_actions", "to_json")
"""Attributes that a base policy needs, besides the specs."""


@dataclass(frozen=True)
class SteeredCfg:
    """Config of the noise actor and its bound."""

    bound: float = 1.5
    """b: each element of the noise is within [-b, b]. The base policy saw few values far from 0 in training."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Activation function between the layers."""
    deploy: Mode = "sample"
    """Deployed noise: "sample" draws it as in training; "mean" takes the actor's mean, which is deterministic but may
    lie between two good modes."""
    horizon: int | None = None
    """Expected chunk length of the base policy; None accepts any."""

    def build(self, base: nn.Module) -> SteeredPolicy:
        """Steer the base policy by an actor with fresh weights."""
        return SteeredPolicy(base, self)


class DrawnNoise(NamedTuple):
    """Sampled noise and its log-density; result of `NoiseActor.draw`."""

    noise: Tensor
    """(B, H, A) in [-b, b]."""
    log_prob: Tensor
    """(B,) log-density of noise / b, within [-1, 1], so that entropies do not depend on the bound."""


class NoiseActor(nn.Module):
    """Tanh-Gaussian actor over all H A elements of a chunk's noise, within [-b, b].

    Args:
        context_width: D, the leading part of the base policy's context that it reads; see `HasChain.context_width`.
        horizon: H of the noise.
        action_width: A of the noise.
        cfg: sizes and bound.
    """

    def __init__(self, context_width: int, horizon: int, action_width: int, cfg: SteeredCfg) -> None:
        super().__init__()
        self.bound = cfg.bound
        self.context_width = context_width
        self._shape = (horizon, action_width)
        self.net = Mlp(context_width, cfg.hidden, 2 * horizon * action_width, 0.1, cfg.activation)

    def forward(self, ctx: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-std (B, H, A) before tanh, from contexts (B, D)."""
        mean, log_std = self.net(ctx[:, : self.context_width]).view(-1, 2, *self._shape).unbind(1)
        low, high = LOG_STD_RANGE
        # a smooth bound: a clamp would stop the gradient of a std at the bound. Output 0 gives std 1
        return mean, low + (high - low) * torch.sigmoid(log_std + math.log(-low / high))

    def noise(self, latent: Tensor) -> Tensor:
        """Noise (B, H, A) within [-b, b] from values (B, H, A) before tanh."""
        return self.bound * torch.tanh(latent)

    def mean(self, ctx: Tensor) -> Tensor:
        """Deterministic noise (B, H, A): tanh of the mean, times b."""
        return self.noise(self(ctx)[0])

    @torch.no_grad()
    def start_at(self, std: float) -> None:
        """Set the std before tanh where the last layer adds nothing to its bias; after construction it is 1.

        Args:
            std: within the exponentials of `LOG_STD_RANGE`.
        """
        low, high = LOG_STD_RANGE
        share = (math.log(std) - low) / (high - low)
        last: Any = self.net.layers[-1]
        last.bias[len(last.bias) // 2 :] = math.log(share / (1 - share)) - math.log(-low / high)

    def draw(self, ctx: Tensor, normal: Tensor) -> DrawnNoise:
        """Reparametrized sample from standard normal numbers (B, H, A), with its log-density; differentiable."""
        mean, log_std = self(ctx)
        u = mean + log_std.exp() * normal
        gaussian = -0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)
        return DrawnNoise(self.noise(u), (gaussian - log_slope(u)).flatten(1).sum(1))

    def plain(self, uniform: Tensor) -> Tensor:
        """Standard normal noise truncated to [-b, b], as without steering, from uniform numbers in [0, 1)."""
        tail = 0.5 * math.erfc(self.bound / math.sqrt(2))
        noise = torch.special.ndtri(tail + uniform * (1 - 2 * tail))
        return noise.clamp(-self.bound, self.bound)


class SteeredPolicy(PolicyOverBase):
    """A frozen base policy with a trainable noise actor; implements `Policy`.

    It uses only `encode`, `decode` and `to_actions` of the base policy. The exported graph holds both networks; its
    noise input is the actor's standard normal numbers, or absent if the actor's mean is deployed.

    Args:
        base: any policy with `encode` and `decode`; it is frozen, in place.
        cfg: the actor's config.

    Raises:
        CapabilityError: the base policy lacks a needed attribute.
        ConfigError: a setting out of range, or a base policy with chunks of another length.
    """

    kind: ClassVar[str] = "steered"
    Cfg: ClassVar[type] = SteeredCfg
    keyed_noise: ClassVar[Literal[True]] = True

    def __init__(self, base: Any, cfg: SteeredCfg) -> None:
        missing = lacking(base, NEEDED)
        if missing:
            lacks = "HasDecode" if "decode" in missing else ", ".join(missing)
            raise CapabilityError(f"policy {type(base).__name__} lacks {lacks}: its noise cannot be steered")
        if cfg.deploy not in MODES:
            raise unknown("policy.deploy", str(cfg.deploy), MODES)
        check_positive("policy.bound", cfg.bound)
        super().__init__(base.requires_grad_(False), cfg.horizon)
        self.cfg = cfg
        self.base_sha256 = weights_sha256(base)
        """SHA-256 of the base policy's weights at construction, or when they were adopted."""
        self.base_noise: tuple[int, int] = base.noise_shape
        """(H, A) of the base policy's noise."""
        self.actor = NoiseActor(base.context_width, *self.base_noise, cfg)

    @property
    def deploy_mode(self) -> Mode:
        """Deployed noise: sampled or mean."""
        return self.cfg.deploy

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A) of the normal numbers for `deploy`, None if the mean is deployed."""
        return self.base_noise if self.cfg.deploy == "sample" else None

    def steer(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Denoise: normalised chunk (B, H, A) from noise (B, H, A), clamped to the bound.

        Raises:
            ConfigError: noise of another shape. The base policy was trained with separate noise for each element of a
                chunk, so one action's noise is not repeated over the chunk.
        """
        expected = (len(ctx), *self.base_noise)
        if tuple(noise.shape) != expected:
            raise ConfigError(f"noise has shape {tuple(noise.shape)}: expected {expected}, a whole chunk for each row")
        bound = self.actor.bound
        return self.base.decode(ctx, noise.clamp(-bound, bound))

    def chosen_noise(self, ctx: Tensor, noise: Tensor | None) -> Tensor:
        """Noise (B, H, A) that the actor samples with `noise` (B, H, A), or its mean, which ignores `noise`.

        Raises:
            ConfigError: `noise` is None, but sampled noise is deployed.
        """
        if self.cfg.deploy == "mean":
            return self.actor.mean(ctx)
        if noise is None:
            raise ConfigError("noise is None: a steered policy that is deployed by sampling draws with it")
        return self.actor.draw(ctx, noise).noise

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Chunk from the noise that the actor chooses, see `chosen_noise`."""
        ctx = self.encode(obs)
        normalized_action = self.steer(ctx, self.chosen_noise(ctx, noise))
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row, from sampled noise or from the mean noise."""
        # the base policy's own `act`, which checks its input, is not called
        self.check_given(obs)
        ctx = self.encode(obs)
        if mode == "mean":
            noise = self.actor.mean(ctx)
        else:
            shape = (len(ctx), *self.base_noise)
            noise = self.actor.draw(ctx, randn(shape, generator, ctx.device)).noise
        return ActOut(self.to_actions(self.steer(ctx, noise)), state)

    def check_base(self) -> None:
        """Check that the base policy's weights are those of `base_sha256`.

        Raises:
            ConfigError: they have changed.
        """
        found = weights_sha256(self.base)
        if found != self.base_sha256:
            raise ConfigError(f"the base policy's weights have SHA-256 {found[:12]}: expected {self.base_sha256[:12]}")

    def adopt_base(self) -> None:
        """Take the base policy's weights as they are now for those that must not change."""
        self.base_sha256 = weights_sha256(self.base)

    def to_json(self) -> dict[str, Any]:
        """Description for `from_json`, without weights; the base policy's description is nested."""
        return {
            "kind": self.kind,
            "cfg": asdict(self.cfg),
            "base": self.base.to_json(),
            "base_sha256": self.base_sha256,
            "control_dt_s": self.control_dt_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build the policy and its base policy from `to_json`, with fresh weights."""
        policy = super().from_json(data)
        policy.base_sha256 = data["base_sha256"]
        return policy


def weights_sha256(module: nn.Module) -> str:
    """SHA-256 of a network's weights: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
