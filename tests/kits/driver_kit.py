"""Small driving policies as bundles, for the tests of the driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.deploy.export import export
from robotrl.sims.driving.plan import Actions, actions_of
from robotrl.sims.driving.render.raster import RasterCfg
from robotrl.sims.driving.render.vectors import SCALARS
from robotrl.sims.driving.reported.scene import RouteScene
from robotrl.spec import Spec
from robotrl.transforms import Clip, TransformGroup, normalize, torch_backend
from tests.kits.deploy_kit import Deployed

NEAREST, POLYLINES = 4, 4
AT = {name: k for k, name in enumerate(SCALARS)}
FRONT = (24, 32, 3)
ROWS = 1024


FRONT_SPEC = Spec(FRONT, ("red", "green", "blue"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")


class LaneKeeper(nn.Module):
    """Keeps to the middle of its route at the speed limit, and behind the car ahead; by hand, not learned.

    As a trajectory it drives on straight at its speed.
    """

    def __init__(self, actions: Actions, noisy: bool = False, sees: bool = False) -> None:
        super().__init__()
        scene = RouteScene("vector", NEAREST, POLYLINES, RasterCfg(), False, actions, 2.4)
        self.observation_spec = scene.specs | ({"front": FRONT_SPEC} if sees else {})
        scene.close()
        self.action_spec = actions.spec
        self.horizon, self.control_dt_s = 1, 0.1 * actions.hold
        self.noise_shape = (1, actions.spec.shape[0]) if noisy else None
        self.denoising_steps, self.sampler = 1, ("flow", "euler")
        self._planned, self._sees = actions.kind == "trajectory", sees
        n = len(SCALARS)
        self.transforms = TransformGroup(
            inputs=(normalize("scalars", (0.0,) * n, (1.0,) * n),),
            outputs=(Clip("action", self.action_spec.low, self.action_spec.high),),
        )

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        seen = obs["scalars"]
        one = {name: seen[:, k] for name, k in AT.items()}
        if self._planned:
            times = torch.tensor([0.5, 1.0, 1.5, 2.0])
            ahead = 15.0 * one["speed"][:, None] * times
            action = torch.stack([ahead, 0.0 * ahead], dim=-1).flatten(1)
        else:
            steer = -0.4 * one["route_offset"] - 1.2 * one["heading_error_sin"]
            room = 60.0 * one["leader_gap"] - 8.0
            accel = torch.minimum(-2.0 * one["speed_excess"], 0.2 * room - 1.5 * one["leader_closing"] * 10.0 / 5.0)
            action = torch.stack([steer, accel], dim=-1)
        action = action[:, None, :]
        if noise is not None:
            action = action + 0.01 * noise
        if self._sees:
            # darker pictures are driven more slowly
            light = obs["front"].to(torch.float32).flatten(1).mean(dim=1)[:, None, None] / 255.0
            action = action * torch.stack([torch.ones_like(light), light], dim=-1)[..., 0, :]
        out = torch_backend(TransformGroup((), self.transforms.outputs).outputs)({"action": action})["action"]
        return Deployed(out, action)


def exported(path: Path, kind: str = "controls", noisy: bool = False, sees: bool = False) -> Path:
    """A bundle of a `LaneKeeper`."""
    policy = LaneKeeper(actions_of(kind, None, 4), noisy, sees)
    rng = np.random.default_rng(0)
    observations = {}
    for key, spec in policy.observation_spec.items():
        if spec.dtype == "uint8":
            observations[key] = rng.integers(0, 256, (ROWS, *spec.shape), np.uint8)
        else:
            observations[key] = rng.normal(size=(ROWS, *spec.shape)).astype(np.float32)
    export(policy, path, observations=observations)
    return path
