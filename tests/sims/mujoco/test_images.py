"""Pictures as observations, and the one interface to all renderers."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import robotrl
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import sim_options
from robotrl.sims.interop import GymnasiumEnv, GymnasiumVectorEnv
from robotrl.spec import Spec
from tests.kits.paths_kit import ROOT

NAMES = ("flat_top", "flat_side")
KEYS = tuple(f"image_{name}" for name in NAMES)
SIZE = 24


def make(num_envs: int, image: Any = NAMES, **options: Any) -> Any:
    return robotrl.make_sim("mujoco/peg-insert", num_envs=num_envs, seed=0, image=image, image_size=SIZE, **options)


def actions(sim: Any, steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand((steps, sim.num_envs, 4), generator=generator) * 2 - 1


def drawn(sim: Any) -> dict[str, np.ndarray]:
    return {f"image_{name}": sim.render(range(sim.num_envs), name, SIZE, SIZE) for name in NAMES}


def assert_shows_the_state(sim: Any, obs: dict[str, torch.Tensor]) -> None:
    for key, pictures in drawn(sim).items():
        assert np.array_equal(obs[key].numpy(), pictures), key


def test_observations_hold_the_picture_of_each_state_and_final_ones_that_of_the_last() -> None:
    sim, endless = make(5, limit_s=0.5), make(5, limit_s=60.0)
    assert sim.observation_spec["image_flat_top"] == Spec(
        (SIZE, SIZE, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"
    )
    obs = sim.reset()
    endless.reset()
    assert set(obs) == {"state", *KEYS}
    assert_shows_the_state(sim, obs)
    assert len({obs["image_flat_side"][env].numpy().tobytes() for env in range(5)}) == 5
    for step, action in enumerate(actions(sim, 10), start=1):
        out, other = sim.step(action), endless.step(action)
        assert_shows_the_state(endless, other.obs)
        assert_shows_the_state(sim, out.obs)  # of the new episode, where one ended
        assert len(out.final_ids) == (5 if step == 10 else 0)
    for key in KEYS:
        assert torch.equal(out.final_obs[key], other.obs[key])
        assert not torch.equal(out.final_obs[key], out.obs[key])


def test_only_the_rows_that_ended_show_a_new_start() -> None:
    sim = make(4, limit_s=0.5)
    sim.reset(options={"stagger": True})
    ended = 0
    for action in actions(sim, 12):
        out = sim.step(action)
        assert_shows_the_state(sim, out.obs)
        ended += len(out.final_ids)
        for row, env in enumerate(out.final_ids.tolist()):
            assert not torch.equal(out.final_obs["image_flat_side"][row], out.obs["image_flat_side"][env])
    assert 0 < ended < 48


def test_pictures_change_nothing_else_and_are_restored_exactly() -> None:
    with_pictures, without = make(4), make(4, image=())
    assert set(without.reset()) == {"state"}
    with_pictures.reset()
    for action in actions(without, 20):
        assert torch.equal(with_pictures.step(action).obs["state"], without.step(action).obs["state"])
    state = with_pictures.get_state()
    assert not any("image" in key for key in state)
    then = {key: value.clone() for key, value in with_pictures.step(actions(without, 1)[0]).obs.items()}
    fresh = make(4)
    fresh.reset(seed=9)
    assert_shows_the_state(fresh, fresh.set_state(state))
    now = fresh.step(actions(without, 1)[0]).obs
    for key in then:
        assert torch.equal(then[key], now[key]), key


def test_given_coordinates_are_drawn() -> None:
    sim = make(2)
    sim.reset()
    qpos = sim.core.physics.batch.bind("qpos").copy()
    qpos[:, 0] += 0.5
    before = sim.core.obs["image_flat_top"].copy()
    obs = sim.reset(options={"qpos": qpos})
    assert_shows_the_state(sim, obs)
    assert not np.array_equal(before, obs["image_flat_top"].numpy())


def test_any_renderer_can_fill_observations() -> None:
    sim = make(2, image="front")
    obs = sim.reset()
    assert np.array_equal(obs["image_front"].numpy(), sim.render([0, 1], "front", SIZE, SIZE))
    flat = make(2, image="flat_top", image_renderer="ray")
    obs = flat.reset()
    assert np.array_equal(obs["image_flat_top"].numpy(), flat.render([0, 1], "flat_top", SIZE, SIZE, renderer="ray"))


def test_a_flat_view_shows_the_same_scene_by_rays() -> None:
    sim = make(2)
    sim.reset()
    rays = sim.render([1, 0], "flat_side", 96, 96, renderer="ray").astype(int)
    flat = sim.render([1, 0], "flat_side", 96, 96, renderer="raster").astype(int)
    for env in range(2):
        # the peg is orange in both, at the same place
        both = [(image[..., 0] - image[..., 2] > 60) for image in (rays[env], flat[env])]
        assert both[0].sum() > 20
        assert (both[0] != both[1]).sum() <= 0.35 * both[0].sum()  # edges
        rows, columns = zip(*(np.nonzero(mask) for mask in both), strict=True)
        assert abs(rows[0].mean() - rows[1].mean()) < 0.6
        assert abs(columns[0].mean() - columns[1].mean()) < 0.6


def test_gymnasium_views_pass_the_checkers() -> None:
    sim = make(1, limit_s=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # unbounded velocities, no entry in Gymnasium's registry; pictures smaller than what a well-known network takes
        warnings.filterwarnings("ignore", message="(?s).*(infinity|not having a spec|minimal resolution)")
        check_env(GymnasiumEnv(sim))
        sb3_check_env(GymnasiumEnv(make(1, limit_s=0.5)))
    env = GymnasiumVectorEnv(make(3, limit_s=0.5))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert env.single_observation_space["image_flat_top"].dtype == np.uint8
    for _ in range(10):
        obs, *_, infos = env.step(np.zeros((3, 4), np.float32))
    assert infos["final_obs"][2]["image_flat_side"].shape == (SIZE, SIZE, 3)


def test_the_options_are_part_of_each_config() -> None:
    assert {"image", "image_size", "image_renderer"} <= set(vars(sim_options("mujoco/peg-insert")))
    with pytest.raises(ConfigError, match="did you mean 'image_size'"):
        robotrl.make_sim("mujoco/peg-insert", num_envs=1, image_sise=3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"image": ("flat_tob",)}, ConfigError, "camera 'flat_tob' is unknown: did you mean 'flat_top'"),
        ({"image": ("flat_top", "flat_top")}, ConfigError, "image is .*: expected each camera once"),
        ({"image_size": 4}, ConfigError, "image_size is 4: expected a whole number of pixels from 8 to 512"),
        ({"image_size": 64.0}, ConfigError, "image_size is 64.0: expected a whole number"),
        ({"image_renderer": "rastr"}, ConfigError, "renderer 'rastr' is unknown: did you mean 'raster'"),
        ({"image": "front", "image_renderer": "raster"}, CapabilityError, "expected flat_top, flat_side"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        robotrl.make_sim("mujoco/peg-insert", num_envs=1, **({"image": NAMES} | options))


def test_mujocos_renderer_draws_or_says_what_is_missing() -> None:
    sim = make(2)
    sim.reset()
    try:
        front = sim.render([1, 0, 1], "front", 64, 48, renderer="mujoco").astype(int)
    except CapabilityError as error:
        text = str(error)
        assert "\n" not in text
        for word in ("renderer 'mujoco' needs OpenGL", "MUJOCO_GL=egl", "MUJOCO_GL=osmesa", "'raster'"):
            assert word in text
        assert sim.render([0], "front", 8, 8).shape == (1, 8, 8, 3)  # and the others still draw
        return
    assert front.shape == (3, 48, 64, 3)
    assert np.array_equal(front[0], front[2]) and not np.array_equal(front[0], front[1])
    # the orange peg is where the other renderers have it
    for camera in ("front", "flat_side"):
        found = []
        for renderer in ("mujoco", "auto"):
            image = sim.render([0], camera, 64, 64, renderer=renderer)[0].astype(int)
            found.append(np.argwhere(image[..., 0] > 2 * image[..., 2] + 10).mean(axis=0))
        assert np.abs(found[0] - found[1]).max() < 1.5, camera


def test_the_code_of_the_page_runs() -> None:
    page = ROOT / "docs" / "cameras.md"
    names: dict[str, Any] = {}
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 3
    for code in found:
        exec(compile(code, str(page), "exec"), names)
    assert (page.parent / "images" / "cameras.png").stat().st_size < 100_000


@pytest.mark.parametrize("name", ["mujoco/hopper", "mujoco/ant"])
def test_a_walker_is_followed_and_walks_as_without_pictures(name: str) -> None:
    sim = robotrl.make_sim(name, num_envs=2, image="track", image_size=SIZE)
    blind = robotrl.make_sim(name, num_envs=2)
    sim.reset()
    blind.reset()
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        action = 0.4 * torch.rand((2, *sim.action_spec.shape), generator=generator)
        seen, other = sim.step(action).obs, blind.step(action).obs
        assert all(torch.equal(seen[key], value) for key, value in other.items())
    assert np.array_equal(seen["image_track"].numpy(), sim.render([0, 1], "track", SIZE, SIZE))
