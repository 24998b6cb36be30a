"""Synthesis of a score of the scene with the state of the vehicle or of the robot."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, check_number, unknown
from robotrl.fn.language_reward import driving_synthesis, robot_synthesis
from robotrl.rewards.rules import ActionLimits
from robotrl.rewards.source import SimTransition
from robotrl.spec import VecSim
from robotrl.spec.vehicle import HasVehicleObs

Synthesis = Literal["none", "driving", "robot"]
MAX_OFFSET_M, MAX_HEADING_RAD = 3.0, math.pi / 2
"""Offset and heading error at which VLM-RL's synthesis gives nothing."""


class Shape(NamedTuple):
    """Makes rewards of scores and of what else a step shows."""

    width: int
    """S."""
    notes: Callable[[SimTransition], Tensor]
    """(N, S) float32: what the reward depends on besides the score."""
    reward: Callable[[Tensor, Tensor], Tensor]
    """Scores (n,) in 0 to 1 and notes (n, S), to rewards (n,)."""


def synthesis_of(kind: Synthesis, sim: VecSim, name: str, max_speed_mps: float) -> Shape:
    """The synthesis of a kind.

    Args:
        kind: "none": the score is the reward; "driving": see `driving_synthesis`; "robot": see `robot_synthesis`.
        sim: the sim.
        name: name of the source in the registry, for errors.
        max_speed_mps: desired speed at a score of 1, of "driving".

    Raises:
        CapabilityError: the sim observes no speed, lateral offset and heading error, or its actions are choices.
        ConfigError: an unknown kind, or a speed out of range.
    """
    if kind == "none":
        return Shape(0, lambda transition: torch.zeros(len(transition.step.reward), 0), lambda score, notes: score)
    if kind == "driving":
        return _driving(sim, name, max_speed_mps)
    if kind == "robot":
        return _robot(sim, name)
    raise unknown(f"reward.{name}.synthesis", str(kind), ("none", "driving", "robot"))


def _driving(sim: VecSim, name: str, max_speed_mps: float) -> Shape:
    check_number(f"reward.{name}.max_speed_mps", max_speed_mps, 0.1, 100.0, "m/s")
    where = sim.vehicle_obs if isinstance(sim, HasVehicleObs) else None
    if where is None:
        raise CapabilityError(
            f"reward.{name}.synthesis is 'driving', and sim {type(sim).__name__} observes no speed, offset and heading"
            " of the ego: expected a driving sim with vector observations (--sim.obs both)"
        )
    names = sim.observation_spec[where.key].names
    columns = [names.index(one) for one in (where.speed, where.offset, where.heading_sin, where.heading_cos)]
    units = torch.tensor([where.speed_mps, where.offset_m, 1.0, 1.0])

    def notes(transition: SimTransition) -> Tensor:
        return transition.reached[where.key][:, columns].float().cpu() * units

    def reward(score: Tensor, notes: Tensor) -> Tensor:
        speed, offset, sin, cos = notes.T
        return driving_synthesis(
            score,
            speed,
            offset,
            torch.atan2(sin, cos),
            max_speed_mps=max_speed_mps,
            max_offset_m=MAX_OFFSET_M,
            max_heading_rad=MAX_HEADING_RAD,
        )

    return Shape(len(columns), notes, reward)


def _robot(sim: VecSim, name: str) -> Shape:
    bounds = ActionLimits(sim, f"{name} with synthesis 'robot'")

    def notes(transition: SimTransition) -> Tensor:
        return (bounds.clipped(transition.action) / bounds.largest).square().mean(dim=1, keepdim=True)

    return Shape(1, notes, lambda score, notes: robot_synthesis(score, notes[:, 0]))
