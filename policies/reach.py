"""Largest normalised action of a policy."""

from __future__ import annotations

from robotrl.policies.beta import BetaPolicy
from robotrl.policies.diffusion import DiffusionPolicy
from robotrl.policies.squashed import SquashedPolicy
from robotrl.spec import HasTokens

FAR = 3.0
"""Practical limit of the normalised actions of unbounded policies, which rarely exceed it."""


def reach_of(policy: object) -> float:
    """Largest absolute normalised action: 1 if the policy's bins, density or sampler are bounded, else `FAR`."""
    return 1.0 if isinstance(policy, HasTokens | DiffusionPolicy | BetaPolicy | SquashedPolicy) else FAR
