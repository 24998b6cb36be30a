"""Policies small enough to test, on two vectors (some with a picture, too) and an action of asymmetric bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robotrl.policies.best_of import BestOfCfg
from robotrl.policies.beta import BetaCfg
from robotrl.policies.categorical import CategoricalCfg
from robotrl.policies.conditioned import ConditionedCfg
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.networks.builders import NETWORKS
from robotrl.policies.path_speed import PathSpeedCfg
from robotrl.policies.recurrent import RecurrentBetaCfg, RecurrentCategoricalCfg, RecurrentCfg
from robotrl.policies.reranked import RerankedCfg
from robotrl.policies.residual import ResidualPolicyCfg
from robotrl.policies.shortcut import ShortcutCfg
from robotrl.policies.squashed import SquashedCfg
from robotrl.policies.step_residual import StepResidualCfg
from robotrl.spec import Spec
from robotrl.testing.policies import ACTION_SPEC, OBSERVATION_SPEC, TRANSFORMS
from robotrl.transforms import TransformGroup

INF = float("inf")
PICTURE_SPEC = {
    "joints": OBSERVATION_SPEC["joints"],
    "image_top": Spec((10, 12, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"),
    "tip": OBSERVATION_SPEC["tip"],
}
LAYERS = tuple(f"layer_{index}" for index in range(10))
MAP_SPEC = {
    **PICTURE_SPEC,
    "image_top": Spec((10, 12, 10), LAYERS, ("1",) * 10, (0.0,) * 10, (255.0,) * 10, "uint8"),
}
"""A picture of ten layers, as a map in bird's-eye view has."""
SET_SPEC = {
    **OBSERVATION_SPEC,
    "others": Spec((3, 4), tuple("abcd"), ("m",) * 4, (-INF,) * 4, (INF,) * 4),
    "others_mask": Spec((3,), tuple("abc"), ("1",) * 3, (0.0,) * 3, (1.0,) * 3),
}
"""A list of rows, with what says which of them are there."""
CHOICE_SPEC = Spec((2,), ("gear", "lamp"), ("1",) * 2, (0.0, 0.0), (3.0, 1.0), choices=(4, 2))
"""An action whose elements are choices, not equally many."""
SMALL: dict[str, tuple[int, ...]] = {
    "mlp": (32, 32),
    "residual": (32, 32, 32),
    "unet": (16, 24),
    "transformer": (16, 16),
}
"""Widths for each network."""
BASES: dict[str, Any] = {
    "flow": FlowCfg(horizon=3),
    "diffusion": DiffusionCfg(horizon=3),
    "shortcut": ShortcutCfg(horizon=3),
}
PICTURES: dict[str, Any] = {"image_channels": (4, 8), "image_features": 6}
GENERATIVE: dict[str, Any] = {
    (kind if network == "mlp" else f"{kind}-{network}"): replace(base, network=network, hidden=SMALL[network])
    for kind, base in BASES.items()
    for network in NETWORKS
} | {
    "flow-one-step": FlowCfg(horizon=1, denoising_steps=1, hidden=(16,)),
    "diffusion-all-levels": DiffusionCfg(horizon=1, denoising_steps=20, hidden=(16,)),
    "shortcut-one-step": ShortcutCfg(horizon=1, denoising_steps=1, hidden=(16,)),
}
CFGS: dict[str, Any] = {
    **GENERATIVE,
    "gaussian": GaussianCfg(horizon=3, hidden=(32, 32)),
    "gaussian-one-action": GaussianCfg(horizon=1, hidden=(16,)),
    "squashed": SquashedCfg(horizon=3, hidden=(32, 32)),
    "squashed-one-action": SquashedCfg(horizon=1, hidden=(16,)),
    **{f"{kind}-picture": replace(base, hidden=(32, 32), **PICTURES) for kind, base in BASES.items()},
    "gaussian-picture": GaussianCfg(horizon=3, hidden=(32, 32), **PICTURES, image_pool="softmax"),
    "beta": BetaCfg(horizon=3, hidden=(32, 32)),
    "beta-one-action": BetaCfg(horizon=1, hidden=(16,)),
    "categorical": CategoricalCfg(horizon=3, hidden=(32, 32)),
    "categorical-one-action": CategoricalCfg(horizon=1, hidden=(16,)),
    "categorical-picture": CategoricalCfg(horizon=3, hidden=(32, 32), **PICTURES),
    "gaussian-set": GaussianCfg(horizon=3, hidden=(32, 32), set_features=8),
    "flow-attention-set": FlowCfg(horizon=3, hidden=(32, 32), set_features=8, set_attention=2),
    "diffusion-attention-set": DiffusionCfg(horizon=3, hidden=(32, 32), set_features=8, set_attention=1),
    "reranked": RerankedCfg(candidates=4, width=16, rounds=1),
    "reranked-attention-set": RerankedCfg(candidates=3, width=16),
    "best-of": BestOfCfg(candidates=4, num_critics=2, critic_hidden=(16,)),
    "conditioned-gaussian": ConditionedCfg(hidden=(16,)),
    "conditioned-flow": ConditionedCfg(hidden=(16,), guidance=1.5),
    "conditioned-diffusion": ConditionedCfg(hidden=(16,)),
    "residual": ResidualPolicyCfg(candidates=4, num_critics=2, critic_hidden=(16,), hidden=(16,)),
    "step-residual": StepResidualCfg(hidden=(16,)),
    "path-speed": PathSpeedCfg(hidden=(32, 32), modes=3, points=4),
    "path-speed-apart": PathSpeedCfg(hidden=(32, 32), modes=3, points=4, aligned=False),
    "path-speed-set": PathSpeedCfg(hidden=(32, 32), modes=3, points=4, set_features=8),
    "beta-map": BetaCfg(horizon=3, hidden=(32, 32), **PICTURES, image_norm="layer"),
}
"""One row for each kind, network and edge; the tests of every policy run on each."""

RECURRENT: dict[str, Any] = {
    "recurrent": RecurrentCfg(horizon=3, memory=6, hidden=(32, 32)),
    "recurrent-picture": RecurrentCfg(memory=6, hidden=(16,), **PICTURES),
    "recurrent-set": RecurrentCfg(memory=6, hidden=(16,), set_features=8),
    "recurrent-beta": RecurrentBetaCfg(memory=6, hidden=(16,)),
    "recurrent-categorical": RecurrentCategoricalCfg(memory=6, hidden=(16,)),
}
"""Policies with memory, which have no `encode`."""


PLAIN = ("flow", "flow-one-step", "shortcut", "gaussian", "gaussian-one-action")
"""Vectors and an MLP: every weight acts on what comes out, not normalised away, not clipped."""


def build_policy(name: str) -> Any:
    specs = {"picture": PICTURE_SPEC, "map": MAP_SPEC, "set": SET_SPEC}.get(name.rpartition("-")[2], OBSERVATION_SPEC)
    cfg = (CFGS | RECURRENT)[name]
    if "categorical" in name:
        return cfg.build(specs, CHOICE_SPEC, TransformGroup(TRANSFORMS.inputs))
    if name.startswith("best-of"):
        return cfg.build(build_policy(name.replace("best-of", "flow")))
    if name.startswith("conditioned-"):
        return cfg.build(build_policy(name.removeprefix("conditioned-")))
    if name.startswith("residual"):
        return cfg.build(build_policy(name.replace("residual", "flow")))
    if name.startswith("step-residual"):
        return cfg.build(build_policy(name.replace("step-residual", "flow")))
    if name.startswith("reranked"):
        return cfg.build(build_policy(name.replace("reranked", "flow")))
    return cfg.build(specs, ACTION_SPEC, TRANSFORMS)


def make_policy(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build_policy(name)


def observations(batch: int, seed: int = 1, policy: Any = None) -> dict[str, Tensor]:
    """Rows near the training data of `TRANSFORMS`, with pictures if the policy sees them."""
    generator = torch.Generator().manual_seed(seed)
    obs = {
        "joints": torch.randn((batch, 3), generator=generator) * torch.tensor([0.5, 1.0, 2.0]),
        "tip": torch.randn((batch, 2), generator=generator) * 0.05,
    }
    if policy is not None and "image_top" in policy.observation_spec:
        shape = (batch, *policy.observation_spec["image_top"].shape)
        obs["image_top"] = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    if policy is not None and "others" in policy.observation_spec:
        obs["others"] = torch.randn((batch, 3, 4), generator=generator)
        obs["others_mask"] = (torch.arange(3) <= torch.arange(batch)[:, None] % 4 - 1).float()
    return obs
