"""Paths and speeds: candidates by hand, alignment, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.path_speed import PathSpeedCfg, PathSpeedPolicy
from robotrl.sims.driving.plan import actions_of
from robotrl.spec import HasKeyedNoise, HasScoredCandidates, Policy, Spec
from robotrl.testing.policies import OBSERVATION_SPEC
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from tests.kits.policy_kit import CHOICE_SPEC, observations
from tests.kits.refusals import raises_naming

CFG = PathSpeedCfg(hidden=(16, 16), modes=3, points=12)
TRAJECTORY = actions_of("trajectory", None, 4).spec


def policy(cfg: PathSpeedCfg = CFG, action: Spec = TRAJECTORY) -> PathSpeedPolicy:
    torch.manual_seed(0)
    outputs = (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high))
    return cfg.build(OBSERVATION_SPEC, action, TransformGroup((), outputs))


def straightened(made: PathSpeedPolicy) -> PathSpeedPolicy:
    """The policy with straight paths alone."""
    with torch.no_grad():
        made.paths_head.weight.zero_()
        made.paths_head.bias.zero_()
    return made


def test_it_is_a_policy_with_candidates() -> None:
    made = policy()
    assert isinstance(made, Policy) and isinstance(made, HasScoredCandidates) and isinstance(made, HasKeyedNoise)
    assert made.noise_shape is None


@torch.no_grad()
def test_candidates_of_a_straight_path_are_at_speed_times_time() -> None:
    made = straightened(policy())
    chunks, logits = made.candidates(observations(2))
    assert chunks.shape == (2, 3 * 13, 1, 8)
    assert torch.allclose(logits.exp().sum(1), torch.ones(2), atol=1e-5)
    actions = made.to_actions(chunks).view(2, 3, 13, 4, 2)
    times = torch.tensor([0.5, 1.0, 1.5, 2.0])
    for speed in range(13):
        assert torch.allclose(actions[:, :, speed, :, 0], (speed * times).expand(2, 3, 4), atol=1e-4)
    assert actions[..., 1].abs().max() < 1e-5


@torch.no_grad()
def test_the_most_probable_speed_of_the_most_probable_path_is_deployed() -> None:
    made = straightened(policy())
    made.modes_head.bias[1] += 50.0
    made.speed_head.layers[-1].bias[7] += 50.0
    found = made.deploy(observations(4), None).actions
    assert torch.allclose(found[:, 0, ::2], torch.tensor([3.5, 7.0, 10.5, 14.0]).expand(4, 4), atol=1e-4)
    sampled = made.act(observations(4), None, torch.Generator().manual_seed(0), "sample").chunk
    assert torch.allclose(sampled, found, atol=1e-4)


@torch.no_grad()
def test_speeds_depend_on_the_path_that_they_are_for_only_if_aligned() -> None:
    for aligned in (True, False):
        made = policy(replace(CFG, aligned=aligned))
        paths = made.paths(made.encode(observations(4)))
        one, other = (made.speed_logits(paths.features, turns) for turns in (paths.turns, paths.turns + 0.2))
        assert one.shape == (4, 3, 13)
        assert torch.equal(one, other) != aligned
        assert torch.allclose(one[:, 1], made.speed_logits(paths.features, paths.turns[:, 1]), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"horizon": 2}, "policy.horizon", 2),
        ({"modes": 0}, "policy.modes", 0),
        ({"points": 1}, "policy.points", 1),
        ({"classes": 1}, "policy.classes", 1),
        ({"spacing_m": 0.0}, "policy.spacing_m", 0.0),
        ({"class_mps": -1.0}, "policy.class_mps", -1.0),
        ({"point_dt_s": 0.0}, "policy.point_dt_s", 0.0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changes: dict[str, Any], field: str, value: object) -> None:
    with raises_naming(ConfigError, field, value):
        policy(replace(CFG, **changes))


def test_actions_that_are_no_points_are_refused() -> None:
    odd = Spec((3,), ("x", "y", "z"), ("m",) * 3, (0.0,) * 3, (1.0,) * 3)
    with raises_naming(ConfigError, "action", 3, nearest="trajectory"):
        policy(action=odd)
    with raises_naming(CapabilityError, "PathSpeedPolicy", "CategoricalPolicy"):
        CFG.build(OBSERVATION_SPEC, CHOICE_SPEC, TransformGroup(()))
