"""Base classes of flow and diffusion policies: denoise an action chunk on a grid of times."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from robotrl.errors import check_at_least, out_of_range
from robotrl.fn import chain
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import Deployed, NetworkPolicy, SpecPolicy
from robotrl.spec import ActOut, Mode, Spec
from robotrl.transforms import TransformGroup


class ChainPolicy(SpecPolicy):
    """Implements `Policy`, `HasChain` and `HasDecode`; subclasses define `encode`, `velocity` and `grid`.

    The config has the fields `denoising_steps`, which sets the grid, and `deploy_noise`, the std of the initial noise
    at deployment. No weight depends on either.
    """

    changeable: ClassVar[tuple[str, ...]] = ("deploy_noise",)
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "sample"
    keyed_noise: ClassVar[Literal[True]] = True
    sampler: ClassVar[tuple[str, str]] = ("flow", "euler")
    """Kind and solver of the sampler, as written to a bundle."""
    context_width: int

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.times = self.grid(cfg.denoising_steps)
        if not 0 <= cfg.deploy_noise < math.inf:
            raise out_of_range("policy.deploy_noise", cfg.deploy_noise, "0 or more")
        self.deploy_noise: float = cfg.deploy_noise

    @abstractmethod
    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from raw observations (normalisation inside)."""
        ...

    @abstractmethod
    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) at x (B, H, A), from noise (t = 0) to action (t = 1), for a step of length dt (B,)."""
        ...

    def grid(self, steps: int) -> tuple[float, ...]:
        """K+1 times of a chain of K steps.

        Raises:
            ConfigError: the policy cannot run on so many steps.
        """
        check_at_least("policy.denoising_steps", steps, 1)
        return chain.uniform_times(steps)

    def with_steps(self, steps: int) -> Self:
        """A copy with the same weights and another number of denoising steps, also in its config.

        Raises:
            ConfigError: the policy cannot run on so many steps.
        """
        times = self.grid(steps)
        out = copy.deepcopy(self)
        out.times = times
        out.cfg = replace(self.cfg, denoising_steps=steps)
        return out

    @property
    def denoising_steps(self) -> int:
        """K, the number of denoising steps."""
        return len(self.times) - 1

    @property
    def text_features_width(self) -> int:
        """F, the width of `text_features`."""
        return self.context_width

    def text_features(self, ctx: Tensor) -> Tensor:
        """Features (B, 1, F) at the front of the context; critics use them, too."""
        return ctx[:, None, : self.context_width]

    @property
    def noise_shape(self) -> tuple[int, int]:
        """(H, A), shape of the noise and of all later states of the chain."""
        return self.horizon, self.action_width

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Denoise: normalised chunk (B, H, A) from noise (B, H, A), deterministic."""
        return chain.integrate(self, ctx, noise)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Actions from raw observations and standard normal noise, which is scaled by `deploy_noise`.

        Raises:
            ValueError: no noise was given.
        """
        if noise is None:
            raise ValueError(f"noise is None: a {self.kind} policy starts from noise (B, H, A)")
        normalized_action = chain.executed(self, self.decode(self.encode(obs), self.deploy_noise * noise))
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row, as deployed; `sample` starts from random noise, `mean` from zero noise."""
        self.check_given(obs)
        first = next(iter(obs.values()))
        shape = (len(first), *self.noise_shape)
        zeros = mode == "mean"
        noise = torch.zeros(shape, device=first.device) if zeros else randn(shape, generator, first.device)
        return ActOut(self.deploy(obs, noise).actions, state)


class GenerativePolicy(ChainPolicy, NetworkPolicy):
    """A `ChainPolicy` with the encoder of `NetworkPolicy`, for vectors and images."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """See `NetworkPolicy.encode`."""
        return NetworkPolicy.encode(self, obs)
