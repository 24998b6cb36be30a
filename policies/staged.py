"""DPPO's fine-tuned policy: one policy runs the first denoising steps, another (fine-tuned) one the last steps."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from robotrl.fn import chain
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import Deployed
from robotrl.policies.diffusion import DiffusionPolicy
from robotrl.policies.flow import FlowPolicy
from robotrl.policies.generative import GenerativePolicy
from robotrl.policies.shortcut import ShortcutPolicy
from robotrl.spec import ActOut, Mode

KINDS: dict[str, type[GenerativePolicy]] = {kind.kind: kind for kind in (DiffusionPolicy, FlowPolicy, ShortcutPolicy)}


class StagedPolicy(nn.Module):
    """Two policies in sequence; implements `Policy`, `HasChain` and `HasDecode`.

    `decode` evaluates one network for each step, as either policy alone does.

    Args:
        early: runs the first steps.
        late: a policy with the same kind, specs and grid, runs the others.
        switch: number of steps that `early` runs, 1 to K - 1.

    Raises:
        ValueError: `switch` leaves no step to one of the two, or their grids differ.
    """

    kind: ClassVar[str] = "staged"
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "sample"
    keyed_noise: ClassVar[Literal[True]] = True

    def __init__(self, early: Any, late: Any, switch: int) -> None:
        super().__init__()
        if early.times != late.times or not 0 < switch < len(late.times) - 1:
            raise ValueError(f"switch is {switch} on grids {early.times} and {late.times}: expected 1 to K - 1 of one")
        self.early, self.late = early, late
        self.switch = switch
        self.observation_spec = late.observation_spec
        self.action_spec = late.action_spec
        self.horizon: int = late.horizon
        self.action_width: int = late.action_width
        self.times: tuple[float, ...] = late.times
        self.transforms = late.transforms
        self.cfg = late.cfg
        self.noise_shape: tuple[int, int] = late.noise_shape
        self.sampler: tuple[str, str] = late.sampler
        self.context_width: int = early.context_width
        self.control_dt_s: float | None = late.control_dt_s
        self.reward_scale: float | None = late.reward_scale

    @property
    def denoising_steps(self) -> int:
        """K, the number of denoising steps."""
        return len(self.times) - 1

    @property
    def deploy_noise(self) -> float:
        """Std of the initial noise at deployment, that of the early policy."""
        return self.early.deploy_noise

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Contexts of both policies side by side; both have the same width."""
        return torch.cat([self.early.encode(obs), self.late.encode(obs)], dim=-1)

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """Velocity of the policy that runs the step at t; evaluates both, since rows may differ in t."""
        first, second = self._parts(ctx)
        begins = 0.5 * (self.times[self.switch - 1] + self.times[self.switch])
        early, late = self.early.velocity(first, x, t, dt), self.late.velocity(second, x, t, dt)
        return torch.where(t[:, None, None] < begins, early, late)

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Denoise: normalised chunk (B, H, A) from noise (B, H, A), deterministic."""
        first, second = self._parts(ctx)
        between = chain.integrate(self.early, first, noise, range(self.switch))
        return chain.integrate(self.late, second, between, range(self.switch, self.denoising_steps))

    def to_actions(self, normalized_action: Tensor) -> Tensor:
        """Convert normalised actions to the sim's units, clipped to the action bounds."""
        return self.late.to_actions(normalized_action)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Actions from raw observations and standard normal noise, scaled by the early policy's `deploy_noise`.

        Raises:
            ValueError: no noise was given.
        """
        if noise is None:
            raise ValueError("noise is None: a staged policy starts from noise (B, H, A)")
        normalized_action = self.decode(self.encode(obs), self.deploy_noise * noise)
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row; `sample` starts from standard normal noise, `mean` from zero noise."""
        first = next(iter(obs.values()))
        shape = (len(first), *self.noise_shape)
        noise = torch.zeros(shape, device=first.device)
        if mode == "sample":
            noise = randn(shape, generator, first.device)
        return ActOut(self.deploy(obs, noise).actions, state)

    def to_json(self) -> dict[str, Any]:
        """Description from which `from_json` builds the same policy again, without its weights."""
        self.late.control_dt_s, self.late.reward_scale = self.control_dt_s, self.reward_scale
        return {"kind": self.kind, "switch": self.switch, "early": self.early.to_json(), "late": self.late.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build the policy from `to_json`, with fresh weights.

        Raises:
            KeyError: a part has an unsupported kind.
        """
        early, late = (KINDS[data[part]["kind"]].from_json(data[part]) for part in ("early", "late"))
        return cls(early, late, data["switch"])

    def _parts(self, ctx: Tensor) -> tuple[Tensor, Tensor]:
        first, second = ctx.chunk(2, dim=-1)
        return first, second
