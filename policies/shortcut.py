"""Shortcut flow policy: a velocity conditioned on the step size, for few denoising steps (Frans et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from robotrl.errors import out_of_range
from robotrl.policies.generative import GenerativePolicy
from robotrl.policies.networks.builders import NetworkName, make_chunk_net
from robotrl.policies.networks.chunk_nets import ChunkSizes
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import TimeFeatures
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class ShortcutCfg:
    """Config of a `ShortcutPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    denoising_steps: int = 4
    """K, denoising steps, a power of two; the same weights work for any of them."""
    deploy_noise: float = 1.0
    """Std of the initial noise at deployment: 1 as in training, 0 for deterministic actions."""
    finest_steps: int = 2
    """A power of two N: the step sizes 1, 1/2, ... 1/N are trained as shortcuts. With more denoising steps the policy
    is a plain flow."""
    network: NetworkName = "mlp"
    """Network that predicts the velocity."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the network's layers, blocks or levels."""
    time_features: int = 16
    """Width of the encodings of the denoising time and of the step size, even."""
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

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> ShortcutPolicy:
        """The policy with fresh weights."""
        return ShortcutPolicy(observation_spec, action_spec, transforms, self)


class ShortcutPolicy(GenerativePolicy):
    """Shortcut flow; implements `Policy`, `HasChain`, `HasDecode` and `robotrl.fn.bc_loss.HasShortcuts`."""

    kind: ClassVar[str] = "shortcut"
    Cfg: ClassVar[type] = ShortcutCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: ShortcutCfg
    ) -> None:
        if not _is_power_of_two(cfg.finest_steps):
            raise out_of_range("policy.finest_steps", cfg.finest_steps, "a power of two")
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.finest_steps = cfg.finest_steps
        self.time = TimeFeatures(cfg.time_features)
        sizes = ChunkSizes(self.context_width, 2 * cfg.time_features, cfg.horizon, self.action_width, cfg.hidden)
        self.net = make_chunk_net(cfg.network, sizes)

    def grid(self, steps: int) -> tuple[float, ...]:
        """See `GenerativePolicy.grid`; `steps` is a power of two, since other step sizes are not trained."""
        if not _is_power_of_two(steps):
            raise out_of_range("policy.denoising_steps", steps, "a power of two for a shortcut policy")
        return super().grid(steps)

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """Mean velocity (B, H, A) over a step of size dt (B,); the plain flow's for sizes below the trained ones."""
        length = torch.where(dt * self.finest_steps > 0.75, dt, 0.0)
        return self.net(ctx, x, torch.cat([self.time(t), self.time(length)], dim=1))


def _is_power_of_two(number: int) -> bool:
    return number >= 1 and number & (number - 1) == 0
