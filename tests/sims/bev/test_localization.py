"""Errors of localization: their size and duration, what they displace, and what they leave true."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError
from robotrl.sims.driving.render import localization
from robotrl.sims.driving.render.vectors import LENGTH, OFFSET, ROUTE_AT, SHORT, SIGHT_M, SPEED

NOISE = {"pose_noise_m": 0.5, "heading_noise_deg": 2.0, "speed_noise_mps": 0.4}
ENVS = 16


def make(envs: int = ENVS, **options: Any) -> Any:
    return robotrl.make_sim("bev/drive", num_envs=envs, seed=1, threads=1, **options)


def ids(split_start: int, count: int = ENVS) -> dict[str, Any]:
    return {"state_ids": list(range(split_start, split_start + count))}


def test_errors_are_normal_and_independent_after_their_time() -> None:
    seeds = range(4000)
    now = np.array([localization.error(s, localization.ASIDE, 0.35, 1.0) for s in seeds])
    soon = np.array([localization.error(s, localization.ASIDE, 0.45, 1.0) for s in seeds])
    later = np.array([localization.error(s, localization.ASIDE, 2.35, 1.0) for s in seeds])
    along = np.array([localization.error(s, localization.ALONG, 0.35, 1.0) for s in seeds])
    # standard error of a standard deviation of 4,000 draws: 0.011
    assert now.std() == pytest.approx(1.0, abs=0.045) and abs(now.mean()) < 0.065
    # weights cos and sin of 0.35 and 0.45 quarter turns: correlation cos(0.1 quarter turns)
    assert np.corrcoef(now, soon)[0, 1] == pytest.approx(math.cos(0.05 * math.pi), abs=0.005)
    assert abs(np.corrcoef(now, later)[0, 1]) < 0.065 and abs(np.corrcoef(now, along)[0, 1]) < 0.065
    # a normal number is beyond two standard deviations in 4.55 % of the draws
    assert (np.abs(now) > 2.0).mean() == pytest.approx(0.0455, abs=0.014)


def test_route_and_speed_are_displaced_as_told_and_the_world_is_not() -> None:
    plain, noisy = make(64), make(64, **NOISE)
    true, seen = plain.reset(options=ids(0, 64)), noisy.reset(options=ids(0, 64))
    offsets, speeds, headings, lines = [], [], [], 0
    names = plain.observation_spec["scalars"].names
    closing = [names.index(name) for name in names if name.endswith("_closing")]
    red, stop, closed = (names.index(name) for name in ("light_red", "stop_line_distance", "way_closed_distance"))
    for _ in range(60):
        actions = torch.zeros(64, 2)
        one, two = plain.step(actions), noisy.step(actions)
        true, seen = one.obs, two.obs
        # the world, what the critic knows, and road users relative to the ego stay true
        assert torch.equal(one.reward, two.reward) and torch.equal(one.terminated, two.terminated)
        for key in ("agents", "agents_mask", "privileged"):
            assert torch.equal(true[key], seen[key]), key
        gap = (seen["scalars"] - true["scalars"]).double()
        offsets.append(gap[:, 5] * OFFSET)
        moving = true["scalars"][:, 0] > 0.3
        speeds.append(gap[moving, 0] * SPEED)
        headings.append(gap[:, 6])
        assert torch.equal(seen["scalars"][:, 24:26], true["scalars"][:, 24:26])
        # closing speeds are those of the measured speed
        for k in closing:
            there = true["scalars"][:, k] != 0
            turned = -1.0 if "behind" in names[k] else 1.0
            wanted = turned * gap[there, 0] * SPEED / SHORT
            assert torch.allclose(gap[there, k], wanted, atol=1e-5), names[k]
        # a red light's line is where the map has it
        shut = (true["scalars"][:, red] > 0) & (true["scalars"][:, closed].abs() < 0.8) & (gap[:, red] == 0)
        shut &= (true["scalars"][:, closed] * 40.0 - true["scalars"][:, stop] * SIGHT_M).abs() < 0.4
        # it has not passed it by its own belief
        shut &= (gap[:, stop] * SIGHT_M).abs() < 3.0
        assert torch.allclose(gap[shut, closed] * 40.0, gap[shut, stop] * SIGHT_M, atol=1e-3)
        lines += int(shut.sum())
    assert lines > 0
    # 64 envs, 7 independent values each
    assert torch.cat(offsets).std().item() == pytest.approx(0.5, rel=0.12)
    assert torch.cat(speeds).std().item() == pytest.approx(0.4, rel=0.12)
    assert math.degrees(torch.cat(headings).std().item()) == pytest.approx(2.0, rel=0.12)
    plain.close()
    noisy.close()


def test_route_points_move_with_the_pose() -> None:
    """Points of the route in the ego's frame are those of an ego at the displaced pose."""
    sim = make(**NOISE)
    obs = sim.reset(options=ids(0))
    core = sim.core
    for e in range(ENVS):
        seen = core.world.localized[e]
        route = core.bank.arrays.routes[core.world.episodes["route"][e]]
        for k, ahead_m in enumerate(ROUTE_AT):
            at = min(seen["index"] + ahead_m, route["count"] - 1)
            point = core.bank.arrays.route_points[route["first"] + at]
            dx, dy = point["x"] - seen["x"], point["y"] - seen["y"]
            ahead = dx * math.cos(seen["yaw"]) + dy * math.sin(seen["yaw"])
            left = dy * math.cos(seen["yaw"]) - dx * math.sin(seen["yaw"])
            row = obs["route"][e, k].numpy()
            assert row[0] * LENGTH == pytest.approx(ahead, abs=1e-3)
            assert row[1] * SHORT == pytest.approx(left, abs=1e-3)
    sim.close()


def test_the_raster_shows_roads_displaced_and_vehicles_true() -> None:
    options = {"obs": "raster", "raster_pixels": 64}
    plain, noisy = make(**options), make(**options, **NOISE)
    true, seen = plain.reset(options=ids(0))["bev"], noisy.reset(options=ids(0))["bev"]
    names = list(plain.observation_spec["bev"].names)
    vehicles, road = names.index("vehicles"), names.index("road")
    # parked cars and road users alike; lines of their speed lie in the same channel
    assert torch.equal(true[..., vehicles], seen[..., vehicles])
    moved = (true[..., road] != seen[..., road]).float().mean().item()
    assert 0.002 < moved < 0.2
    assert np.array_equal(plain.render([0, 1], "top", 64, 64), noisy.render([0, 1], "top", 64, 64))
    plain.close()
    noisy.close()


def test_errors_follow_from_the_start_alone() -> None:
    many, one = make(**NOISE), make(1, **NOISE)
    all_obs = many.reset(options=ids(40))
    for e in (0, 5):
        obs = one.reset(options=ids(40 + e, 1))
        assert torch.equal(obs["scalars"][0], all_obs["scalars"][e])
    state = many.get_state()
    many.step(torch.zeros(ENVS, 2))
    again = many.set_state(state)
    assert all(torch.equal(again[key], all_obs[key]) for key in again)
    many.close()
    one.close()


@pytest.mark.parametrize(
    ("option", "value"),
    [("pose_noise_m", -0.1), ("heading_noise_deg", 31.0), ("speed_noise_mps", math.nan), ("pose_noise_s", 0.0)],
)
def test_values_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{option} is {value}"):
        make(**{option: value})
