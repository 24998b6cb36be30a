"""Flow matching policy: an MLP velocity field over an action chunk (Lipman et al. 2023; Liu et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from robotrl.fn import chain
from robotrl.policies.base import Deployed, NetworkPolicy
from robotrl.policies.nets import Mlp, TimeFeatures, flat_width
from robotrl.spec import ActOut, Mode, Spec
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class FlowCfg:
    """Size of a `FlowPolicy`."""

    horizon: int = 4
    """H, actions in a chunk; all are executed."""
    denoising_steps: int = 4
    """K, Euler steps from noise to action."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers."""
    time_features: int = 16
    """Width of the encoding of the denoising time, even."""

    def build(self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup) -> FlowPolicy:
        """The policy with fresh weights."""
        return FlowPolicy(observation_spec, action_spec, transforms, self)


class FlowPolicy(NetworkPolicy):
    """Satisfies `Policy`, `HasChain` and `HasDecode`."""

    kind: ClassVar[str] = "flow"
    Cfg: ClassVar[type] = FlowCfg
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "sample"

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: FlowCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.times = chain.uniform_times(cfg.denoising_steps)
        self.context_width = flat_width(observation_spec)
        chunk = cfg.horizon * self.action_width
        self.time = TimeFeatures(cfg.time_features)
        self.net = Mlp(self.context_width + chunk + cfg.time_features, cfg.hidden, chunk)

    @property
    def denoising_steps(self) -> int:
        """K."""
        return len(self.times) - 1

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A)."""
        return self.horizon, self.action_width

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) at x, from noise (t = 0) to action (t = 1); `dt` does not matter to a rectified flow."""
        del dt
        return self.net(torch.cat([ctx, x.flatten(1), self.time(t)], dim=1)).view_as(x)

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Normalised chunk (B, H, A) from noise (B, H, A), deterministic."""
        return chain.integrate(self, ctx, noise)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Raw observations and noise to actions.

        Raises:
            ValueError: no noise was given.
        """
        if noise is None:
            raise ValueError("noise is None: a flow policy starts from noise (B, H, A)")
        raw = self.decode(self.encode(obs), noise)
        return Deployed(self.to_actions(raw), raw)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: torch.Generator | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row; `sample` starts from standard normal noise, `mean` from zero noise."""
        first = next(iter(obs.values()))
        shape = (len(first), self.horizon, self.action_width)
        if mode == "mean":
            noise = torch.zeros(shape, device=first.device)
        else:
            noise = torch.randn(shape, generator=generator, device=first.device)
        return ActOut(self.deploy(obs, noise).actions, state)
