"""`bev/warp`: replayed scenes are those of the log, deviation truncates and is no failure, others replay or react."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError
from robotrl.sims.driving import tables
from robotrl.sims.driving.logs.layout import read_log
from robotrl.sims.driving.logs.record import RecordedFrames, record_drives
from robotrl.sims.driving.render import raster
from robotrl.sims.warp.steps import efficiency, progress_ratio
from robotrl.spec import cut
from tests.kits.warp_kit import MARGIN_M, STEPS, ground, pixel_positions, small_log, write_log

PIXELS = 32
VIEW = raster.RasterCfg(PIXELS, PIXELS)


def make(num_envs: int = 1, **options: Any) -> Any:
    given = {"log": small_log(), "raster_pixels": PIXELS} if "log" not in options else {}
    return robotrl.make_sim("bev/warp", **{"num_envs": num_envs, "threads": 1, **given, **options})


def at_start(sim: Any, split: Any = "train", place: int = 0) -> Any:
    """Reset all envs to one start of a split; returns the observations."""
    return sim.reset(options={"state_ids": [sim.state_ids(split)[place]] * sim.num_envs})


def drive(sim: Any, steer: float = 0.0, accel: float = 0.0) -> Any:
    action = torch.tensor([[steer, accel]], dtype=torch.float32)
    return sim.step(action.expand(sim.num_envs, 2).contiguous())


def until_end(sim: Any, steer: float = 0.0, accel: float = 0.0) -> tuple[Any, set[str], int]:
    """Last step, events and number of steps of an episode under one action."""
    for count in range(1, 500):
        out = drive(sim, steer, accel)
        if len(out.final_ids):
            bits = int(out.info["events"][0])
            return out, {name for name, bit in tables.EVENTS.items() if bits & bit}, count
    raise AssertionError("no episode ended in 500 steps")


def put(sim: Any, **values: float) -> Any:
    """Set fields of all egos, and return the observations there."""
    state = {key: value.copy() for key, value in sim.get_state().items()}
    for name, value in values.items():
        state[f"egos/{name}"][:] = value
    if "yaw" in values:
        state["egos/cos"][:], state["egos/sin"][:] = math.cos(values["yaw"]), math.sin(values["yaw"])
    return sim.set_state(state)


# frames


def expected_bits(pose: tuple[float, float, float]) -> np.ndarray:
    """Pattern on the ground that a view from a pose shows."""
    from robotrl.sims.driving.logs.layout import FrameCfg

    cfg = FrameCfg("raster", (), 2.0, PIXELS * (1.0 - VIEW.behind), PIXELS / 2)
    return ground(*pixel_positions(cfg, PIXELS, PIXELS, pose))


@pytest.mark.parametrize(
    ("ahead", "left", "turn"), [(0.0, 0.0, 0.0), (2.0, -1.5, 0.0), (0.0, 3.0, 0.3), (-3.0, 0.0, -0.5)]
)
def test_warped_frame_is_what_the_ego_would_see(ahead: float, left: float, turn: float) -> None:
    """Bits of the ground, seen from beside the logged pose; pixels at the edges of its squares may differ."""
    sim = make(obs="raster", raster_pixels=PIXELS, packed=True)
    at_start(sim)
    pose = sim.core.arrays.poses[0]
    x = pose[0] + ahead * math.cos(pose[2]) - left * math.sin(pose[2])
    y = pose[1] + ahead * math.sin(pose[2]) + left * math.cos(pose[2])
    obs = put(sim, x=x, y=y, yaw=pose[2] + turn, v=0.0)
    seen = obs["bev"][0].numpy().view(np.uint16)[..., 0]
    mask = obs["bev_mask"][0, ..., 0].numpy() == 255
    car = (seen & raster.VEHICLE) != (expected_bits((x, y, pose[2] + turn)) & raster.VEHICLE)
    same = seen == expected_bits((x, y, pose[2] + turn))
    # the ego's own box lies on the ground
    own = np.zeros((PIXELS, PIXELS), bool)
    row, column = round(PIXELS * (1.0 - VIEW.behind)), PIXELS // 2
    own[row - 6 : row + 6, column - 3 : column + 3] = True
    assert (same | own)[mask].mean() > 0.85
    assert mask.mean() > 0.9
    assert (seen[~mask & ~own] == 0).all()
    assert not (car & ~own & same).any()


def test_own_pose_shows_the_logged_frame_exactly_with_the_ego_in_it() -> None:
    sim = make(obs="raster", raster_pixels=PIXELS, packed=True)
    obs = at_start(sim)
    seen = obs["bev"][0].numpy().view(np.uint16)[..., 0]
    margin = round(MARGIN_M * 2.0)
    logged = sim.core.log.frames[0][margin : margin + PIXELS, margin : margin + PIXELS]
    drawn = seen != logged
    assert (obs["bev_mask"] == 255).all()
    assert 0 < drawn.sum() < 150
    assert ((seen ^ logged)[drawn] & ~np.uint16(raster.VEHICLE | raster.MOTION) == 0).all()
    # the ego is 4.7 by 1.9 m, around its center
    rows, columns = np.nonzero((seen & ~logged & raster.VEHICLE) > 0)
    assert PIXELS * (1.0 - VIEW.behind) - 5.5 < rows.min() and rows.max() < PIXELS * (1.0 - VIEW.behind) + 5.5
    assert columns.min() >= PIXELS // 2 - 2 and columns.max() <= PIXELS // 2 + 1


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of four drives of `bev/drive`."""
    path = tmp_path_factory.mktemp("drives") / "log"
    sim = robotrl.make_sim("bev/drive", num_envs=4, seed=0, threads=1, obs="none", scenarios=("straight", "signal"))
    report = record_drives(sim, path, {"train": 4}, RecordedFrames(pixels=48, margin_m=8.0))
    sim.close()
    assert report.clips["train"] >= 3 and report.tried == 4
    return path


def test_recorded_start_looks_as_it_did(drives: Path) -> None:
    """The picture, bit for bit, and nearly all numbers, of each recorded start."""
    log = read_log(drives)
    options = {"raster_pixels": 48, "obs": "both", "threads": 1}
    count = len(log.meta.clips)
    there = robotrl.make_sim("bev/drive", num_envs=count, agents=32, scenarios=("straight", "signal"), **options)
    ids = [int(clip.name.removeprefix("train-")) for clip in log.meta.clips]
    then = {key: value.clone() for key, value in there.reset(options={"state_ids": ids}).items()}
    sim = make(count, log=str(drives), **options)
    now = sim.reset(options={"state_ids": list(range(count))})
    assert torch.equal(now["bev"], then["bev"])
    assert (now["bev_mask"] == 255).all()
    for key in ("route", "agents", "agents_mask", "scalars"):
        assert (now[key] - then[key]).abs().mean() < 0.02, key
    assert [sim.scenario_of(k) for k in range(count)] == [there.scenario_of(i) for i in ids]
    # and so do its lights
    lights = [there.observation_spec["scalars"].names.index(name) for name in ("light_green", "light_red")]
    assert torch.equal(now["scalars"][:, lights], then["scalars"][:, lights])


def test_driver_of_the_log_drives_it_again(drives: Path) -> None:
    """It stays on the logged ways; where it draws the style that was recorded, it also drives as fast as then."""
    count = len(read_log(drives).meta.clips)
    as_logged = np.zeros(count, bool)
    for mode in ("calm", "brisk"):
        sim = make(count, log=str(drives), raster_pixels=48, obs="raster")
        sim.reset(options={"state_ids": list(range(count))})
        expert = sim.make_expert(mode=mode, seed=0)
        started, waiting = torch.ones(count, dtype=torch.bool), np.ones(count, bool)
        farthest = np.zeros(count)
        while waiting.any():
            out = sim.step(expert.act(started))
            started = out.terminated | out.truncated
            farthest = np.maximum(farthest, np.where(waiting, out.info["deviation_m"].numpy(), 0.0))
            ended = started.numpy() & waiting
            success, ratio = out.info["success"].numpy(), out.info["progress_ratio"].numpy()
            as_logged |= ended & success & (np.abs(ratio - 1.0) < 1e-3)
            waiting &= ~ended
        assert farthest.max() < 0.05
    assert as_logged.any()


# deviation and the end of a log


@pytest.mark.parametrize(
    ("options", "steer"),
    [({"max_aside_m": 1.0}, 0.3), ({"max_aside_m": 100.0, "max_turned_deg": 20.0}, 0.5)],
)
def test_deviation_truncates_and_is_never_a_failure(options: dict[str, Any], steer: float) -> None:
    for reward in ("carl", "roach", "sequence"):
        sim = make(reward=reward, obs="vector", **options)
        at_start(sim)
        out, events, count = until_end(sim, steer)
        assert events == {"deviation"}
        assert out.truncated.tolist() == [True] and out.terminated.tolist() == [False]
        assert out.info["success"].tolist() == [False]
        assert cut(out).tolist() == [True]
        assert sim.terms["end"].tolist() == [0.0]
        assert count < STEPS
        # what is bootstrapped from
        assert set(out.final_obs) == set(sim.observation_spec) and len(out.final_obs["scalars"]) == 1


@pytest.mark.parametrize(("rows", "columns"), [(48, 48), (30, 48), (48, 31), (3, 48)])
def test_an_ego_on_its_log_sees_all_of_a_frame_of_any_shape(rows: int, columns: int, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "channels", names=("a", "b", "c"), clips=(("train", 1),))
    frames = np.load(path / "frames.npy")[:, -rows:, -columns:]
    np.save(path / "frames.npy", np.ascontiguousarray(frames))
    index = json.loads((path / "log.json").read_text())
    index["frames"]["ego_row"] -= 64 - rows
    index["frames"]["ego_column"] -= 64 - columns
    (path / "log.json").write_text(json.dumps(index))
    sim = make(log=str(path), obs="raster", min_covered=0.0)
    at_start(sim)
    assert float(sim.core.replays["covered"][0]) == 1.0
    # ahead of the log by a quarter of the height, it has lost that share of the view, less what the log drives on
    poses, height = sim.core.arrays.poses, rows / index["frames"]["pixels_per_m"]
    x, y, yaw = poses[0, :3]
    put(sim, x=x + 0.25 * height * math.cos(yaw), y=y + 0.25 * height * math.sin(yaw), v=0.0)
    drive(sim, 0.0, -1.0)
    lost = 0.25 - math.hypot(poses[1, 0] - x, poses[1, 1] - y) / height
    if rows > 3:
        assert float(sim.core.replays["covered"][0]) == pytest.approx(1.0 - lost, abs=0.5 / 10)


def test_leaving_the_frame_truncates() -> None:
    """The ego brakes and the logged one drives on: in the end too little of the view is known."""
    sim = make(obs="vector", min_covered=0.5, raster_pixels=PIXELS)
    at_start(sim)
    out, events, _ = until_end(sim, 0.0, -1.0)
    assert events == {"deviation"} and out.truncated[0]
    assert out.info["covered"][0] < 0.5
    # without frames only distances count
    far = make(obs="vector", log=small_log(None), max_apart_m=1000.0)
    at_start(far)
    out, events, count = until_end(far, 0.0, -1.0)
    assert events == {"log_ended"} and count == STEPS - 1


def test_deviation_outweighs_a_collision_in_the_same_step(tmp_path: Path) -> None:
    """Off the logged way nothing that is hit was ever there."""
    path = write_log(tmp_path / "log", None, clips=(("train", 1),), count=2)
    agents = np.load(path / "agents.npy")
    steps = np.load(path / "steps.npy")
    # a car that stands beside the way, where the ego comes to
    x, y, yaw = (float(steps[name][6]) for name in ("x", "y", "yaw"))
    agents["x"][:, 0], agents["y"][:, 0] = x + 2.2 * math.sin(yaw) + 5.5, y - 2.2 * math.cos(yaw)
    agents["speed"][:, 0], agents["yaw"][:, 0] = 0.0, 0.0
    np.save(path / "agents.npy", agents)
    sim = make(log=str(path), obs="none", max_aside_m=4.0)
    at_start(sim)
    _, events, count = until_end(sim, -0.2)
    assert "vehicle" in events and "deviation" not in events
    at_start(sim)
    for _ in range(count - 1):
        drive(sim, -0.2)
    state = sim.get_state()
    aside = float(np.abs(state["replays/aside"][0]))
    close = make(log=str(path), obs="none", max_aside_m=max(aside, 0.1))
    at_start(close)
    out, events, again = until_end(close, -0.2)
    assert again == count and events == {"deviation"}
    assert out.truncated[0] and not out.terminated[0] and close.terms["end"][0] == 0.0


def test_log_ends_the_episode_without_a_failure() -> None:
    sim = make(obs="vector", max_apart_m=1000.0, min_covered=0.0, max_aside_m=100.0, max_turned_deg=180.0)
    at_start(sim)
    out, events, count = until_end(sim, 0.0, -1.0)
    assert events == {"log_ended"} and count == STEPS - 1
    assert out.truncated[0] and not out.terminated[0] and not cut(out)[0]
    # a car that stays where it is has not succeeded
    assert not out.info["success"][0] and out.info["progress_ratio"][0] < 0.8


# other road users


def gap_ahead(sim: Any) -> np.ndarray:
    """Positions (slots, 2) of the other road users of env 0."""
    agents = sim.core.world.agents[0, 1:]
    return np.stack([agents["x"], agents["y"]], axis=1)


def test_others_replay_the_log() -> None:
    sim = make(obs="none")
    at_start(sim)
    for t in range(1, 30):
        drive(sim)
        logged = sim.core.log.agents[t]
        assert np.allclose(gap_ahead(sim), np.stack([logged["x"], logged["y"]], axis=1))
        assert np.allclose(sim.core.world.agents[0, 1:]["v"], logged["speed"])


def follower_log(tmp_path: Path) -> str:
    """A log in which a car follows the ego by 12 m, on its way."""
    path = write_log(tmp_path / "log", None, clips=(("train", 1),), count=2)
    steps, agents = np.load(path / "steps.npy"), np.load(path / "agents.npy")
    lag = 15
    for field in ("x", "y", "yaw"):
        values = np.concatenate([np.full(lag, steps[field][0]), steps[field]])[: len(steps)]
        if field == "x":
            # it comes from further back
            values[:lag] -= np.arange(lag, 0, -1) * 0.1 * steps["speed"][0]
        agents[field][:, 0] = values
    agents["speed"][:, 0] = steps["speed"][0]
    np.save(path / "agents.npy", agents)
    return str(path)


def test_reactive_follower_brakes_for_an_ego_that_brakes(tmp_path: Path) -> None:
    log = follower_log(tmp_path)
    options = {"log": log, "obs": "none", "max_apart_m": 1000.0}
    replay, reactive = make(**options), make(traffic="reactive", **options)
    ends = {}
    for name, sim in (("replay", replay), ("reactive", reactive)):
        at_start(sim)
        ends[name] = until_end(sim, 0.0, -1.0)
    # who replays drives into the ego that stands, who reacts does not
    assert ends["replay"][1] == {"vehicle"} and ends["replay"][2] < STEPS - 1
    assert ends["reactive"][1] == {"log_ended"}
    # the ego stood: it is not at fault
    assert not replay.core.drives[0].at_fault


def test_reactive_road_users_replay_while_the_ego_is_not_in_their_way() -> None:
    plain, reactive = make(obs="none"), make(obs="none", traffic="reactive")
    for sim in (plain, reactive):
        at_start(sim, place=2)
    for _ in range(40):
        drive(plain, 0.0, 0.1)
        drive(reactive, 0.0, 0.1)
        assert np.allclose(gap_ahead(plain), gap_ahead(reactive), atol=1e-3)


# the sequence reward


@pytest.mark.parametrize(
    ("ratio", "worth"), [(1.07, 1.0), (1.05, 1.0), (1.10, 1.0), (1.0, 0.95), (0.5, 0.45), (1.3, 0.8), (0.0, -0.05)]
)
def test_efficiency_is_1_for_a_little_more_progress_than_logged(ratio: float, worth: float) -> None:
    assert efficiency(ratio) == pytest.approx(worth)


def test_progress_ratio_bears_an_ego_that_stood() -> None:
    assert progress_ratio(50.0, 100.0) == pytest.approx(0.5)
    assert progress_ratio(0.0, 0.0) == 1.0
    assert progress_ratio(1.0, 0.0) == pytest.approx(1.2)


def test_rewards_add_up_to_the_sequence_reward() -> None:
    sim = make(obs="none", reward="sequence", min_covered=0.0, raster_pixels=PIXELS)
    at_start(sim)
    total = 0.0
    for _ in range(STEPS - 1):
        out = drive(sim, 0.0, 0.05)
        total += float(out.reward[0])
        assert total == pytest.approx(float(out.info["safety"][0] + out.info["efficiency"][0]), abs=1e-4)
        if len(out.final_ids):
            break
    assert len(out.final_ids)
    assert -3.0 <= float(out.info["safety"][0]) <= 0.0


@pytest.mark.parametrize(
    ("options", "steer", "accel", "event"),
    [
        ({"blocked_s": 1.0}, 0.0, -1.0, "blocked"),
        ({}, -0.3, 0.0, "off_road"),
        ({}, 0.0, 0.3, "red_light"),
    ],
)
def test_an_episode_that_fails_is_as_unsafe_as_after_a_collision(
    options: dict[str, Any], steer: float, accel: float, event: str, tmp_path: Path
) -> None:
    """Safety was its least value until then; the failure makes it -ttc_s, and the last step pays for it."""
    wide = {"max_aside_m": 100.0, "max_turned_deg": 180.0, "max_apart_m": 1000.0, "min_covered": 0.0}
    path = write_log(tmp_path / "log", None, clips=(("train", 1),))
    lights = np.load(path / "lights.npy")
    np.save(path / "lights.npy", np.full_like(lights, 2))  # red
    sim = make(obs="none", reward="sequence", log=str(path), **wide, **options)
    at_start(sim)
    before = None
    for _ in range(STEPS - 1):
        out = drive(sim, steer, accel)
        if len(out.final_ids):
            break
        before = (float(out.info["safety"][0]), float(out.info["efficiency"][0]))
    assert before is not None and before[0] > -3.0
    assert int(out.info["events"][0]) == tables.EVENTS[event] and out.terminated[0] and not cut(out)[0]
    assert float(out.info["safety"][0]) == -3.0
    changed = -3.0 - before[0] + float(out.info["efficiency"][0]) - before[1]
    assert float(out.reward[0]) == pytest.approx(changed, abs=1e-5)


def test_safety_looks_at_the_logged_future(tmp_path: Path) -> None:
    """A car that will cross in 2 s is seen now, although it stands still now."""
    path = write_log(tmp_path / "log", None, clips=(("train", 1),), count=2)
    steps, agents = np.load(path / "steps.npy"), np.load(path / "agents.npy")
    speed = float(steps["speed"][0])
    where = 2.0 * speed
    yaw = float(steps["yaw"][0])
    agents["x"][:, 0] = steps["x"][0] + where * math.cos(yaw)
    agents["y"][:, 0] = steps["y"][0] + where * math.sin(yaw) - 8.0
    # it jumps onto the way at step 15
    agents["y"][15:, 0] += 8.0
    agents["speed"][:, 0], agents["yaw"][:, 0] = 0.0, math.pi / 2
    np.save(path / "agents.npy", agents)
    sim = make(log=str(path), obs="none", reward="sequence")
    at_start(sim)
    out = drive(sim)
    boxes = (0.5 * 4.7 + 0.5 * 1.8) / speed
    assert float(sim.core.replays["ttc"][0]) == pytest.approx(2.0 - 0.1 - boxes, abs=0.25)
    assert float(out.info["safety"][0]) == pytest.approx(float(sim.core.replays["ttc"][0]) - 3.0, abs=1e-5)
    # with 1 s ahead it is not seen yet
    near = make(log=str(path), obs="none", reward="sequence", ttc_s=1.0)
    at_start(near)
    assert float(drive(near).info["safety"][0]) == 0.0


# starts, lights, recordings and options


def test_episode_recording_names_the_deviation() -> None:
    sim = make(obs="none", max_aside_m=1.0)
    at_start(sim)
    roads, frame = sim.trace_map(0), sim.trace_frame(0)
    assert len(roads.lanes) == 2 and [stop.control for stop in roads.stops] == ["light"]
    assert frame.lights == (0,) and frame.ego[:2] == pytest.approx(sim.core.arrays.poses[0, :2], abs=1e-4)
    assert len(frame.slots) == 4
    until_end(sim, 0.3)
    assert sim.trace_step(0).events == ("deviation",)


def test_ids_go_through_the_clips_of_their_split() -> None:
    sim = make(obs="none")
    train, val = sim.state_ids("train"), sim.state_ids("val")
    clips = sim.core.log.meta.clips
    assert [clips[sim.core.clip_of(train[k])[0]].name for k in range(7)] == [f"train-{k % 5}" for k in range(7)]
    assert [sim.core.clip_of(train[k])[1] for k in range(5)] == [0] * 5
    later = [sim.core.clip_of(train[k])[1] for k in range(5, 60)]
    assert 0 < max(later) <= STEPS - 50 and len(set(later)) > 10
    assert all(clips[sim.core.clip_of(val[k])[0]].split == "val" for k in range(50))


def test_split_without_clips_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", None, clips=(("train", 2),))
    sim = make(log=str(path), obs="none")
    sim.queue_states([sim.state_ids("test").start])
    with pytest.raises(ConfigError, match=r"split 'test', of which .* has no clip: it has 2 train"):
        sim.reset()
    path = write_log(tmp_path / "other", None, clips=(("val", 2),))
    with pytest.raises(ConfigError, match="no clip of the split 'train'"):
        make(log=str(path), obs="none")


def test_lights_are_those_of_the_log() -> None:
    sim = make(obs="vector")
    names = sim.observation_spec["scalars"].names
    obs = at_start(sim)
    green, yellow, left = (names.index(name) for name in ("light_green", "light_yellow", "light_time_left"))
    assert obs["scalars"][0, green] == 1 and obs["scalars"][0, yellow] == 0
    # green for 4 s more
    assert float(obs["scalars"][0, left]) == pytest.approx(4.0 / 20.0, abs=0.01)
    state = sim.get_state()
    state["replays/at"][:] = 45
    obs = sim.set_state(state)
    assert obs["scalars"][0, green] == 0 and obs["scalars"][0, yellow] == 1


def test_clip_without_a_map_has_one_lane_along_its_way(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", None, clips=(("train", 2),), with_map=False)
    sim = make(2, log=str(path))
    obs = sim.reset(options={"state_ids": [0, 1]})
    names = sim.observation_spec["scalars"].names
    assert obs["scalars"][:, names.index("route_offset")].abs().max() < 0.1
    for _ in range(20):
        out = drive(sim)
    assert not out.terminated.any() and not out.truncated.any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"traffic": "reactve"}, "did you mean 'reactive'"),
        ({"traffic": "reactive", "obs": "raster"}, "expected obs 'vector' or 'none'"),
        ({"obs": "raster", "log": "none"}, "has no frames: expected obs 'vector' or 'none'"),
        ({"obs": "frames"}, "obs 'frames' is unknown"),
        ({"raster_pixels": 128}, "of 32 m, cover 25 % of such a view: expected 50 or more, at most 64 pixels fit"),
        ({"max_aside_m": 0.0}, "max_aside_m is 0.0: expected a number from 0.1"),
        ({"min_covered": 1.5}, "min_covered is 1.5: expected"),
        ({"ttc_s": 0.0}, "ttc_s is 0.0: expected"),
        ({"threads": -1}, "threads is -1: expected"),
        ({"reward": "sequence", "end_penalty": 1.0}, "end_penalty is 1.0, but reward is 'sequence'"),
        ({"log": "channels", "obs": "raster", "packed": True}, "packed is True, .* kind 'channels': expected False"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    logs = {"none": lambda: small_log(None), "channels": lambda: small_log("channels", ("a", "b", "c"))}
    if options.get("log") in logs:
        options = options | {"log": logs[options["log"]]()}
    with pytest.raises(ConfigError, match=says):
        make(**options)
