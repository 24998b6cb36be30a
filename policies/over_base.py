"""Base of policies that act through another policy: its specs, horizon and sampler are theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from robotrl.errors import ConfigError
from robotrl.registry import POLICIES
from robotrl.spec import HasSampler, Spec
from robotrl.spec.json_fields import settings_from_json
from robotrl.transforms import TransformGroup

DEFAULT_SAMPLER = ("flow", "euler")
"""Kind and solver that a bundle states for a base policy that does not say them."""


def lacking(base: nn.Module, needed: Sequence[str]) -> list[str]:
    """Names of the attributes that a base policy needs and lacks."""
    return [name for name in needed if not hasattr(base, name)]


@runtime_checkable
class ChecksObs(Protocol):
    """A policy that refuses observations which cannot be what they say."""

    def check_given(self, obs: dict[str, Tensor]) -> None:
        """Check observations (B, ...) in the sim's units."""
        ...


class PolicyOverBase(nn.Module):
    """A policy with networks of its own around a base policy, which stays in eval mode.

    Subclasses set `kind`, `Cfg` and `cfg`, and are made from the base policy and the config.

    Args:
        base: the base policy.
        horizon: expected chunk length of the base policy; None accepts any.

    Raises:
        ConfigError: the base policy has chunks of another length.
    """

    kind: ClassVar[str]
    Cfg: ClassVar[type]
    cfg: Any

    def __init__(self, base: Any, horizon: int | None) -> None:
        super().__init__()
        if horizon not in (None, base.horizon):
            raise ConfigError(f"policy.horizon is {horizon}: the base policy's horizon is {base.horizon}")
        self.base: Any = base.eval()
        self.control_dt_s: float | None = base.control_dt_s
        """Seconds between two actions of the sim it was trained on."""
        self.reward_scale: float | None = None
        """None: rewards are not normalized."""

    def check_given(self, obs: dict[str, Tensor]) -> None:
        """Check observations (B, ...) as the base policy does; a third-party policy may have no check.

        Raises:
            ConfigError: see the base policy's.
        """
        if isinstance(self.base, ChecksObs):
            self.base.check_given(obs)

    @property
    def denoising_steps(self) -> int:
        """K of the base policy, 0 if it has none."""
        return self.base.denoising_steps if isinstance(self.base, HasSampler) else 0

    @property
    def sampler(self) -> tuple[str, str]:
        """Kind and solver of the base policy's sampler."""
        return self.base.sampler if isinstance(self.base, HasSampler) else DEFAULT_SAMPLER

    @property
    def observation_spec(self) -> dict[str, Spec]:
        """Observation spec of the base policy."""
        return self.base.observation_spec

    @property
    def action_spec(self) -> Spec:
        """Action spec of the base policy."""
        return self.base.action_spec

    @property
    def transforms(self) -> TransformGroup:
        """Transforms of the base policy."""
        return self.base.transforms

    @property
    def horizon(self) -> int:
        """H of the base policy."""
        return self.base.horizon

    @property
    def action_width(self) -> int:
        """A, the size of an action."""
        return self.action_spec.shape[0]

    @property
    def context_width(self) -> int:
        """See `HasChain.context_width`."""
        return self.base.context_width

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of the policy's own networks; the base policy stays in eval mode."""
        super().train(mode)
        self.base.eval()
        return self

    def to_json(self) -> dict[str, Any]:
        """Description for `from_json`, without weights; the base policy's description is nested."""
        return {
            "kind": self.kind,
            "cfg": asdict(self.cfg),
            "base": self.base.to_json(),
            "control_dt_s": self.control_dt_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build the policy and its base policy from `to_json`, with fresh weights."""
        base = POLICIES.load(data["base"]["kind"]).from_json(data["base"])
        policy = cls(base, cls.Cfg(**settings_from_json(data["cfg"])))
        policy.control_dt_s = data["control_dt_s"]
        return policy

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) of the base policy."""
        return self.base.encode(obs)

    def to_actions(self, normalized_action: Tensor) -> Tensor:
        """Convert normalized actions to the sim's units, clipped to the action bounds."""
        return self.base.to_actions(normalized_action)
