"""Small real policies and bundles made from them: what the deploy tests share."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.deploy.export import ExportReport, export
from robotrl.transforms import Affine, Clip, TransformGroup, inverse, normalize, torch_backend
from tests.kits import deploy_graphs
from tests.kits.deploy_cart import ACTION, ACTION_SPEC, OBSERVATION_SPEC, PERIOD_S

HORIZON, STEPS = 2, 3


class Deployed(NamedTuple):
    actions: Tensor
    normalized_action: Tensor


class TinyFlow(nn.Module):
    """A flow policy of 16 units that satisfies what the exporter asks for."""

    def __init__(self, *, noisy: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.observation_spec, self.action_spec, self.horizon = OBSERVATION_SPEC, ACTION_SPEC, HORIZON
        self.noise_shape = (HORIZON, ACTION) if noisy else None
        self.denoising_steps, self.sampler = STEPS, ("flow", "euler")
        self.control_dt_s = PERIOD_S
        to_unit = Affine("action", (0.5, 1.0), (0.0, 0.0))
        self.transforms = TransformGroup(
            inputs=(
                normalize("state", (0.1, 0.0, -0.2, 0.0), (0.5, 1.5, 0.5, 1.0)),
                normalize("touch", (2.0,), (3.0,)),
            ),
            outputs=(inverse(to_unit), Clip("action", ACTION_SPEC.low, ACTION_SPEC.high)),
        )
        torch.manual_seed(seed)
        width = HORIZON * ACTION
        self.net = nn.Sequential(nn.Linear(5 + width + 1, 16), nn.SiLU(), nn.Linear(16, width))

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        inner = TransformGroup(
            tuple(t for t in self.transforms.inputs if t.where == "graph"),
            tuple(t for t in self.transforms.outputs if t.where == "graph"),
        )
        normal = torch_backend(inner.inputs)(obs)
        ctx = torch.cat([normal["state"], normal["touch"]], dim=-1)
        x = torch.zeros(ctx.shape[0], HORIZON * ACTION) if noise is None else noise.flatten(1)
        steps = STEPS if noise is not None else 1
        for k in range(steps):
            t = torch.full((ctx.shape[0], 1), k / steps)
            x = x + self.net(torch.cat([ctx, x, t], dim=-1)) / steps
        raw = x.reshape(-1, HORIZON, ACTION)
        return Deployed(torch_backend(inner.outputs)({"action": raw})["action"], raw)


class SteerToGoal(TinyFlow):
    """Pushes the cart of `make_cart` to its goal, whatever the noise; brakes not."""

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        state = obs["state"]
        push = 12.0 * (state[:, 2] - state[:, 0]) - 6.0 * state[:, 1]
        one = torch.stack([push / 2.0, obs["touch"][:, 0] * 0.0], dim=-1)[:, None, :].repeat(1, HORIZON, 1)
        raw = one if noise is None else one + 0.0 * noise
        return Deployed(torch_backend(self.transforms.outputs)({"action": raw})["action"], raw)


def recorded(count: int = 1200, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "state": rng.normal(size=(count, 4)).astype(np.float32),
        "touch": rng.uniform(0, 10, size=(count, 1)).astype(np.float32),
    }


_MADE: dict[str, tuple[Path, ExportReport]] = {}


def made(kind: str, root: Path) -> tuple[Path, ExportReport]:
    """A bundle of one kind, exported once for the whole test session."""
    if kind not in _MADE:
        policy = {"flow": TinyFlow, "goal": SteerToGoal}[kind]()
        path = root / f"{kind}.bundle"
        _MADE[kind] = (path, export(policy, path, observations=recorded()))
    return _MADE[kind]


def patient(kind: str, root: Path) -> Path:
    """Such a bundle that accepts observations of up to 0.2 s, so that a busy machine does not make them stale."""
    path = root / f"{kind}-patient.bundle"
    if not path.exists():
        wait_for_observations(Path(shutil.copytree(made(kind, root)[0], path)))
    return path


def wait_for_observations(bundle: Path) -> None:
    """Let a bundle accept observations of up to 0.2 s."""

    def wait(data: dict[str, Any]) -> None:
        data["timing"]["max_observation_age_s"] = 0.2

    deploy_graphs.reseal(bundle, wait)


def copied(kind: str, tmp_path: Path, root: Path) -> Path:
    """A copy of such a bundle that a test may damage."""
    return Path(shutil.copytree(made(kind, root)[0], tmp_path / "bundle"))
