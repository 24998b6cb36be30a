"""A policy that steers the cart by what it sees, and its bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.deploy.export import export
from robotrl.transforms import Clip, TransformGroup, torch_backend
from tests.kits import deploy_kit as kit
from tests.kits.camera_cart import COLUMNS, PLACES, ROWS, SEEN_SPEC, picture
from tests.kits.deploy_cart import ACTION_SPEC, PERIOD_S


class SteerBySight(nn.Module):
    """Reads both positions from the image's columns; the noise is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec, self.action_spec, self.horizon = SEEN_SPEC, ACTION_SPEC, kit.HORIZON
        self.noise_shape, self.denoising_steps, self.control_dt_s = None, 1, PERIOD_S
        self.transforms = TransformGroup(inputs=(), outputs=(Clip("action", ACTION_SPEC.low, ACTION_SPEC.high),))
        self.places = nn.Parameter(torch.from_numpy(PLACES))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> kit.Deployed:
        seen = (obs["image"] / 255.0).mean(dim=1)
        cart, goal = ((seen[..., channel] * self.places).sum(dim=-1) for channel in (0, 1))
        push = 12.0 * (goal - cart) - 6.0 * obs["speed"][:, 0]
        out = torch.stack([push, 0.0 * push], dim=-1)[:, None, :].repeat(1, self.horizon, 1)
        return kit.Deployed(torch_backend(self.transforms.outputs)({"action": out})["action"], out)


def bundle(folder: Path) -> Path:
    """The exported policy, with images of carts and goals in every place, patient with a busy machine."""
    rng = np.random.default_rng(0)
    images = [picture(*rng.uniform(-1, 1, 2)) for _ in range(1200)]
    recorded = {
        "image": np.stack(images).astype(np.float32).reshape(1200, ROWS, COLUMNS, 3),
        "speed": rng.normal(size=(1200, 1)).astype(np.float32),
    }
    export(SteerBySight(), folder / "sight.bundle", observations=recorded)
    kit.wait_for_observations(folder / "sight.bundle")
    return folder / "sight.bundle"
