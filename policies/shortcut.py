"""Shortcut flow: a velocity that knows how long its step is, so that a few steps or one suffice (Frans et al. 2024)."""

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
    """Size of a `ShortcutPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    denoising_steps: int = 4
    """K, steps from noise to action, a power of two; the same weights run on any."""
    deploy_noise: float = 1.0
    """Deviation of the noise that chains begin with when deployed: 1 as in training, 0 always says the same."""
    finest_steps: int = 2
    """A power of two: 1, 1/2, ... down to 1 / this are the lengths that steps are learned for. On a finer grid the
    policy is the plain flow."""
    network: NetworkName = "mlp"
    """What computes the velocity."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of its layers, blocks or levels."""
    time_features: int = 16
    """Width of the encoding of the denoising time, and of that of the step's length, even."""
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

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> ShortcutPolicy:
        """The policy with fresh weights."""
        return ShortcutPolicy(observation_spec, action_spec, transforms, self)


class ShortcutPolicy(GenerativePolicy):
    """Satisfies `Policy`, `HasChain`, `HasDecode` and `robotrl.fn.bc_loss.HasShortcuts`."""

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
        """See `GenerativePolicy.grid`; a power of two, as steps of other lengths are not learned."""
        if not _is_power_of_two(steps):
            raise out_of_range("policy.denoising_steps", steps, "a power of two for a shortcut policy")
        return super().grid(steps)

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """Mean velocity (B, H, A) over a step of length dt (B,); 0, or finer than learned, is that of the flow."""
        length = torch.where(dt * self.finest_steps > 0.75, dt, 0.0)
        return self.net(ctx, x, torch.cat([self.time(t), self.time(length)], dim=1))


def _is_power_of_two(number: int) -> bool:
    return number >= 1 and number & (number - 1) == 0
