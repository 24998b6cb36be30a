"""Refuses sim steps with non-finite numbers, before anything learns from them."""

from __future__ import annotations

import torch
from torch import Tensor

from robotrl.errors import NumericsError
from robotrl.spec import Step


def check_finite(step: Step, step_index: int) -> None:
    """Check that all numbers of a step are finite.

    Raises:
        NumericsError: a number is not finite; env, step and field are named.
    """
    env = _bad_row(step.reward)
    if env is not None:
        raise NumericsError(
            f"env {env}, rollout step {step_index}: reward is {step.reward[env].item()}: expected finite"
        )
    for key, value in step.obs.items():
        env = _bad_row(value)
        if env is not None:
            raise NumericsError(f"env {env}, rollout step {step_index}: observation {key!r} is not finite")
    for key, value in step.final_obs.items():
        row = _bad_row(value)
        if row is not None:
            env = int(step.final_ids[row])
            raise NumericsError(f"env {env}, rollout step {step_index}: final observation {key!r} is not finite")


def _bad_row(values: Tensor) -> int | None:
    # a sum is cheap, and NaN or infinity propagates into it
    if not values.is_floating_point() or torch.isfinite(values.sum()):
        return None
    bad = torch.nonzero(~torch.isfinite(values))
    return int(bad[0, 0]) if len(bad) else None
