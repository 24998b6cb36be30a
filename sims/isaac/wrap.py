"""An Isaac environment that exists already as a sim."""

from __future__ import annotations

from typing import Any

import gymnasium

from robotrl.errors import ConfigError, check_number, out_of_range, unknown
from robotrl.sims.isaac.base import IsaacSim, Settings, names
from robotrl.sims.isaac.descriptors import Descriptors, descriptors_of
from robotrl.sims.isaac.lab import lab_sim
from robotrl.sims.isaac.success import DEFAULT, signal_of
from robotrl.sims.isaac.surface import is_lab
from robotrl.sims.isaac.vec_task import RESETS, Resets, vec_task_sim

ACTIONS = ("targets", "raw")
"""Forms of the action: joint targets where the environment describes them, or its own numbers."""


def sim_of(
    env: Any,
    *,
    name: str = "isaac",
    seed: int = 0,
    groups: Any = None,
    policy_groups: Any = None,
    action_bound: float = 1.0,
    actions: str = "targets",
    success: str = DEFAULT,
    resets: Resets = "next-step",
    control_dt_s: float | None = None,
    descriptors: Descriptors | None = None,
) -> IsaacSim:
    """Make a sim of an environment with Isaac Lab's surface or Isaac Gym's; see `IsaacCfg` for the options.

    Args:
        env: the environment, or one inside Gymnasium's wrappers.
        name: name of the sim, for messages.
        seed: seed of the first reset.
        groups: observation groups to take; None for all.
        policy_groups: groups that a policy may read; None: "policy", "actor" or "obs".
        action_bound: bound that replaces infinite bounds of the environment's own action.
        actions: one of `ACTIONS`.
        success: signal of success.
        resets: time of a reset, of Isaac Gym's tasks.
        control_dt_s: control period, s; None takes the environment's, which Isaac Gym's do not state.
        descriptors: Isaac Lab's IO descriptors; None asks the environment.

    Raises:
        ConfigError: a value out of range, or an environment with another surface.
    """
    check_number("action_bound", action_bound, 1e-6, 1e30)
    if control_dt_s is not None:
        check_number("control_dt_s", control_dt_s, 1e-6, 3600.0)
    if actions not in ACTIONS:
        raise unknown("actions", str(actions), ACTIONS)
    if resets not in RESETS:
        raise unknown("resets", str(resets), RESETS)
    for option, value in (("groups", groups), ("policy_groups", policy_groups)):
        if value is not None and not names(value):
            raise out_of_range(option, value, "one group or more")
    # Gymnasium's wrappers check or change what a step returns, on the host
    inner: Any = env.unwrapped if isinstance(env, gymnasium.Wrapper) else env
    lab = is_lab(inner)
    if lab and resets != "next-step":
        raise ConfigError(f"resets is {resets!r}: expected no value for an env of Isaac Lab, which resets in the step")
    settings = Settings(
        name=name,
        seed=seed,
        success=signal_of(success, inner),
        descriptors=descriptors_of(inner) if descriptors is None else descriptors,
        groups=names(groups),
        policy_groups=names(policy_groups),
        action_bound=float(action_bound),
        joint_targets=actions == "targets",
        control_dt_s=control_dt_s,
    )
    return lab_sim(inner, settings) if lab else vec_task_sim(inner, settings, resets)
