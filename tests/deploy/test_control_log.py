"""Evidence from a control log: arithmetic on small logs by hand, and `robotrl report` on logs of real runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.deploy_kit as kit
from robotrl.cli.main import main
from robotrl.deploy.analysis.summary import (
    ActionMeaning,
    counterparts,
    longest_run,
    meaning_of_header,
    meaning_of_manifest,
    seams,
    step_sizes,
    summarize,
)
from robotrl.deploy.analysis.ticks import ControlTicks, read_ticks
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.describe import SafetyOptions
from robotrl.deploy.bundle.measured import unit_factor
from robotrl.deploy.control.replay import largest_difference, replay, replayed_ticks
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Reason
from robotrl.deploy.export import export
from robotrl.deploy.robots.link import RobotFault
from robotrl.errors import DataError
from robotrl.report.control.timeline import StateSpan, state_spans, tick_states
from robotrl.report.control.traces import ActionTrace, trace_range
from tests.kits.deploy_cart import TARGET_SPEC
from tests.kits.real_time import undisturbed

CART, TARGET = "sim:tests.kits.deploy_cart:make_cart", "sim:tests.kits.deploy_cart:make_target"
HEADER: dict[str, Any] = {
    "kind": "header",
    "schema_version": 1,
    "bundle_id": "ab" * 32,
    "robot": "sim:small",
    "seed": 0,
    "control_period_s": 0.1,
    "observations": {"state": ["arm_pos", "arm_vel"]},
    "observation_units": {"state": ["rad", "rad/s"]},
    "action": ["arm_target"],
    "action_units": ["0.5 rad"],
    "action_kind": "position",
    "low": [-1.0],
    "high": [1.0],
}


def tick(
    number: int, policy: Any, sent: float, *, episode: int = 1, decision: int = 0, **fields: Any
) -> dict[str, Any]:
    base = {
        "kind": "tick",
        "episode": episode,
        "tick": number,
        "deadline_ns": number * 100_000_000,
        "lateness_ns": 50_000,
        "age_ns": 1_000_000,
        "read_ns": 10_000,
        "busy_ns": 200_000,
        "inference_ns": 0,
        "decision": decision,
        "cursor": 1,
        "obs": {"state": [0.0, 0.0]},
        "policy": None if policy is None else [policy],
        "sent": [sent],
        "mode": 0,
        "reason": 0,
        "asked": -1,
        "committed": 0,
    }
    return {**base, **fields}


def written(path: Path, records: list[dict[str, Any]], header: dict[str, Any] = HEADER) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in (header, *records)))
    return path


def small(tmp_path: Path, records: list[dict[str, Any]]) -> ControlTicks:
    return read_ticks(written(tmp_path / "small.jsonl", records))


# arithmetic by hand


def test_a_seam_is_a_change_of_chunk_between_neighbors_of_one_episode(tmp_path: Path) -> None:
    log = small(
        tmp_path,
        [
            tick(0, 0.0, 0.0, decision=0),
            tick(1, 0.1, 0.1, decision=0),  # a step of 0.1 inside chunk 0
            tick(2, 0.5, 0.5, decision=1),  # a seam, a jump of 0.4
            tick(4, 0.9, 0.9, decision=2),  # a period was missed: neither step nor seam
            tick(5, None, 0.0, decision=-1, mode=1, reason=8),  # no action of the policy
            tick(6, -0.1, -0.1, decision=3),
            tick(7, -0.4, -0.4, decision=3),  # a step of 0.3
            tick(0, 0.7, 0.7, decision=4, episode=2),  # another episode: no seam
        ],
    )
    assert seams(log).tolist() == [False, True, False, False, False, False, False]
    (element,) = summarize(log, None).elements
    assert element.inside is not None and element.seams is not None
    assert (element.inside.count, element.seams.count) == (2, 1)
    assert element.inside.max == pytest.approx(0.3) and element.inside.p50 == pytest.approx(0.2)
    assert element.seams.p99 == element.seams.max == pytest.approx(0.4)


def test_missed_periods_times_and_duration(tmp_path: Path) -> None:
    log = small(
        tmp_path,
        [
            tick(0, 0.0, 0.0, inference_ns=3_000_000, lateness_ns=10_000, servo_lateness_us=[5.0]),
            tick(3, 0.0, 0.0, lateness_ns=30_000, servo_lateness_us=[7.0, 9.0]),  # two periods missed
            tick(0, 0.0, 0.0, episode=2, lateness_ns=20_000, servo_lateness_us=[]),
        ],
    )
    summary = summarize(log, None)
    assert (summary.missed, summary.ticks, summary.episodes, summary.ended) == (2, 3, 2, 0)
    assert summary.duration_s == pytest.approx(0.5), "periods 0 to 3, and one"
    rows = {row.name: row for row in summary.times}
    assert rows["lateness, control ticks"].p50 == pytest.approx(20.0)
    assert rows["lateness, control ticks"].max == pytest.approx(30.0)
    assert (rows["lateness, all servo ticks"].count, rows["lateness, all servo ticks"].p50) == (3, 7.0)
    assert (rows["inference"].count, rows["inference"].max) == (1, 3000.0)


def test_interventions_are_counted_by_reason(tmp_path: Path) -> None:
    stale, damped, late = int(Reason.OBS_STALE), int(Reason.OBS_STALE | Reason.DAMPED), int(Reason.CLAMPED)
    log = small(
        tmp_path,
        [
            tick(0, 2.0, 1.0, reason=late),
            tick(1, 0.0, 0.0),
            tick(2, None, 0.0, mode=1, reason=stale),
            tick(3, None, 0.0, mode=1, reason=stale),
            tick(5, None, 0.0, mode=2, reason=damped),  # not in a row with tick 3
        ],
    )
    summary = summarize(log, None)
    assert (summary.held, summary.damped) == (2, 1)
    rows = {row.reason: row for row in summary.interventions}
    assert set(rows) == {"clamped", "obs_stale", "damped"}
    assert summary.interventions[0].reason == "obs_stale"
    assert (rows["obs_stale"].ticks, rows["obs_stale"].first, rows["obs_stale"].longest) == (3, (1, 2), 2)
    assert rows["obs_stale"].bad and rows["damped"].bad and not rows["clamped"].bad
    assert rows["clamped"].share == pytest.approx(0.2)
    assert longest_run(np.array([True, True, False, True]), np.array([False, True, True])) == 1


def test_limits_are_told_apart_by_element(tmp_path: Path) -> None:
    rate, both = int(Reason.RATE_LIMITED), int(Reason.RATE_LIMITED | Reason.CLAMPED)
    blended = int(Reason.RATE_LIMITED | Reason.RAMPED)
    log = small(
        tmp_path,
        [
            tick(0, 0.5, 0.1, reason=blended),  # the blend-in and the rate limit: not counted as rate limited
            tick(1, 0.5, 0.3, reason=rate),
            tick(2, 1.5, 0.5, reason=both),  # beyond the limit, and its step too large
            tick(3, 0.5, 0.5),
            tick(4, None, 0.5, mode=1, reason=8),  # held: no share of it
        ],
    )
    (element,) = summarize(log, None).elements
    assert element.clamped == pytest.approx(1 / 4)
    assert element.rate_limited == pytest.approx(2 / 4)


def test_tracking_compares_a_target_with_the_next_measurement(tmp_path: Path) -> None:
    def at(number: int, sent: float, position: Any, **fields: Any) -> dict[str, Any]:
        return tick(number, sent, sent, obs={"state": [position, 9.0]}, **fields)

    log = small(
        tmp_path,
        [
            at(0, 0.2, 0.0),  # target 0.1 rad, measured 0.13: 0.03
            at(1, 0.4, 0.13),  # target 0.2 rad, measured 0.19: -0.01
            at(2, 0.4, 0.19, mode=1),  # held: the target was not sent to be followed
            at(3, 0.4, 0.5),  # its measurement is two periods later
            at(5, 0.4, 0.5),  # its measurement is no number
            at(6, 0.4, "nan"),
        ],
    )
    summary = summarize(log, meaning_of_header(log))
    found = summary.elements[0].tracking
    assert found is not None and summary.untracked == ""
    assert (found.measured, found.unit, found.count) == ("state/arm_pos", "rad", 2)
    assert found.mean == pytest.approx(0.01) and found.max_abs == pytest.approx(0.03)
    assert found.rms == pytest.approx(np.sqrt((0.03**2 + 0.01**2) / 2))


def test_a_counterpart_has_the_name_and_the_unit(tmp_path: Path) -> None:
    log = small(tmp_path, [tick(0, 0.0, 0.0)])

    def found(kind: str, unit: str) -> list[int]:
        return list(counterparts(log, ActionMeaning(kind, (unit,), {"state": ("rad", "rad/s")})))

    assert found("position", "rad") == [0]
    assert found("position", "m") == [] and found("delta", "rad") == []
    assert counterparts(log, None) == {}
    assert unit_factor("0.25 rad") == (0.25, "rad") and unit_factor("m/s") == (1.0, "m/s")
    assert "no observation" in summarize(log, ActionMeaning("position", ("m",), {"state": ("rad", "rad/s")})).untracked
    assert "kind delta" in summarize(log, ActionMeaning("delta", ("m",), {"state": ("rad", "rad/s")})).untracked


def test_cameras_have_frames_and_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = {**HEADER, "observations": {"image": ["r", "g", "b"], **HEADER["observations"]}}
    frame = {"number": 7, "stamp_ns": 5, "checksum": 99, "at": None}
    log = written(tmp_path / "log.jsonl", [tick(0, 0.1, 0.1, frames={"image": frame})], header)
    ticks = read_ticks(log)
    assert (ticks.observation_keys, ticks.camera_keys) == (["state"], ["image"])
    assert summarize(ticks, meaning_of_header(ticks)).ticks == 1
    assert main(["report", str(log), "--tick", "1:0"]) == 0
    assert re.search(r"image +frame 7, checksum 99\n", capsys.readouterr().out)
    pytest.importorskip("mcap.writer")
    from robotrl.deploy.analysis.mcap_export import messages

    found = dict(messages(ticks, ticks.records[0]))
    assert found["/observation/image"] == {"number": 7, "stamp_ns": 5, "checksum": 99}


def test_differences_that_are_not_numbers() -> None:
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    assert largest_difference(np.array([nan, inf, 1.0]), np.array([nan, inf, 1.5])) == 0.5
    assert largest_difference(np.array([nan]), np.array([1.0])) == np.inf
    assert step_sizes(np.array([nan, -2.0])) == step_sizes(np.array([2.0]))
    assert step_sizes(np.array([nan])) is None


def test_states_of_a_timeline() -> None:
    mode, reason = np.array([0, 0, 0, 1, 2, 0]), np.array([0, 0, 32, 2, 256, 0])
    states = tick_states(mode, reason)
    assert states.tolist() == [0, 0, 1, 2, 3, 0]
    spans = state_spans(states, np.array([0, 1, 2, 3, 4, 7]))
    assert spans == [StateSpan(0, 0, 2), StateSpan(1, 2, 3), StateSpan(2, 3, 4), StateSpan(3, 4, 5), StateSpan(0, 7, 8)]
    assert state_spans(np.array([0, 0]), np.array([1, 3])) == [StateSpan(0, 1, 2), StateSpan(0, 3, 4)]


def test_a_trace_has_room_for_a_limit_that_is_near() -> None:
    time_s, line = np.arange(3.0), np.array([0.0, 0.5, np.nan])
    trace = ActionTrace("x", time_s, line, np.array([0.0, 0.4, 0.4]), None, np.empty(0), [], -9.0, 0.6)
    low, high = trace_range(trace)
    assert -0.2 < low < 0.0 and 0.6 < high < 0.7
    flat = trace._replace(policy=np.zeros(3), sent=np.zeros(3))
    assert trace_range(flat)[0] < 0 < trace_range(flat)[1]


# files that are no logs


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello\n", "is no control log"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is no control log"),
        (b'{"kind": "header", "schema_version": 1, "bundle', "does not begin with a header"),
        (b'{"kind": "header", "schema_version": 9}\n', "schema_version is 9"),
        (b'{"kind": "header", "schema_version": 1}\n', "has no 'bundle_id'"),
        ((json.dumps(HEADER) + "\n").encode(), "holds no tick"),
        ((json.dumps(HEADER) + "\n[1]\n").encode(), "line 2"),
        ((json.dumps(HEADER) + '\n{"kind": "tick", "episode": 1, "tick": 4}\n').encode(), "tick 1:4 has no"),
        ((json.dumps(HEADER) + "\n" + json.dumps({**tick(4, 0.0, 0.0), "sent": [1, 2]}) + "\n").encode(), "sent has 2"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(
    tmp_path: Path, content: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["report", str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and str(path) in error


def test_a_log_that_is_cut_off_is_reported_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path / "log.jsonl", [tick(0, 0.0, 0.0), tick(1, 0.0, 0.0)])
    log.write_bytes(log.read_bytes()[:-20])
    assert main(["report", str(log), "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "ends in the middle of a line" in said and "1 did not end" in said and "ticks      1 " in said
    assert "ends in the middle of a line" in (tmp_path / "page.html").read_text()


def test_arguments_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path / "log.jsonl", [tick(3, 0.0, 0.0), tick(9, 0.0, 0.0), tick(2, 0.0, 0.0, episode=4)])
    other = tmp_path / "notes.html"
    other.write_text("my notes")

    def refused(*arguments: str) -> str:
        assert main(["report", str(log), *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "the nearest is 1:9" in refused("--tick", "1:50")
    assert "the nearest is 4:2" in refused("--tick", "7:1")
    assert "EPISODE:TICK" in refused("--tick", "12")
    assert "--tick" in refused("--tick", "1:3", "--out", str(tmp_path / "a.html"))
    assert "will not be replaced" in refused("--out", str(other)) and other.read_text() == "my notes"
    assert "will not be replaced" in refused("--json", str(log))
    assert ".html" in refused("--out", str(tmp_path / "page.txt"))
    same = str(tmp_path / "a.html")
    assert "two files" in refused("--out", same, "--json", same)
    assert main(["report", str(tmp_path / "none.jsonl")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_one_tick_as_the_log_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path / "log.jsonl", [tick(3, 0.1, 0.1, obs={"state": [0.30000001192092896, "nan"]})])
    assert main(["report", str(log), "--tick", "1:3"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"state/arm_pos +0\.3\n", said) and re.search(r"state/arm_vel +nan\n", said)
    assert "active, no reason" in said


# MCAP


def test_mcap_gives_back_the_numbers_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = pytest.importorskip("mcap.reader")
    records = [
        tick(0, 0.1, 0.1, obs={"state": [0.30000001192092896, -1.5]}, start_unix_ns=1_700_000_000_000_000_000),
        tick(1, 0.2, 0.2, obs={"state": ["nan", 2.0]}, reason=int(Reason.CLAMPED | Reason.RAMPED)),
        tick(2, None, 0.0, obs={"state": None}, mode=1, reason=1),
        tick(0, 0.4, 0.4, episode=2, start_unix_ns=1_700_000_009_000_000_000),
    ]
    log, out = written(tmp_path / "log.jsonl", records), tmp_path / "log.mcap"
    assert main(["report", str(log), "--mcap", str(out)]) == 0
    with out.open("rb") as file:
        opened = reader.make_reader(file)
        rows = [
            (channel.topic, message.log_time, json.loads(message.data))
            for _, channel, message in opened.iter_messages()
        ]
        schemas = [json.loads(schema.data) for schema in opened.get_summary().schemas.values()]
    topics = {topic: [row for name, _, row in rows if name == topic] for topic, _, _ in rows}
    assert set(topics) == {"/observation/state", "/action/policy", "/action/sent", "/safety", "/timing"}
    assert all(len(messages) == len(records) for messages in topics.values())
    state = [(m["arm_pos"], m["arm_vel"]) for m in topics["/observation/state"]]
    assert state == [(0.30000001192092896, -1.5), (None, 2.0), (None, None), (0.0, 0.0)]
    assert [m["arm_target"] for m in topics["/action/policy"]] == [0.1, 0.2, None, 0.4]
    assert [m["arm_target"] for m in topics["/action/sent"]] == [0.1, 0.2, 0.0, 0.4]
    assert topics["/safety"][1] == {"episode": 1, "tick": 1, "mode": "active", "reasons": ["clamped", "ramped"]}
    assert topics["/timing"][1]["deadline_ns"] == 100_000_000 and topics["/timing"][1]["lateness_ns"] == 50_000
    times = [time for topic, time, _ in rows if topic == "/safety"]
    start = 1_700_000_000_000_000_000
    assert times == [start + 50_000, start + 100_050_000, start + 200_050_000, start + 9_000_050_000]
    assert all(schema["type"] == "object" and "episode" in schema["properties"] for schema in schemas)
    # only an MCAP file is replaced by one
    assert main(["report", str(log), "--mcap", str(out)]) == 0
    out.write_text("notes")
    assert main(["report", str(log), "--mcap", str(out)]) == 2


def test_rerun_opens_the_export_with_the_same_messages_and_times(tmp_path: Path) -> None:
    reader, chunk = pytest.importorskip("mcap.reader"), pytest.importorskip("rerun.chunk")
    records = [
        tick(0, 0.1, 0.1, start_unix_ns=1_700_000_000_000_000_000),
        tick(1, 0.2, 0.2, obs={"state": ["nan", 2.0]}, reason=int(Reason.CLAMPED)),
        tick(2, None, 0.0, obs={"state": None}, mode=1, reason=1),
    ]
    log, out = written(tmp_path / "log.jsonl", records), tmp_path / "log.mcap"
    assert main(["report", str(log), "--mcap", str(out)]) == 0
    expected: dict[str, list[tuple[int, str]]] = {}
    with out.open("rb") as file:
        for _, channel, message in reader.make_reader(file).iter_messages():
            expected.setdefault(channel.topic, []).append((message.log_time, message.data.decode()))
    found: dict[str, list[tuple[int, str]]] = {}
    for part in chunk.McapReader(out).stream():
        batch = part.to_record_batch()
        if "McapMessage:data" in batch.schema.names:
            times = [value.value for value in batch.column("message_log_time")]
            data = [bytes(value[0]).decode() for value in batch.column("McapMessage:data").to_pylist()]
            found.setdefault(part.entity_path, []).extend(zip(times, data, strict=True))
    assert len(expected) == 5 and found == expected


def test_episodes_of_older_logs_follow_one_another(tmp_path: Path) -> None:
    pytest.importorskip("mcap.writer")
    from robotrl.deploy.analysis.mcap_export import log_times_ns

    log = small(tmp_path, [tick(0, 0.0, 0.0), tick(2, 0.0, 0.0), tick(1, 0.0, 0.0, episode=2)])
    # the second episode begins a period (100 ms) after the last tick, and its first record is tick 1
    assert log_times_ns(log) == [50_000, 200_050_000, 200_050_000 + 100_000_000 + 100_050_000]


# real runs


class GoToGoal(kit.TinyFlow):
    """Commands target positions of `make_target`, each chunk's second one further on."""

    def __init__(self) -> None:
        super().__init__(noisy=False)
        self.action_spec = TARGET_SPEC

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> kit.Deployed:
        position, goal = obs["state"][:, 0], obs["state"][:, 2]
        pulls = torch.tensor([0.3, 0.35])
        target = position[:, None] + pulls * (goal - position)[:, None]
        actions = torch.stack([target, 0.0 * target], dim=-1).clamp(-1.0, 1.0)
        return kit.Deployed(actions, actions)


@pytest.fixture(scope="module")
def position_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("position") / "target.bundle"
    safety = SafetyOptions(max_step=(0.05, 1.0))
    export(GoToGoal(), path, observations=kit.recorded(), action_kind="position", safety=safety)
    kit.wait_for_observations(path)
    return path


class PageReader(HTMLParser):
    """Addresses that a page would load, and its texts."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.charts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loaded += [str(found[name]) for name in ("src", "href") if name in found]
        if tag == "svg":
            self.charts.append(str(found.get("aria-label")))


@undisturbed
def test_the_report_of_a_real_run(position_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, page, numbers = tmp_path / "log.jsonl", tmp_path / "page.html", tmp_path / "report.json"
    report = run_control(position_bundle, TARGET, episodes=2, log=log)
    command = ["report", str(log), "--bundle", str(position_bundle), "--out", str(page), "--json", str(numbers)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "bit for bit" in said and "state/cart_pos" in said and "rate_limited" in said
    found = json.loads(numbers.read_text())
    assert (found["ticks"], found["episodes"], found["successes"]) == (report.ticks, 2, report.successes)
    assert found["missed"] == report.deadline_misses
    happened = {reason: count for reason, count in report.safety.reasons.items() if count}
    assert {row["reason"]: row["ticks"] for row in found["interventions"]} == happened
    rows = {row["name"]: row for row in found["times"]}
    assert rows["lateness, control ticks"]["p99"] == pytest.approx(report.lateness_us.p99)
    assert rows["lateness, all servo ticks"]["p50"] == pytest.approx(report.servo_lateness_us.p50, abs=0.1)
    assert rows["inference"]["max"] == pytest.approx(report.inference_us.max)
    target, brake = found["elements"]
    # the first jump of 0.3 of the way to the goal is more than 0.05 m
    assert 0 < target["rate_limited"] < 1 and brake["rate_limited"] == 0
    assert target["tracking"]["measured"] == "state/cart_pos" and target["tracking"]["unit"] == "m"
    assert 0 < target["tracking"]["rms"] < 0.3 and brake["tracking"] is None
    assert target["seams"]["count"] > 3 and target["inside"]["count"] > 3
    assert (
        found["replay"]["policy_max_abs"] == found["replay"]["sent_max_abs"] == found["replay"]["verdicts_differ"] == 0
    )
    reader = PageReader()
    reader.feed(page.read_text())
    assert reader.loaded == []
    assert {"Latency of the control loop", "Timeline of the episodes", "cart_target in episode 1"} <= set(reader.charts)

    ticks = read_ticks(log)
    meaning = meaning_of_header(ticks)
    assert meaning == meaning_of_manifest(open_bundle(position_bundle).manifest)
    last = ticks.records[-1]
    assert main(["report", str(log), "--bundle", str(position_bundle), "--tick", f"2:{last['tick']}"]) == 0
    said = capsys.readouterr().out
    assert "bit for bit: policy's action equal, sent action equal, mode and reasons equal" in said
    assert str(np.float32(last["policy"][0])) in said and str(np.float32(last["obs"]["state"][0])) in said


@undisturbed
def test_a_changed_log_is_found_out_and_a_fault_is_told(
    position_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, forged = tmp_path / "log.jsonl", tmp_path / "forged.jsonl"
    monkeypatch.setenv("CART_NAN_AT", "60")
    with pytest.raises(RobotFault):
        run_control(position_bundle, TARGET, episodes=1, log=log)
    assert main(["report", str(log)]) == 0
    said = capsys.readouterr().out
    assert "ended by" in said and "is nan" in said and "obs_not_finite" in said and "1 did not end" in said
    lines = log.read_text().splitlines()
    record = json.loads(lines[2])
    assert record["tick"] == 1 or record["policy"] is not None
    record["sent"][0] += 0.25
    record["reason"] ^= int(Reason.RAMPED)
    forged.write_text("\n".join([*lines[:2], json.dumps(record), *lines[3:]]) + "\n")
    again = replay(forged, position_bundle)
    assert again.sent_max_abs == pytest.approx(0.25) and again.policy_max_abs == 0.0
    assert again.sent_at == (record["episode"], record["tick"]) and again.verdicts_differ == 1
    assert main(["report", str(forged), "--bundle", str(position_bundle), "--tick", f"1:{record['tick']}"]) == 0
    said = capsys.readouterr().out
    assert "sent action differs, mode and reasons differ" in said
    assert "ramped" in said.split("mode and reasons, computed")[0]
    # one episode alone is replayed as the whole log is
    alone = [tick.verdict.reason for tick in replayed_ticks(log, position_bundle, 1)]
    assert alone == [tick.verdict.reason for tick in replayed_ticks(log, position_bundle)]


def test_another_bundle_is_refused(position_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path / "log.jsonl", [tick(0, 0.0, 0.0)])
    assert main(["report", str(log), "--bundle", str(position_bundle)]) == 2
    error = capsys.readouterr().err
    assert "is of bundle abababababab" in error and error.count("\n") == 1
    with pytest.raises(DataError, match="is of bundle"):
        replay(log, position_bundle)
