"""Diffusion: a network trained on the levels of a cosine schedule, deployed on some of them.

It predicts the noise, the action, or v, a mixture of the two (Salimans & Ho 2022, app. D). At the noisiest level hardly
anything of the action is left, so an action that is worked out from predicted noise is that noise's error magnified
(400 times at N = 20) and then clipped; with the others it is not.

The schedule is that of Nichol & Dhariwal (2021, eq. 17), its levels those of `diffusers` ("squaredcos_cap_v2"). A level
with the cumulated signal abar is the time t of `robotrl.fn.chain` with t / (1 - t) = sqrt(abar / (1 - abar)).
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
"""Of the schedule, as published."""


@dataclass(frozen=True)
class DiffusionCfg:
    """Size of a `DiffusionPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    levels: int = 20
    """N, noise levels in training."""
    denoising_steps: int = 4
    """K, steps from noise to action: the evenly spaced levels on which it is deployed and fine-tuned, 1 to N."""
    deploy_noise: float = 1.0
    """Deviation of the noise that chains begin with when deployed: 1 as in training, 0 always says the same."""
    predicts: Prediction = "v"
    """What the network says: "v" or the "action" for few steps, or the "noise", as the first diffusion policies do."""
    network: NetworkName = "mlp"
    """What predicts it."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of its layers, blocks or levels."""
    time_features: int = 16
    """Width of the encoding of the noise level, even."""
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

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> DiffusionPolicy:
        """The policy with fresh weights."""
        return DiffusionPolicy(observation_spec, action_spec, transforms, self)


def cosine_levels(count: int) -> tuple[float, ...]:
    """Cumulated signal abar of each of N levels, from almost 1 to almost 0 (Nichol & Dhariwal 2021, eq. 17)."""

    def signal(part: float) -> float:
        return math.cos((part + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2

    out: list[float] = []
    abar = 1.0
    for level in range(count):
        abar *= 1 - min(1 - signal((level + 1) / count) / signal(level / count), LARGEST_BETA)
        out.append(abar)
    return tuple(out)


def time_of(abar: float) -> float:
    """The time on the straight path whose signal and noise have the proportions of this level."""
    ratio = math.sqrt(abar / (1 - abar))
    return ratio / (1 + ratio)


class DiffusionPolicy(GenerativePolicy):
    """Satisfies `Policy`, `HasChain`, `HasDecode` and `robotrl.fn.bc_loss.HasNoiseLevels`.

    The network sees the state in the coordinates of the diffusion, of unit variance, and the noise level as an angle,
    in which the levels of the cosine schedule are evenly spaced. The chain starts from pure noise at t = 0, where the
    network is asked what it would say at the noisiest level it was trained on.
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
        """How much action and noise (B, 1, 1) are in a state at t (B,): sqrt(abar) and sqrt(1 - abar)."""
        known = t.clamp(min=self.noise_levels[-1])
        length = _length(known)
        return _column(known) / length, _column(1 - known) / length

    def predict(self, ctx: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """What the network says (B, H, A) of x (B, H, A), on the straight path at t (B,)."""
        known = t.clamp(min=self.noise_levels[-1])
        level = 1 - torch.atan((1 - known) / known) * (2 / math.pi)
        return self.net(ctx, x / _length(t), self.time(level))

    def wanted(self, chunk: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What it should have said of a chunk and noise (B, H, A) mixed at t (B,)."""
        if self._predicts == "noise":
            return noise
        if self._predicts == "action":
            return chunk
        signal, spread = self._parts(t)
        return signal * noise - spread * chunk

    def predict_noise(self, ctx: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Standard normal noise (B, H, A) that x (B, H, A), on the straight path at t (B,), is made of."""
        said = self.predict(ctx, x, t)
        if self._predicts == "noise":
            return said
        signal, spread = self._parts(t)
        state = x / _length(t)
        return (state - signal * said) / spread if self._predicts == "action" else spread * state + signal * said

    def predict_action(self, ctx: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """The chunk (B, H, A) that x is on its way to, clipped to [-1, 1] as in the published samplers."""
        said = self.predict(ctx, x, t)
        if self._predicts == "action":
            return said.clamp(-1, 1)
        signal, spread = self._parts(t)
        state = x / _length(t)
        action = signal * state - spread * said if self._predicts == "v" else (state - spread * said) / signal
        return action.clamp(-1, 1)

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) straight towards the predicted chunk; `dt` does not matter."""
        del dt
        # no time of the grid lies after that of the least noise, so this keeps only other callers from dividing by 0
        left = _column(1 - t).clamp(min=1 - self.noise_levels[0])
        return (self.predict_action(ctx, x, t) - x) / left


def _column(t: Tensor) -> Tensor:
    return t[:, None, None]


def _length(t: Tensor) -> Tensor:
    """(B, 1, 1) deviation at t of the straight path between unit normal noise and an action of unit deviation."""
    return _column((t**2 + (1 - t) ** 2).sqrt())
