"""The report: complete, self-contained, honest in its verdict, and exact in what it packs."""

import base64
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robotrl.report import (
    Animation,
    CurvePoint,
    Geom,
    Level,
    RecordedEpisode,
    ReportData,
    geoms_from_mujoco,
    poses_from_mujoco,
    write_report,
)
from robotrl.report.charts import _spread
from robotrl.report.page import render, verdict
from robotrl.report.text import count, micros, percent, seconds

VOID = {"meta", "input", "img"}

CLONE = Level("clone", "clone", 0.457, 0.397, 0.518, 256)
TUNED = Level("tuned", "fine-tuned", 0.984, 0.9605, 0.994, 256)

SUMMARY = {
    "bc": {"success": {"value": 0.457, "low": 0.397, "high": 0.518, "episodes": 256}},
    "rl": {
        "success": {"value": 0.984, "low": 0.9605, "high": 0.994, "episodes": 256},
        "evaluations": {"seconds": 24.5, "share": 0.207, "max_share": 0.8},
    },
    "env_steps": 368640,
    "export": {"parity_max_abs": 4.2e-7, "parity_max_rel": 2.1e-7, "samples": 1024},
    "control": {
        "rate_hz": 20.0,
        "lateness_us": {"p50": 71.25, "p99": 161.0, "p999": 412.0, "max": 1013.0},
        "deadline_misses": 3,
        "success": {"value": 0.96875, "low": 0.84, "high": 0.99, "episodes": 32},
    },
    "wall_s": 214.2,
    "peak_memory_mib": 1873.0,
}


class Page(HTMLParser):
    """Checks that tags nest, and collects text, tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def rollout(frames: int, success: bool, seed: int) -> RecordedEpisode:
    rng = np.random.default_rng(seed)
    poses = np.zeros((frames, 2, 7), np.float32)
    poses[..., 3] = 1
    poses[:, 1, :3] = np.cumsum(rng.normal(0, 0.01, (frames, 3)), 0)
    quat = rng.normal(size=(frames, 4))
    poses[:, 1, 3:] = quat / np.linalg.norm(quat, axis=1, keepdims=True)
    return RecordedEpisode(success, poses)


def full() -> ReportData:
    geoms = [Geom("box", (0.4, 0.4, 0.02), (0.6, 0.6, 0.6, 1)), Geom("capsule", (0.03, 0.1, 0), (0.9, 0.5, 0.2, 1))]
    animation = Animation(
        geoms,
        before=[rollout(20, False, 0), rollout(12, True, 1)],
        after=[rollout(9, True, 2), rollout(10, True, 3)],
        starts=[20011, 20023],
        frame_dt_s=0.05,
    )
    return ReportData(
        title="Peg insertion",
        task="An arm puts a peg into a hole.",
        levels=[
            CLONE,
            Level("best_clone", "same demos, trained to convergence", 0.531, 0.47, 0.591, 256),
            Level("expert", "expert", 0.742, 0.685, 0.792, 256),
            TUNED,
            Level("deployed", "exported bundle", 0.96875, 0.84, 0.99, 32),
        ],
        summary=SUMMARY,
        curve=[CurvePoint(0, 0.46, 0.4, 0.52), CurvePoint(46080, 0.8125, 0.75, 0.86), CurvePoint(92160, 1, 0.98, 1)],
        curve_note="96 validation starts.",
        animation=animation,
        lateness_us=[50.0, 71.25, 161.0, 1013.0],
        inference_us=[410.0, 420.0, 600.0],
        stages=[("cloning", 14.8), ("fine-tuning", 118.4)],
        settings={"reinflow": {"actor_lr": 3e-4}, "demos": 12},
        versions={"torch": "2.13.0"},
        machine={"cpu": "Some CPU", "cores": 2},
        seed=4,
        command="robotrl quickstart --out DIR --seed 4",
    )


def test_every_number_is_on_the_page(tmp_path):
    path = write_report(tmp_path / "report.html", full())
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    page = Page(path.read_text(encoding="utf-8"))
    for expected in (
        "45.7 %", "39.7 % to 51.8 %", "53.1 %", "47.0 % to 59.1 %", "74.2 %", "98.4 %", "96.0 % to 99.4 %", "96.9 %",
        "256", "368,640", "3 min 34 s", "1,873 MiB", "1.83 GiB", "4.2e-07", "2.1e-07", "1,024",
        "20 Hz", "71.2 µs", "161 µs", "412 µs", "1.01 ms", "3 missed deadlines", "of 32 episodes",
        "20011", "20023", "14.8 s", "1 min 58 s", "Seed 4", "robotrl quickstart --out DIR --seed 4",
        "evaluations took 20.7 % (24.5 s)", "evaluation.max_share bounds their share of all env steps to 80.0 %",
        "reinflow.actor_lr", "0.0003", "2.13.0", "Some CPU", "96 validation starts.",
        "46,080 env steps: 81.2 % (75.0 % to 86.0 %)", "inference p50", "same demos, trained to convergence",
    ):  # fmt: skip
        assert expected in page.text, expected


def test_the_share_of_evaluations_is_drawn_to_scale_and_left_out_where_it_is_not_known():
    assert '<div class="share" role="img" aria-label="20.7 % evaluations"><i style="width:20.70%">' in render(full())
    summary = {**SUMMARY, "rl": {"success": SUMMARY["rl"]["success"]}}
    assert "evaluations took" not in render(replace(full(), summary=summary))


def test_the_page_asks_nothing_of_the_network():
    text = render(full())
    assert "http:" not in text and "https:" not in text
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object"), tag
        assert not {"src", "href", "srcset"} & set(attributes), (tag, attributes)
    assert "@import" not in text and "url(" not in text
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    "missing",
    ["curve", "animation", "lateness_us", "inference_us", "stages", "settings", "versions", "machine", "seed"],
)
def test_each_optional_part_may_be_absent(missing):
    fields = {**vars(full())}
    fields.pop(missing)
    Page(render(ReportData(**fields)))


@pytest.mark.parametrize("missing", list(SUMMARY))
def test_each_part_of_the_summary_may_be_absent(missing):
    fields = {**vars(full()), "summary": {key: value for key, value in SUMMARY.items() if key != missing}}
    Page(render(ReportData(**fields)))


def test_with_nothing_measured_there_is_still_a_page():
    page = Page(render(ReportData("Title", "Task.", [], {})))
    assert "No success rate yet." in page.text
    assert "<section>" not in render(ReportData("Title", "Task.", [], {}))


def test_the_verdict_claims_a_gain_only_where_intervals_do_not_touch():
    def say(clone: Level, tuned: Level) -> str:
        return verdict(ReportData("t", "t", [clone, tuned], {}))

    assert say(CLONE, TUNED).startswith("Reinforcement learning took the clone")
    close = Level("tuned", "fine-tuned", 0.55, 0.518, 0.6, 256)
    assert say(CLONE, close).startswith("No clear gain")
    assert say(CLONE, Level("tuned", "fine-tuned", 0.2, 0.15, 0.25, 256)).startswith("Fine-tuning made the clone worse")
    assert "Reinforcement" not in say(CLONE, Level("tuned", "fine-tuned", 0.9))


def test_text_is_escaped_and_cannot_end_the_script():
    fields = {**vars(full()), "title": "</script><b>&", "command": "<script>alert(1)</script>"}
    text = render(ReportData(**fields))
    assert "</script><b>" not in text and "<script>alert" not in text
    assert "</script><b>&" in Page(text).text


def payload(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="rollouts">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_packed_poses_are_those_recorded():
    data = full()
    packed = payload(render(data))
    assert packed["dt"] == 0.05 and [g[0] for g in packed["geoms"]] == ["box", "capsule"]
    for side in ("before", "after"):
        for original, entry in zip(getattr(data.animation, side), packed[side], strict=True):
            frames, count_ = original.poses.shape[:2]
            assert entry["n"] == frames and entry["ok"] == original.success and entry["moving"] == [1]
            whole = np.frombuffer(base64.b64decode(entry["data"]), "<i2") / 32767
            assert len(whole) == 7 * (count_ + frames * len(entry["moving"]))
            first, moving = whole[: 7 * count_].reshape(-1, 7), whole[7 * count_ :].reshape(frames, -1, 7)
            poses = np.repeat(first[None], frames, 0)
            poses[:, entry["moving"]] = moving
            poses[..., :3] = poses[..., :3] * packed["half"] + packed["centre"]
            np.testing.assert_allclose(poses, original.poses, atol=2e-5)


def test_poses_from_mujoco_agree_with_mujoco():
    rng = np.random.default_rng(0)
    quats = rng.normal(size=(200, 4))
    # half turns, where the scalar part is zero, are the hard cases
    quats[:8] = np.vstack([np.eye(4), -np.eye(4)])
    quats[8:16, 0] = 0
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    mats = np.zeros((200, 9))
    for quat, mat in zip(quats, mats, strict=True):
        mujoco.mju_quat2Mat(mat, quat)
    pos = rng.normal(size=(1, 200, 3))
    poses = poses_from_mujoco(pos, mats[None])
    np.testing.assert_allclose(poses[0, :, :3], pos[0], rtol=1e-6)
    np.testing.assert_allclose(np.abs((poses[0, :, 3:] * quats).sum(1)), 1, atol=1e-6)


def test_geoms_come_from_a_model_without_the_invisible_ones():
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom type='plane' size='1 1 .1'/><geom type='box' size='.1 .2 .3' rgba='1 0 0 1'/>"
        "<geom type='sphere' size='.1' rgba='1 1 1 0'/><geom type='capsule' size='.02 .1' rgba='0 1 0 .5'/>"
        "</worldbody></mujoco>"
    )
    keep, geoms = geoms_from_mujoco(model.geom_type, model.geom_size, model.geom_rgba)
    assert keep.tolist() == [0, 1, 3]
    assert [geom.kind for geom in geoms] == ["plane", "box", "capsule"]
    assert geoms[1].size == pytest.approx((0.1, 0.2, 0.3)) and geoms[2].rgba == pytest.approx((0, 1, 0, 0.5))


def test_wrong_shapes_are_refused_by_name():
    one = rollout(5, True, 0)
    with pytest.raises(ValueError, match="1 rollouts before, 0 after and 1 starts"):
        Animation([], [one], [], [1], 0.05)
    with pytest.raises(ValueError, match=r"poses is \(5, 2, 7\): expected \(F > 0, 1, 7\)"):
        Animation([Geom("box", (1, 1, 1), (1, 1, 1, 1))], [one], [one], [1], 0.05)
    with pytest.raises(ValueError, match="repeats a role"):
        ReportData("t", "t", [CLONE, CLONE], {})


def test_a_report_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError):
        write_report(tmp_path / "report.html", full())
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


@given(st.lists(st.floats(0, 300), max_size=5))
def test_labels_keep_their_order_and_do_not_overlap(positions):
    placed = _spread(positions, 30, 10, 310)
    ordered = [placed[i] for i in sorted(range(len(positions)), key=lambda i: positions[i])]
    assert all(b - a >= 30 - 1e-9 for a, b in itertools.pairwise(ordered))
    assert all(at <= 310 for at in placed)


def test_numbers_read_well():
    assert [percent(v) for v in (0, 0.4, 0.9961, 1)] == ["0 %", "40.0 %", "99.6 %", "100 %"]
    assert [micros(v) for v in (0.5, 85, 412.4, 1500, 2.5e6)] == ["0.5 µs", "85 µs", "412 µs", "1.5 ms", "2.5 s"]
    assert [seconds(v) for v in (8.44, 245, 4321)] == ["8.4 s", "4 min 05 s", "1 h 12 min"]
    assert [count(v) for v in (950, 12500, 1.25e6)] == ["950", "12.5 k", "1.25 M"]
