"""Settings of faults between a sim and its policy: old or lost observations, late actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from robotrl.errors import check_count, check_number

LONGEST_STEPS = 1_000
"""Longest delay and longest burst, control steps."""


@dataclass(frozen=True)
class PerturbCfg:
    """Faults on the way between sim and policy; one step is the sim's control step."""

    obs_delay_steps: int = 0
    """Age of each observation, steps: the policy decides on the state of so many steps ago, the first one of the
    episode at its beginning. Observations for a critic alone are not delayed."""
    action_delay_steps: int = 0
    """Steps that pass between a decision and its execution (latency of inference and actuation). Until the first
    action arrives, the sim gets zeros, clipped to the action bounds."""
    drop_rate: float = 0.0
    """Chance per step, 0 to 1, that the observation is lost and a burst of losses begins; the policy is given the last
    one that arrived."""
    drop_steps: int = 1
    """Length of a burst of lost observations, steps."""

    @property
    def active(self) -> bool:
        """True if anything is perturbed."""
        return bool(self.obs_delay_steps or self.action_delay_steps or self.drop_rate)

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value out of range.
        """
        check_count("perturb.obs_delay_steps", self.obs_delay_steps, 0, LONGEST_STEPS, "control steps")
        check_count("perturb.action_delay_steps", self.action_delay_steps, 0, LONGEST_STEPS, "control steps")
        check_number("perturb.drop_rate", self.drop_rate, 0.0, 1.0)
        check_count("perturb.drop_steps", self.drop_steps, 1, LONGEST_STEPS, "control steps")


UNPERTURBED = PerturbCfg()
"""No faults, the default of every sim."""


@runtime_checkable
class HasPerturb(Protocol):
    """Config of a sim with the option `perturb`, which `robotrl.registry.build_sim` applies."""

    @property
    def perturb(self) -> PerturbCfg:
        """Faults between the sim and its policy."""
        ...
