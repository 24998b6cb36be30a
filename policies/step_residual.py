"""Residual of each env step: a frozen base policy's chunk is held, and each of its actions is corrected on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, check_positive
from robotrl.fn.random.noise import Noise, randn
from robotrl.policies.base import Deployed, DeployedWithMemory
from robotrl.policies.networks.executed import ExecutedChunk
from robotrl.policies.networks.mlp import Activation, Mlp
from robotrl.policies.over_base import PolicyOverBase, lacking
from robotrl.spec import ActOut, CarriesMemory, HasOverlap, Mode, Spec, committed_steps

NEEDED = ("encode", "deploy", "noise_shape", "context_width", "to_actions", "to_json")
"""Attributes that a base policy needs, besides the specs."""


@dataclass(frozen=True)
class StepResidualCfg:
    """Config of the residual network."""

    scale: float = 0.1
    """s: each element of an action moves by at most this, normalized units."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the residual network's hidden layers."""
    activation: Activation = "silu"
    """Activation of the residual network."""

    def build(self, base: nn.Module) -> StepResidualPolicy:
        """Put a residual of 0 beside a base policy."""
        return StepResidualPolicy(base, self)


class StepDecision(NamedTuple):
    """One env step of a `StepResidualPolicy`; result of `StepResidualPolicy.step`."""

    base: Tensor
    """(B, A) the base policy's action, as it would be executed."""
    change: Tensor
    """(B, A) s r, before the sum is clipped."""
    memory: Tensor
    """(B, M) memory after the step."""


class StepResidual(nn.Module):
    """Residual network: s tanh(net(c, a)) of a context and an action, 0 at the start.

    Args:
        context_width: D, the leading part of the base policy's context that it reads; see `HasChain.context_width`.
        action_width: A.
        cfg: sizes and scale.
    """

    def __init__(self, context_width: int, action_width: int, cfg: StepResidualCfg) -> None:
        super().__init__()
        self._scale, self._context_width = cfg.scale, context_width
        self.net = Mlp(context_width + action_width, cfg.hidden, action_width, 0.0, cfg.activation)

    def forward(self, ctx: Tensor, base: Tensor) -> Tensor:
        """Changes (B, A) of actions (B, A) of the base policy, from contexts (B, D) of the present observations."""
        return self._scale * self.net(torch.cat([ctx[:, : self._context_width], base], dim=1)).tanh()


class StepResidualPolicy(PolicyOverBase):
    """A frozen base policy whose chunks are executed one by one, each action corrected; implements `CarriesMemory`.

    A decision is one action: clip(b_t + s r(c_t, b_t)). b_t is the action of the base policy's chunk whose turn it is,
    and c_t the context of the present observation. The base policy is asked where its last chunk is used up, and at
    the beginning of an episode; it acts as it is deployed. The last layer of r starts at 0, so that the policy begins
    as its base. This is the form of ResFiT (2509.19301).

    The memory is what is left of the base policy's chunk, (H, A + 1) in rows: the next action first, each followed by
    a 1, and zeros after the last. Actions are divided by a power of two, which is exact, so that they lie between -1
    and 1.

    Args:
        base: a policy with `encode` and `deploy`; it is frozen, in place.
        cfg: the config.

    Raises:
        CapabilityError: the base policy lacks a needed attribute, has a memory, joins its chunks, or chooses.
        ConfigError: a setting out of range.
    """

    kind: ClassVar[str] = "step-residual"
    Cfg: ClassVar[type] = StepResidualCfg
    keyed_noise: ClassVar[Literal[True]] = True
    cfg: StepResidualCfg
    unit: Tensor
    """(A,) power of two by which actions are divided in the memory."""

    def __init__(self, base: Any, cfg: StepResidualCfg) -> None:
        _check_base(base)
        check_positive("policy.scale", cfg.scale)
        super().__init__(base.requires_grad_(False), None)
        self.cfg = cfg
        self.residual = StepResidual(self.context_width, self.action_width, cfg)
        self.executed = ExecutedChunk(base)
        low, high = self.executed.low.tolist(), self.executed.high.tolist()
        self.register_buffer("unit", torch.tensor(_units(low, high)), persistent=False)

    @property
    def horizon(self) -> int:
        """1: each decision is one action."""
        return 1

    @property
    def held_steps(self) -> int:
        """H of the base policy, env steps for which its chunk is held."""
        return self.base.horizon

    @property
    def deploy_mode(self) -> Mode:
        """Mode in which the base policy is deployed: by its noise, or without one."""
        return "mean" if self.noise_shape is None else "sample"

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A) of the base policy's noise, which is read where it is asked; None if it is deployed without one."""
        return self.base.noise_shape

    @property
    def memory_width(self) -> int:
        """See `CarriesMemory`: H (A + 1)."""
        return self.held_steps * (self.action_width + 1)

    def initial_memory(self, rows: int) -> Tensor:
        """See `CarriesMemory`: no action is left."""
        return self.unit.new_zeros((rows, self.memory_width))

    def first_actions(self, obs: dict[str, Tensor], noise: Tensor | None) -> Tensor:
        """Chunks (B, H, A) of the base policy as it is deployed, clipped as they would be executed.

        Args:
            obs: (B, ...) observations in the sim's units.
            noise: (B, *noise_shape) standard normal numbers; None for a base policy without noise.
        """
        return self.executed(self.base.deploy(obs, noise).normalized_action)

    def left(self, memory: Tensor) -> Tensor:
        """The base policy's next action (B, A) by memories (B, M); NaN where its chunk is used up."""
        nearest = self._rows(memory)[:, 0]
        return (nearest[:, :-1] * self.unit).masked_fill(nearest[:, -1:] < 0.5, math.nan)

    def step(self, obs: dict[str, Tensor], memory: Tensor, chunk: Tensor | None) -> StepDecision:
        """One env step.

        Args:
            obs: (B, ...) present observations in the sim's units.
            memory: (B, M) memory of the step before.
            chunk: (B, H, A) from `first_actions`, for the rows whose chunk is used up; None if there is none.
        """
        rows = self._rows(memory)
        chunks, marks = rows[..., :-1] * self.unit, rows[..., -1:]
        if chunk is not None:
            used_up = marks[:, :1] < 0.5
            chunks = torch.where(used_up, chunk, chunks)
            marks = torch.where(used_up, torch.ones_like(marks), marks)
        base = chunks[:, 0]
        change = self.residual(self.encode(obs), base)
        left = torch.cat([chunks / self.unit, marks], dim=-1)[:, 1:]
        return StepDecision(base, change, torch.cat([left, torch.zeros_like(rows[:, :1])], dim=1).flatten(1))

    def corrected(self, base: Tensor, change: Tensor) -> Tensor:
        """Actions (B, A) of the base policy with their changes (B, A), as they would be executed."""
        return self.executed.clip(base + change)

    def deploy_from(self, obs: dict[str, Tensor], memory: Tensor, noise: Tensor | None) -> DeployedWithMemory:
        """One decision on the robot, from the memory (B, M) of the decision before; the graph asks the base each time.

        Raises:
            ValueError: no noise was given, and the base policy needs it.
        """
        if noise is None and self.noise_shape is not None:
            raise ValueError(f"noise is None: the base of a {self.kind} policy starts from noise {self.noise_shape}")
        return self._decided(self.step(obs, memory, self.first_actions(obs, noise)))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The first decision of an episode; see `deploy_from` for the others."""
        out = self.deploy_from(obs, self.initial_memory(len(next(iter(obs.values())))), noise)
        return Deployed(out.actions, out.normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """An action (B, 1, A) for each row, and the memory (B, M) after it; without a state, each begins an episode.

        The mode is that of the base policy's noise: "sample" draws it, at each step, and "mean" is zero noise. The base
        policy computes all rows, or none: a batch of another size changes the last bits of its numbers.
        """
        self.check_given(obs)
        first = next(iter(obs.values()))
        memory = self.initial_memory(len(first)) if state is None else state
        noise = None
        if self.noise_shape is not None:
            shape = len(first), *self.noise_shape
            zeros = mode == "mean"
            noise = torch.zeros(shape, device=first.device) if zeros else randn(shape, generator, first.device)
        asked = bool(self.left(memory).isnan().any())
        out = self._decided(self.step(obs, memory, self.first_actions(obs, noise) if asked else None))
        return ActOut(out.actions, out.memory)

    def _decided(self, decision: StepDecision) -> DeployedWithMemory:
        """The actions (B, 1, A) of a step."""
        normalized_action = self.corrected(decision.base, decision.change)[:, None]
        return DeployedWithMemory(self.to_actions(normalized_action), normalized_action, decision.memory)

    def _rows(self, memory: Tensor) -> Tensor:
        """Memories (B, M) as actions with their marks (B, H, A + 1)."""
        return memory.unflatten(1, (self.held_steps, self.action_width + 1))


def _units(low: Sequence[float], high: Sequence[float]) -> list[float]:
    """Smallest powers of two that no action of these bounds exceeds; 1 where there is no bound."""
    largest = [max(abs(a), abs(b)) for a, b in zip(low, high, strict=True)]
    return [2.0 ** math.ceil(math.log2(x)) if 0 < x < math.inf else 1.0 for x in largest]


def _check_base(base: Any) -> None:
    """Check that a policy's chunk can be held and corrected.

    Raises:
        CapabilityError: it cannot; the reason is named.
    """
    kind = type(base).__name__
    missing = lacking(base, NEEDED)
    if missing:
        raise CapabilityError(f"policy {kind} lacks {', '.join(missing)}: its actions cannot be corrected one by one")
    spec: Spec = base.action_spec
    why = ""
    if isinstance(base, CarriesMemory):
        why = "has a memory, which changes once per chunk"
    elif isinstance(base, HasOverlap) or committed_steps(base.observation_spec):
        why = "joins each chunk to the one before it"
    elif spec.choices is not None:
        why = f"chooses action {spec.names[0]!r}, and a choice has no correction"
    if why:
        raise CapabilityError(f"policy {kind} {why}: expected one with chunks of numbers that are executed whole")
