"""Chunks that continue the ones before them, without training for it: guided real-time chunking (arXiv 2506.07339)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from robotrl.errors import CapabilityError, ConfigError, check_count, check_positive
from robotrl.fn import chain
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import ACTION, Deployed
from robotrl.policies.networks.mlp import Transforms
from robotrl.policies.over_base import PolicyOverBase
from robotrl.spec import (
    COMMITTED,
    COMMITTED_MASK,
    ActOut,
    HasChain,
    HasDeployNoise,
    Mode,
    Spec,
    committed_specs,
    committed_steps,
)
from robotrl.transforms import Affine, TransformGroup, composed_affine, inverse


@dataclass(frozen=True)
class GuidedCfg:
    """Config of the guidance."""

    overlap: int = 4
    """D, actions that two chunks have in common, 1 to H - 1; H - D actions of a chunk are executed. It is also the
    longest delay, in control steps."""
    max_gain: float = 5.0
    """Largest gain of the correction, above 0."""
    horizon: int | None = None
    """Expected chunk length of the base policy; None accepts any."""

    def build(self, base: nn.Module) -> GuidedPolicy:
        """Guide the base policy."""
        return GuidedPolicy(base, self)


class GuidedPolicy(PolicyOverBase):
    """A flow or diffusion policy whose chunks continue the one before; implements `Policy` and `HasOverlap`.

    It has no weights of its own. Each denoising step is corrected towards the actions that the last chunk planned
    (`robotrl.fn.chain.guided`), so that the new chunk begins where the robot will be when it takes over.

    Args:
        base: a policy with a denoising chain.
        cfg: the config.

    Raises:
        CapabilityError: the base policy has no chain, or reads committed actions by itself.
        ConfigError: a setting out of range.
    """

    kind: ClassVar[str] = "guided"
    Cfg: ClassVar[type] = GuidedCfg
    keyed_noise: ClassVar[Literal[True]] = True
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "sample"

    def __init__(self, base: nn.Module, cfg: GuidedCfg) -> None:
        if not (isinstance(base, HasChain) and isinstance(base, HasDeployNoise)):
            raise CapabilityError(
                f"policy {type(base).__name__} has no denoising chain that could be guided: expected one such as"
                " FlowPolicy, ShortcutPolicy or DiffusionPolicy"
            )
        super().__init__(base, cfg.horizon)
        if committed_steps(self.base.observation_spec):
            raise CapabilityError(
                f"policy {type(base).__name__} was trained with its committed actions: expected one that was not, such"
                " a policy needs no guidance"
            )
        if self.horizon < 2:
            raise ConfigError(f"policy.horizon is {self.horizon}: expected 2 or more, so that chunks can overlap")
        check_count("overlap", cfg.overlap, 1, self.horizon - 1)
        check_positive("max_gain", cfg.max_gain)
        self.cfg = cfg
        self.overlap: int = cfg.overlap
        unit = inverse(composed_affine(self.base.transforms, ACTION, self.action_width))
        scale = Affine(COMMITTED, unit.scale * cfg.overlap, unit.offset * cfg.overlap)
        self._transforms = self.base.transforms.push(inputs=(scale,))
        self._committed = Transforms([scale])

    @property
    def observation_spec(self) -> dict[str, Spec]:
        """Observation spec of the base policy, and the actions that the last chunk planned."""
        return self.base.observation_spec | committed_specs(self.action_spec, self.overlap)

    @property
    def transforms(self) -> TransformGroup:
        """Transforms of the base policy, and the scale of the planned actions, which is that of its own."""
        return self._transforms

    @property
    def noise_shape(self) -> tuple[int, int]:
        """Shape of the base policy's noise."""
        return self.base.noise_shape

    def decode(self, obs: dict[str, Tensor], noise: Tensor) -> Tensor:
        """Denoise: normalized chunk (B, H, A) from noise of the base policy's shape."""
        planned = self._committed({COMMITTED: obs[COMMITTED]})[COMMITTED].unflatten(1, (self.overlap, -1))
        weight = obs[COMMITTED_MASK][..., None].expand(-1, -1, self.action_width)
        # points of a pretrained policy's chain may be longer and wider than its chunk
        length, width = self.noise_shape
        target, weight = (
            functional.pad(x, (0, width - self.action_width, 0, length - self.overlap)) for x in (planned, weight)
        )
        ctx = self.base.encode({key: obs[key] for key in self.base.observation_spec})
        kernel = chain.guided(target, weight, self.cfg.max_gain)
        return chain.executed(self.base, chain.integrate(self.base, ctx, noise, kernel=kernel))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Actions from observations and standard normal noise, which is scaled by the base policy's `deploy_noise`.

        Raises:
            ConfigError: no noise was given.
        """
        if noise is None:
            raise ConfigError("noise is None: a guided policy starts from noise (B, H, A)")
        normalized_action = self.decode(obs, self.base.deploy_noise * noise)
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row, as deployed; "mean" starts from zero noise."""
        first = next(iter(obs.values()))
        shape = (len(first), *self.noise_shape)
        zeros = mode == "mean"
        noise = torch.zeros(shape, device=first.device) if zeros else randn(shape, generator, first.device)
        return ActOut(self.deploy(obs, noise).actions, state)
