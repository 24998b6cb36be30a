"""Settings of a policy in closed form whose kind follows from the sim's actions: choices, or numbers within bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from robotrl.errors import ConfigError, unknown
from robotrl.policies.beta import BetaCfg
from robotrl.policies.categorical import CategoricalCfg
from robotrl.policies.closed_form import ClosedFormPolicy
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup

Kind = Literal["auto", "gaussian", "beta", "categorical"]
CFGS: dict[str, Any] = {"gaussian": GaussianCfg, "beta": BetaCfg, "categorical": CategoricalCfg}
AUTO = "auto"


@dataclass(frozen=True)
class ByActionCfg:
    """Size of a `CategoricalPolicy`, a `GaussianPolicy` or a `BetaPolicy`."""

    kind: Kind = "auto"
    """"auto" is categorical where actions are choices (Discrete, MultiDiscrete, MultiBinary) and Gaussian elsewhere."""
    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    initial_std: float | None = None
    """Of a Gaussian: standard deviation at the start, in normalised action units; none takes 0.6."""
    activation: Activation = "silu"
    """Between the layers."""
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
    ) -> ClosedFormPolicy:
        """The policy with fresh weights.

        Raises:
            ConfigError: an unknown kind, or a setting that the kind does not have.
            CapabilityError: the kind that was asked for cannot give such actions.
        """
        return self.settled(action_spec).build(observation_spec, action_spec, transforms)

    def settled(self, action_spec: Spec) -> Any:
        """The settings of the kind that is built for such actions."""
        if self.kind != AUTO and self.kind not in CFGS:
            raise unknown("policy.kind", str(self.kind), (AUTO, *CFGS))
        kind = ("gaussian" if action_spec.choices is None else "categorical") if self.kind == AUTO else self.kind
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "kind"}
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
"""Of a Gaussian policy from scratch, in normalised action units: wide enough to reach both bounds now and then."""
