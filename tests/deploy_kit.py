"""Small real policies, a bundle made from one, and simulated robots: what the deploy tests share."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.deploy.export import ExportReport, export
from robotrl.spec import Spec
from robotrl.transforms import Affine, Clip, TransformGroup, inverse, normalize, torch_backend

HORIZON, ACTION, STEPS = 2, 2, 3
PERIOD_S = 0.02
OBSERVATION_SPEC = {
    "state": Spec(
        (4,),
        ("cart_pos", "cart_vel", "goal_pos", "goal_vel"),
        ("m", "m/s", "m", "m/s"),
        (-1.0, -np.inf, -1.0, -2.0),
        (1.0, np.inf, 1.0, 2.0),
    ),
    "touch": Spec((1,), ("bumper_force",), ("N",), (0.0,), (10.0,)),
}
ACTION_SPEC = Spec((ACTION,), ("push", "brake"), ("N", "1"), (-2.0, -1.0), (2.0, 1.0))


class Deployed(NamedTuple):
    actions: Tensor
    raw_action: Tensor


class TinyFlow(nn.Module):
    """A flow policy of 16 units that satisfies what the exporter asks for."""

    def __init__(self, *, noisy: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.observation_spec, self.action_spec, self.horizon = OBSERVATION_SPEC, ACTION_SPEC, HORIZON
        self.noise_shape = (HORIZON, ACTION) if noisy else None
        self.denoising_steps = STEPS
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
        push = 4.0 * (state[:, 2] - state[:, 0]) - 2.0 * state[:, 1]
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


def copied(kind: str, tmp_path: Path, root: Path) -> Path:
    """A copy of such a bundle that a test may damage."""
    return Path(shutil.copytree(made(kind, root)[0], tmp_path / "bundle"))


class Cart:
    """A 1-D cart as a simulated robot: m = 1 kg, pushed, with a goal drawn from the state id. Success: near and slow.

    Environment variables make it fail on purpose, at a number of inner steps after a reset: CART_NAN_AT (observations
    become NaN), CART_STOP_AT (its process stops itself), CART_DIE_AT (exits without a word).
    """

    control_dt_s = PERIOD_S
    inner_dt_s = 0.002
    time_limit_s = 2.0
    observation_spec = OBSERVATION_SPEC
    action_spec = ACTION_SPEC

    def __init__(self, seed: int) -> None:
        self.state = np.zeros(3)
        self.push, self.steps = 0.0, 0
        self.faults = {name: int(os.environ.get(name, "-1")) for name in ("CART_NAN_AT", "CART_STOP_AT", "CART_DIE_AT")}

    def state_ids(self, split: str) -> range:
        return {"train": range(0, 1000), "val": range(1000, 1100), "test": range(1100, 1200)}[split]

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(state_id)
        self.state = np.array([0.0, 0.0, rng.uniform(0.2, 0.8) * rng.choice([-1, 1])])
        self.push, self.steps = 0.0, 0
        return self.observe()

    def command(self, action: np.ndarray) -> None:
        self.push = float(action[0])

    def advance(self, inner_steps: int) -> None:
        for _ in range(inner_steps):
            self.state[1] += self.push * self.inner_dt_s
            self.state[0] += self.state[1] * self.inner_dt_s
        self.steps += inner_steps
        if 0 <= self.faults["CART_DIE_AT"] <= self.steps:
            os._exit(7)
        if 0 <= self.faults["CART_STOP_AT"] <= self.steps:
            os.kill(os.getpid(), 19)
            time.sleep(0.1)

    def observe(self) -> dict[str, np.ndarray]:
        state = np.array([self.state[0], self.state[1], self.state[2], 0.0], np.float32)
        if 0 <= self.faults["CART_NAN_AT"] <= self.steps:
            state[1] = np.nan
        return {"state": state, "touch": np.zeros(1, np.float32)}

    def success(self) -> bool:
        return bool(abs(self.state[2] - self.state[0]) < 0.05 and abs(self.state[1]) < 0.1)


def make_cart(seed: int) -> Cart:
    return Cart(seed)


class SwappedCart(Cart):
    """The same cart, whose driver lists its elements in another order."""

    observation_spec: ClassVar = {
        "touch": OBSERVATION_SPEC["touch"],
        "state": Spec(
            (4,),
            ("goal_vel", "cart_vel", "goal_pos", "cart_pos"),
            ("m/s", "m/s", "m", "m"),
            (-2.0, -np.inf, -1.0, -1.0),
            (2.0, np.inf, 1.0, 1.0),
        ),
    }
    action_spec = Spec((ACTION,), ("brake", "push"), ("1", "N"), (-1.0, -2.0), (1.0, 2.0))

    def observe(self) -> dict[str, np.ndarray]:
        obs = super().observe()
        return {"touch": obs["touch"], "state": obs["state"][[3, 1, 2, 0]]}

    def command(self, action: np.ndarray) -> None:
        self.push = float(action[1])


def make_swapped(seed: int) -> SwappedCart:
    return SwappedCart(seed)


class OtherCart(Cart):
    """A robot that is not the one of the bundle."""

    action_spec = Spec((ACTION,), ("pull", "brake"), ("N", "1"), (-2.0, -1.0), (2.0, 1.0))


def make_other(seed: int) -> OtherCart:
    return OtherCart(seed)


def as_any(value: Any) -> Any:
    """For tests that pass what the types forbid."""
    return value
