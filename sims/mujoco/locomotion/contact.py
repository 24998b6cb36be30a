"""Shared reward code of ant and humanoid: weights, healthy height range, contact wrenches."""

from __future__ import annotations

from typing import NamedTuple

from robotrl.sims.mujoco.engine.task import TaskPhysics
from robotrl.sims.mujoco.locomotion.task import Range, check_weights, checked_range


class RewardTerms(NamedTuple):
    """Reward weights and termination condition of ant and humanoid."""

    forward_reward_weight: float
    """Reward for 1 m/s."""
    ctrl_cost_weight: float
    """Cost of one unit of the sum of squared actions."""
    contact_cost_weight: float
    """Cost of one unit of the sum of squared contact torques and forces."""
    healthy_reward: float
    """Reward of each step in which the robot is healthy."""
    terminate: bool
    """End the episode when the robot is unhealthy."""
    healthy_z_range: Range
    """Healthy range (low, high) of the torso's height, m."""


class ContactScore:
    """Base class of both rewards: validated terms and views of the fields that they read.

    Args:
        terms: see `RewardTerms`.

    Raises:
        ConfigError: a weight is not a finite number, or a range is not in order.
    """

    def __init__(self, terms: RewardTerms) -> None:
        check_weights(
            forward_reward_weight=terms.forward_reward_weight,
            ctrl_cost_weight=terms.ctrl_cost_weight,
            contact_cost_weight=terms.contact_cost_weight,
            healthy_reward=terms.healthy_reward,
        )
        self._forward = terms.forward_reward_weight
        self._ctrl_cost = terms.ctrl_cost_weight
        self._contact_cost = terms.contact_cost_weight
        self._healthy_reward = terms.healthy_reward
        self._terminate = terms.terminate
        self._z_range = checked_range("healthy_z_range", terms.healthy_z_range)

    @property
    def ends_early(self) -> bool:
        """True if leaving the healthy range ends the episode."""
        return self._terminate

    def bind(self, physics: TaskPhysics) -> None:
        """Store views of the torso's height, contact wrenches and controls."""
        self._xp = xp = physics.xp
        self._z = physics.bind("qpos")[:, 2]
        wrenches = physics.field("cfrc_ext")
        self._wrenches = wrenches.reshape(len(wrenches), -1)
        self._ctrl = physics.ctrl
        self._x_before = xp.zeros_like(self._z)
        self._never = xp.zeros_like(self._z, dtype=xp.bool)
