"""Two joints that the servo moves to their start pose, and a policy that sends them to their goals."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import tests.kits.deploy_graphs as graphs
from robotrl.deploy.export import export
from robotrl.deploy.robots.start_motion import StartMotion
from robotrl.deploy.robots.two_joints import ACTION_SPEC, OBSERVATION_SPEC, TwoJointsRobot
from robotrl.policies.base import Deployed
from robotrl.transforms import Clip, TransformGroup, torch_backend

PERIOD_S = TwoJointsRobot.control_dt_s
PARKED = (-1.5, 1.0)
"""Where the joints stand before the first start."""


class StartedJoints(TwoJointsRobot):
    """Joints whose reset moves nothing; JOINTS_NAN_AT inner steps after a reset they read NaN."""

    start_motion = StartMotion(pose=(0.5, -0.5), speed=(2.0, 4.0), tolerance=(0.02, 0.02))

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.joints, self.target = np.array(PARKED), np.array(PARKED)
        self.steps, self.nan_at = 0, int(os.environ.get("JOINTS_NAN_AT", "-1"))

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        self.goals = np.random.default_rng(state_id).uniform(-1.5, 1.5, 2)
        self.steps = 0
        return self.observe()

    def advance(self, inner_steps: int) -> None:
        super().advance(inner_steps)
        self.steps += inner_steps

    def observe(self) -> Any:
        found = super().observe()
        state = found.observations["state"]
        if 0 <= self.nan_at <= self.steps:
            state[0] = np.nan
        # the time of whoever drives it counts, which may be simulated
        return {"state": state}


def make(seed: int) -> StartedJoints:
    return StartedJoints(seed)


class GoToGoal(nn.Module):
    observation_spec, action_spec = OBSERVATION_SPEC, ACTION_SPEC
    horizon, noise_shape, denoising_steps, sampler = 2, None, 0, ("none", "none")
    control_dt_s = PERIOD_S
    transforms = TransformGroup(outputs=(Clip("action", ACTION_SPEC.low, ACTION_SPEC.high),))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        goals = obs["state"][:, None, 2:].repeat(1, self.horizon, 1)
        return Deployed(torch_backend(self.transforms.outputs)({"action": goals})["action"], goals)


def joints_bundle(path: Path, change: Callable[[dict[str, Any]], None] = lambda data: None) -> Path:
    """A bundle of that policy which accepts observations of up to 0.2 s."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    rows = rng.uniform(-2.0, 2.0, (1200, 4)).astype(np.float32)
    export(GoToGoal(), path, observations={"state": rows}, action_kind="position")

    def patient(data: dict[str, Any]) -> None:
        data["timing"]["max_observation_age_s"] = 0.2
        change(data)

    return graphs.reseal(path, patient)
