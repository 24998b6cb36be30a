"""Rectified flow: a velocity field over an action chunk (Lipman et al. 2023; Liu et al. 2023)."""

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
    """Size of a `FlowPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    denoising_steps: int = 4
    """K, Euler steps from noise to action."""
    deploy_noise: float = 1.0
    """Deviation of the noise that chains begin with when deployed: 1 as in training, 0 always says the same."""
    network: NetworkName = "mlp"
    """What computes the velocity."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of its layers, blocks or levels."""
    time_features: int = 16
    """Width of the encoding of the denoising time, even."""
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

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> FlowPolicy:
        """The policy with fresh weights."""
        return FlowPolicy(observation_spec, action_spec, transforms, self)


class FlowPolicy(GenerativePolicy):
    """Satisfies `Policy`, `HasChain` and `HasDecode`."""

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
        """dx/dt (B, H, A) at x, from noise (t = 0) to action (t = 1); `dt` does not matter to a rectified flow."""
        del dt
        return self.net(ctx, x, self.time(t))
