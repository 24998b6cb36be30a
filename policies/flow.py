"""Rectified-flow policy: a velocity field over an action chunk (Lipman et al. 2023; Liu et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from robotrl.policies.generative import GenerativePolicy
from robotrl.policies.networks.builders import NetworkName, make_chunk_net
from robotrl.policies.networks.chunk_nets import ChunkSizes
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import TimeFeatures
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class FlowCfg:
    """Config of a `FlowPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    denoising_steps: int = 4
    """K, Euler steps from noise to action."""
    deploy_noise: float = 1.0
    """Std of the initial noise at deployment: 1 as in training, 0 for deterministic actions."""
    network: NetworkName = "mlp"
    """Network that predicts the velocity."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the network's layers, blocks or levels."""
    time_features: int = 16
    """Width of the encoding of the denoising time, even."""
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

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> FlowPolicy:
        """The policy with fresh weights."""
        return FlowPolicy(observation_spec, action_spec, transforms, self)


class FlowPolicy(GenerativePolicy):
    """Rectified-flow policy; implements `Policy`, `HasChain` and `HasDecode`."""

    kind: ClassVar[str] = "flow"
    Cfg: ClassVar[type] = FlowCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: FlowCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.time = TimeFeatures(cfg.time_features)
        sizes = ChunkSizes(self.context_width, cfg.time_features, cfg.horizon, self.action_width, cfg.hidden)
        self.net = make_chunk_net(cfg.network, sizes)

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) at x, from noise (t = 0) to action (t = 1); `dt` is ignored."""
        del dt
        return self.net(ctx, x, self.time(t))
