"""Config that builds a categorical, Gaussian or Beta policy, by default according to the action space."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from robotrl.errors import ConfigError, unknown
from robotrl.policies.beta import BetaCfg
from robotrl.policies.categorical import CategoricalCfg
from robotrl.policies.closed_form import ClosedFormPolicy
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation
from robotrl.spec import Spec, reads
from robotrl.transforms import TransformGroup

Kind = Literal["auto", "gaussian", "beta", "categorical"]
CFGS: dict[str, Any] = {"gaussian": GaussianCfg, "beta": BetaCfg, "categorical": CategoricalCfg}
AUTO = "auto"


@dataclass(frozen=True)
class ByActionCfg:
    """Config of a `CategoricalPolicy`, a `GaussianPolicy` or a `BetaPolicy`."""

    kind: Kind = "auto"
    """"auto": categorical for discrete actions (Discrete, MultiDiscrete, MultiBinary), Gaussian for continuous ones."""
    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    initial_std: float | None = None
    """Gaussian only: standard deviation at the start, in normalised action units; none takes 0.6."""
    activation: Activation = "silu"
    """Activation function between the layers."""
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
    net: str | None = field(default=None, metadata=reads("module"))
    """One's own network "MODULE:CLASS" instead of the hidden layers: a torch.nn.Module, called with the widths of input
    and output."""

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> ClosedFormPolicy:
        """Build the policy with fresh weights.

        Raises:
            ConfigError: an unknown kind, or a setting that this kind does not have.
            CapabilityError: this kind does not support the action space.
        """
        return self.settled(action_spec).build(observation_spec, action_spec, transforms)

    def settled(self, action_spec: Spec) -> Any:
        """Config of the concrete policy for this action space."""
        if self.kind != AUTO and self.kind not in CFGS:
            raise unknown("policy.kind", str(self.kind), (AUTO, *CFGS))
        kind = ("gaussian" if action_spec.choices is None else "categorical") if self.kind == AUTO else self.kind
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "kind"}
        if kind != "gaussian" and self.initial_std is not None:
            raise ConfigError(
                f"policy.initial_std is {self.initial_std!r}: expected none, the policy is {kind} and has no deviation"
                " of its own"
            )
        std = given.pop("initial_std")
        if kind == "gaussian":
            given["initial_std"] = INITIAL_STD if std is None else std
        return CFGS[kind](**given)


INITIAL_STD = 0.6
"""Default of `initial_std`, in normalised action units: wide enough for samples at both bounds."""
