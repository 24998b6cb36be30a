"""How far a policy's normalised actions go."""

from __future__ import annotations

from robotrl.policies.beta import BetaPolicy
from robotrl.policies.diffusion import DiffusionPolicy
from robotrl.policies.squashed import SquashedPolicy
from robotrl.spec import HasTokens

FAR = 3.0
"""A normalised action of a policy that nothing bounds is hardly ever larger."""


def reach_of(policy: object) -> float:
    """The largest normalised action that a policy says: 1 where its bins, density or sampler end there."""
    return 1.0 if isinstance(policy, HasTokens | DiffusionPolicy | BetaPolicy | SquashedPolicy) else FAR
