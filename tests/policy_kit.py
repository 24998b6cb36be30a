"""Policies small enough to test, on two observation arrays and an action whose bounds are not symmetric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.spec import Spec
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse, normalize

INF = float("inf")
OBSERVATION_SPEC = {
    "joints": Spec((3,), ("a", "b", "c"), ("rad",) * 3, (-1.0, -2.0, -INF), (1.0, 2.0, INF)),
    "tip": Spec((2,), ("x", "y"), ("m",) * 2, (-0.1, 0.0), (0.1, 0.2)),
}
ACTION_SPEC = Spec((2,), ("push", "turn"), ("N", "rad"), (-2.0, 0.0), (6.0, 0.5))
TRANSFORMS = TransformGroup(
    (normalize("joints", [0.1, -0.2, 3.0], [0.5, 1.0, 2.0]), normalize("tip", [0.0, 0.1], [0.05, 0.0])),
    (inverse(bounds_to_unit("action", ACTION_SPEC.low, ACTION_SPEC.high)), Clip("action", (-2.0, 0.0), (6.0, 0.5))),
)
CFGS: dict[str, Any] = {
    "flow": FlowCfg(horizon=3, denoising_steps=4, hidden=(32, 32)),
    "flow-one-step": FlowCfg(horizon=1, denoising_steps=1, hidden=(16,)),
    "gaussian": GaussianCfg(horizon=3, hidden=(32, 32)),
    "gaussian-one-action": GaussianCfg(horizon=1, hidden=(16,)),
}
"""One row for each kind and edge; the tests of every policy run on each."""


def make_policy(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return CFGS[name].build(OBSERVATION_SPEC, ACTION_SPEC, TRANSFORMS)


def observations(batch: int, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "joints": torch.randn((batch, 3), generator=generator) * torch.tensor([0.5, 1.0, 2.0]),
        "tip": torch.randn((batch, 2), generator=generator) * 0.05,
    }
