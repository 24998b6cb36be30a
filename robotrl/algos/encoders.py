"""What episodes are embedded by where failures are worth how near they came to successes (SRPO).

An encoder is a frozen module from raw observations (B, ...), all that the sim gives, to features (B, F). It is made by
`make(policy, observation_spec)`; packages add theirs through the entry-point group `robotrl.encoders`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robotrl.errors import CapabilityError, ConfigError
from robotrl.load import load_policy
from robotrl.spec import HasEye, Spec

Make = Callable[[Any, dict[str, Spec]], Any]


def own(policy: Any, observation_spec: dict[str, Spec]) -> Any:
    """The sight of the policy that learns, as it is at the start of a run."""
    del observation_spec
    return _eye(policy, "policy")


def of_run(path: str) -> Make:
    """The sight of another policy: that of a run or a checkpoint."""

    def make(policy: Any, observation_spec: dict[str, Spec]) -> Any:
        del policy
        other = load_policy(path)
        for key, spec in other.observation_spec.items():
            found = observation_spec.get(key)
            if found is None or (found.shape, found.dtype) != (spec.shape, spec.dtype):
                has = "no such array" if found is None else f"{found.dtype} {found.shape}"
                raise ConfigError(
                    f"algo.encoder 'run:{path}' reads {key!r}, {spec.dtype} {spec.shape}: the sim has {has}"
                )
        return _eye(other, f"run:{path}")

    return make


def _eye(policy: Any, name: str) -> Any:
    if not isinstance(policy, HasEye):
        raise CapabilityError(
            f"policy {type(policy).__name__} lacks HasEye: algo.encoder {name!r} needs its sight; expected a policy"
            " that says tokens, run:PATH of one, or a row of `robotrl list encoders`"
        )
    return policy.eye()
