"""Diffusion policy: trained on a cosine schedule of noise levels, deployed on a subset of them.

The network predicts the noise, the action, or v, a mixture of the two (Salimans & Ho 2022, app. D). At the noisiest
level almost nothing of the action is left: an action computed from predicted noise magnifies the prediction error (400
times at N = 20) and is then clipped. The predictions "v" and "action" avoid this.

The schedule is that of Nichol & Dhariwal (2021, eq. 17), its levels those of `diffusers` ("squaredcos_cap_v2"). A level
with the cumulative signal abar corresponds to the time t of `robotrl.fn.chain` that solves
t / (1 - t) = sqrt(abar / (1 - abar)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from robotrl.errors import check_at_least, out_of_range, unknown
from robotrl.policies.generative import GenerativePolicy
from robotrl.policies.networks.builders import NetworkName, make_chunk_net
from robotrl.policies.networks.chunk_nets import ChunkSizes
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import TimeFeatures
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup

Prediction = Literal["noise", "v", "action"]
OFFSET, LARGEST_BETA = 0.008, 0.999
"""Constants of the published schedule."""


@dataclass(frozen=True)
class DiffusionCfg:
    """Config of a `DiffusionPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    levels: int = 20
    """N, noise levels in training."""
    denoising_steps: int = 4
    """K, denoising steps in deployment and fine-tuning, 1 to N: evenly spaced noise levels."""
    deploy_noise: float = 1.0
    """Std of the initial noise at deployment: 1 as in training, 0 for deterministic actions."""
    predicts: Prediction = "v"
    """Prediction target: "v" or "action" for few steps, or "noise" as in the original Diffusion Policy."""
    network: NetworkName = "mlp"
    """Network that makes the prediction."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the network's layers, blocks or levels."""
    time_features: int = 16
    """Width of the encoding of the noise level, even."""
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

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> DiffusionPolicy:
        """The policy with fresh weights."""
        return DiffusionPolicy(observation_spec, action_spec, transforms, self)


def cosine_levels(count: int) -> tuple[float, ...]:
    """Cumulative signal abar of each of N levels, from almost 1 to almost 0 (Nichol & Dhariwal 2021, eq. 17)."""

    def signal(part: float) -> float:
        return math.cos((part + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2

    out: list[float] = []
    abar = 1.0
    for level in range(count):
        abar *= 1 - min(1 - signal((level + 1) / count) / signal(level / count), LARGEST_BETA)
        out.append(abar)
    return tuple(out)


def time_of(abar: float) -> float:
    """Time t of the straight path with the same signal-to-noise ratio as a level with signal abar."""
    ratio = math.sqrt(abar / (1 - abar))
    return ratio / (1 + ratio)


class DiffusionPolicy(GenerativePolicy):
    """Implements `Policy`, `HasChain`, `HasDecode` and `robotrl.fn.bc_loss.HasNoiseLevels`.

    The network's input has the unit variance of the diffusion process. The noise level is given as an angle, in which
    the levels of the cosine schedule are evenly spaced. The chain starts from pure noise at t = 0, where the network is
    evaluated at the noisiest level of the training.
    """

    kind: ClassVar[str] = "diffusion"
    Cfg: ClassVar[type] = DiffusionCfg
    sampler: ClassVar[tuple[str, str]] = ("diffusion", "ddim")

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: DiffusionCfg
    ) -> None:
        check_at_least("policy.levels", cfg.levels, 2)
        if cfg.predicts not in get_args(Prediction):
            raise unknown("policy.predicts", str(cfg.predicts), get_args(Prediction))
        self._predicts: Prediction = cfg.predicts
        self.noise_levels = tuple(time_of(abar) for abar in cosine_levels(cfg.levels))
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.time = TimeFeatures(cfg.time_features)
        sizes = ChunkSizes(self.context_width, cfg.time_features, cfg.horizon, self.action_width, cfg.hidden)
        self.net = make_chunk_net(cfg.network, sizes)

    def grid(self, steps: int) -> tuple[float, ...]:
        """See `GenerativePolicy.grid`: 0 for the noisiest level, then every (N / K)th level towards the action."""
        count = len(self.noise_levels)
        if not 1 <= steps <= count:
            raise out_of_range("policy.denoising_steps", steps, f"1 to {count}, the noise levels of the training")
        levels = [round(count - k * count / steps) - 1 for k in range(1, steps)]
        return (0.0, *(self.noise_levels[level] for level in levels), 1.0)

    def _parts(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (B, 1, 1) of action and noise at t (B,): sqrt(abar) and sqrt(1 - abar)."""
        known = t.clamp(min=self.noise_levels[-1])
        length = _length(known)
        return _column(known) / length, _column(1 - known) / length

    def predict(self, ctx: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Network output (B, H, A) for x (B, H, A) on the straight path at t (B,)."""
        known = t.clamp(min=self.noise_levels[-1])
        level = 1 - torch.atan((1 - known) / known) * (2 / math.pi)
        return self.net(ctx, x / _length(t), self.time(level))

    def wanted(self, chunk: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Prediction target for a chunk and noise (B, H, A) mixed at t (B,)."""
        if self._predicts == "noise":
            return noise
        if self._predicts == "action":
            return chunk
        signal, spread = self._parts(t)
        return signal * noise - spread * chunk

    def predict_noise(self, ctx: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Predicted standard normal noise (B, H, A) in x (B, H, A), on the straight path at t (B,)."""
        said = self.predict(ctx, x, t)
        if self._predicts == "noise":
            return said
        signal, spread = self._parts(t)
        state = x / _length(t)
        return (state - signal * said) / spread if self._predicts == "action" else spread * state + signal * said

    def predict_action(self, ctx: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Predicted clean chunk (B, H, A) for x at t, clipped to [-1, 1] as in the published samplers."""
        said = self.predict(ctx, x, t)
        if self._predicts == "action":
            return said.clamp(-1, 1)
        signal, spread = self._parts(t)
        state = x / _length(t)
        action = signal * state - spread * said if self._predicts == "v" else (state - spread * said) / signal
        return action.clamp(-1, 1)

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) straight towards the predicted chunk; `dt` is ignored."""
        del dt
        # no step of the grid starts after the least noisy level: the clamp protects other callers from dividing by 0
        left = _column(1 - t).clamp(min=1 - self.noise_levels[0])
        return (self.predict_action(ctx, x, t) - x) / left


def _column(t: Tensor) -> Tensor:
    return t[:, None, None]


def _length(t: Tensor) -> Tensor:
    """(B, 1, 1) std at t of the straight path between standard normal noise and an action of unit std."""
    return _column((t**2 + (1 - t) ** 2).sqrt())
