"""Policy with a reflex: a frozen task policy, and a risk critic that a servo evaluates at its own rate.

The policy acts as its base does. The reflex is a part of the servo: where the critic finds the base's action risky, it
sends a recovery action until the next servo tick (Zhang et al. 2025, arXiv 2503.21989).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_number, unknown
from robotrl.fn.random.noise import Noise
from robotrl.policies.base import Deployed
from robotrl.policies.networks.risk import RiskCritic
from robotrl.policies.over_base import PolicyOverBase, lacking
from robotrl.spec import ActOut, HasKeyedNoise, Mode
from robotrl.spec.actuation import ServoTick

STATE = "state"
NEEDED = ("act", "deploy", "noise_shape", "deploy_mode", "to_json")
"""Attributes that a base policy needs, besides the specs and keyed noise."""

Rate = Literal["servo", "policy"]
"""When a reflex decides: at each servo tick, or at the first one of a control step for the whole step."""


@dataclass(frozen=True)
class GuardedCfg:
    """Config of the risk critic and the recovery action."""

    threshold: float = 0.3
    """Risk above which the recovery action is sent, 0 to 1."""
    recovery: tuple[float, ...] = ()
    """Recovery action, in the units of the action; empty takes the sim's `retract`."""
    columns: tuple[str, ...] = ()
    """Columns of the observation "state" that the critic reads; empty takes all that the sim's servo measures."""
    servo_dt_s: float | None = None
    """Seconds between two servo ticks, as in training; None takes the sim's."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the critic's hidden layers."""
    horizon: int | None = None
    """Expected chunk length of the base policy; None accepts any."""

    def build(self, base: nn.Module) -> GuardedPolicy:
        """Put a risk critic with fresh weights beside a task policy."""
        return GuardedPolicy(base, self)


class GuardedPolicy(PolicyOverBase):
    """A frozen task policy with a risk critic beside it; implements `Policy` and `HasReflex`.

    Args:
        base: the task policy; it is frozen, in place.
        cfg: the config, with columns and recovery action.

    Raises:
        CapabilityError: the base policy lacks a needed attribute, or observes no vector "state".
        ConfigError: a setting out of range, an unknown column, a recovery action that is none, or a base policy with
            chunks of another length.
    """

    kind: ClassVar[str] = "guarded"
    Cfg: ClassVar[type] = GuardedCfg
    keyed_noise: ClassVar[Literal[True]] = True

    def __init__(self, base: nn.Module, cfg: GuardedCfg) -> None:
        missing = lacking(base, NEEDED)
        if missing or not isinstance(base, HasKeyedNoise):
            lacks = ", ".join(missing) or "HasKeyedNoise"
            raise CapabilityError(f"policy {type(base).__name__} lacks {lacks}: it cannot act beside a reflex")
        check_number("policy.threshold", cfg.threshold, 0.0, 1.0)
        for width in cfg.hidden:
            check_at_least("policy.hidden", width, 1)
        super().__init__(base.requires_grad_(False), cfg.horizon)
        self.cfg = cfg
        self._check_recovery()
        names = self.observation_spec[STATE].names if STATE in self.observation_spec else ()
        if not names:
            raise CapabilityError(
                f'policy {type(base).__name__} observes no vector "state" with named columns: expected one that does,'
                " since the critic reads some of them"
            )
        if not cfg.columns:
            raise ConfigError("policy.columns is empty: expected the columns that the servo measures")
        for name in cfg.columns:
            if name not in names:
                raise unknown("policy.columns", name, names)
        self.risk = RiskCritic(len(cfg.columns), self.action_spec, cfg.hidden)

    def _check_recovery(self) -> None:
        spec, given = self.action_spec, self.cfg.recovery
        if len(given) != self.action_width:
            raise ConfigError(
                f"policy.recovery has {len(given)} numbers: expected {self.action_width}, one for each of"
                f" {', '.join(spec.names)}"
            )
        for name, x, low, high in zip(spec.names, given, spec.low, spec.high, strict=True):
            check_number(f"policy.recovery of {name!r}", x, low, high)

    @property
    def deploy_mode(self) -> Mode:
        """Mode in which the base policy is deployed."""
        return self.base.deploy_mode

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """Shape of the base policy's noise."""
        return self.base.noise_shape

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The base policy's chunk."""
        return self.base.deploy(obs, noise)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """The base policy's chunk for each row."""
        return self.base.act(obs, state, generator, mode)

    def reflex(self) -> RiskReflex:
        """The reflex at the servo's rate, with the configured threshold."""
        return RiskReflex(self, self.cfg.threshold)


class RiskReflex:
    """Sends the recovery action where the risk of the policy's action is above a threshold.

    Args:
        policy: the policy with critic and recovery action.
        threshold: risk above which it acts, 0 to 1.
        rate: see `Rate`.

    Raises:
        ConfigError: a threshold out of range, or an unknown rate.
    """

    def __init__(self, policy: GuardedPolicy, threshold: float, rate: Rate = "servo") -> None:
        check_number("threshold", threshold, 0.0, 1.0)
        if rate not in get_args(Rate):
            raise unknown("rate", str(rate), get_args(Rate))
        self._policy, self._threshold, self._rate = policy, threshold, rate
        self._recovery = torch.tensor(policy.cfg.recovery, dtype=torch.float32)
        self.fired = torch.zeros(0, dtype=torch.bool)
        """(N,) where the last action sent was the recovery."""

    @torch.no_grad()
    def act(self, tick: ServoTick) -> Tensor:
        """See `Reflex`."""
        if self._rate == "servo" or tick.tick == 0:
            self.fired = self._policy.risk.risk(tick.obs, tick.action.float()) > self._threshold
        return torch.where(self.fired[:, None], self._recovery.to(tick.action), tick.action)

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        """See `Reflex`; what an action led to is of no use to it."""
