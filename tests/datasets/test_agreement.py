"""What a dataset and a sim both state must agree before anything is learned: permuted, scaled, shifted, delayed."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.datasets.agreement.agree import agree, check_reach
from robotrl.datasets.agreement.bounds import most_out_of_bounds, question
from robotrl.datasets.agreement.names import numbered, order_of
from robotrl.datasets.agreement.timing import check_times
from robotrl.datasets.chunks import load_chunks
from robotrl.datasets.lerobot import Dataset, DatasetWriter, read_dataset
from robotrl.datasets.normalization import transforms_for
from robotrl.datasets.stats import describe
from robotrl.errors import ConfigError, DataError, NumericsError, RobotrlError
from robotrl.replay.buffer import Replay
from robotrl.replay.demos import read_demos
from robotrl.replay.layout import ReplayLayout
from robotrl.rewards.labels import label_dataset
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup, bounds_to_unit, inverse
from tests.datasets.test_refusals import FRAMES, edit_column, edit_json
from tests.kits.data_helpers import ACTION_SPEC, INF, OBSERVATION_SPEC, make_episode, write_dataset

RATE_HZ = 20
STATE = OBSERVATION_SPEC["state"]
WIDE = Spec((4,), ("x", "y", "z", "yaw"), ("m", "m", "m", "rad"), (-1.0,) * 3 + (-3.2,), (1.0,) * 3 + (3.2,))


def taken(spec: Spec, order: list[int]) -> Spec:
    names, units, low, high = (tuple(of[i] for i in order) for of in (spec.names, spec.units, spec.low, spec.high))
    return replace(spec, names=names, units=units, low=low, high=high)


def write(root: Path, action: Spec, actions: np.ndarray, state: Spec = STATE, verified: bool = True) -> Path:
    """One dataset of two episodes."""
    obs = make_episode(0, len(actions))[0]["state"]
    with DatasetWriter(root, fps=RATE_HZ, observation_spec={"state": state}, action_spec=action) as writer:
        for _ in range(2):
            writer.add_episode({"state": obs}, actions, np.zeros(len(actions)), success=True, task="t")
        writer.finish()
    if not verified:
        (root / "meta/robotrl.json").unlink()
    return root


def fits(dataset: Dataset, action: Spec = ACTION_SPEC, **options: Any) -> Dataset:
    return agree(dataset, {"state": STATE}, action, 1 / RATE_HZ, **options)


def refusal(call: Any, kind: type[RobotrlError] = ConfigError) -> str:
    with warnings.catch_warnings(), pytest.raises(kind) as caught:
        warnings.simplefilter("error")
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "d", (8, 7, 9))


@pytest.fixture
def foreign(ours: Path) -> Path:
    (ours / "meta/robotrl.json").unlink()
    return ours


def test_a_dataset_that_agrees_is_taken_without_a_word(ours: Path) -> None:
    dataset = read_dataset(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = agree(dataset, OBSERVATION_SPEC, ACTION_SPEC, 1 / RATE_HZ)
    for name in dataset.features:
        assert found.frames(name) is dataset.frames(name) and found.stats[name] is dataset.stats[name]


# names


@settings(max_examples=12, deadline=None)
@given(order=st.permutations(range(4)), verified=st.booleans(), seed=st.integers(0, 99))
def test_elements_in_any_order_become_the_sims(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], verified: bool, seed: int
) -> None:
    root = tmp_path_factory.mktemp("order")
    actions = np.random.default_rng(seed).uniform(-1, 1, (9, 4)).astype(np.float32)
    plain = fits(read_dataset(write(root / "plain", WIDE, actions)), WIDE)
    moved = read_dataset(write(root / "moved", taken(WIDE, order), actions[:, order], verified=verified))
    found = fits(moved, WIDE)
    assert np.array_equal(found.frames("action"), plain.frames("action")) and found.frames("action").flags.c_contiguous
    assert all(np.array_equal(found.stats["action"][key], x) for key, x in plain.stats["action"].items())
    assert list(found.features["action"].names) == list(WIDE.names)
    assert found.action_spec == (WIDE if verified else None)
    assert transforms_for(found, {"state": STATE}, WIDE, "quantiles") == transforms_for(
        plain, {"state": STATE}, WIDE, "quantiles"
    )


@settings(max_examples=12, deadline=None)
@given(order=st.permutations(range(3)))
def test_observations_are_put_in_order_too(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    root = tmp_path_factory.mktemp("order") / "d"
    obs, actions, rewards = make_episode(0, 6)
    state = taken(STATE, order)
    with DatasetWriter(root, fps=RATE_HZ, observation_spec={"state": state}, action_spec=ACTION_SPEC) as writer:
        writer.add_episode({"state": obs["state"][:, order]}, actions, rewards, success=True, task="t")
        writer.finish()
    dataset = read_dataset(root)
    for found in (load_chunks(fits(dataset), ["state"], 1).obs["state"], _replayed(dataset)):
        assert np.array_equal(found, obs["state"])
    labeled = label_dataset(agree(dataset, {"state": STATE}, None, None), ["state"], 1)
    assert np.array_equal(labeled.obs["state"], obs["state"])


def _replayed(dataset: Dataset) -> np.ndarray:
    layout = ReplayLayout({"state": STATE}, ACTION_SPEC, 1, 8, 0, {}, 1 / RATE_HZ)
    return read_demos(dataset, layout).obs["state"].numpy()


def test_other_names_of_ours_are_refused(tmp_path: Path) -> None:
    other = replace(WIDE, names=("x", "y", "z", "jaw"))
    dataset = read_dataset(write(tmp_path / "d", other, np.zeros((5, 4))))
    text = refusal(lambda: fits(dataset, WIDE))
    assert "lacks 'yaw' (nearest: 'jaw') and has 'jaw', which the sim does not have" in text
    assert "lacks 'yaw'" in refusal(lambda: fits(dataset, WIDE, accept=True))


@pytest.mark.parametrize("names", [("action_0", "action_1", "action_2", "action_3"), ("a", "b", "c", "d"), None])
def test_names_of_others_that_match_nothing_are_listed_once(tmp_path: Path, names: Any) -> None:
    root = write(tmp_path / "d", WIDE, np.random.default_rng(0).uniform(-1, 1, (5, 4)), verified=False)
    _name(root, names)
    with pytest.warns(UserWarning, match="names and units are not checked: action has ") as said:
        fits(read_dataset(root), WIDE)
    assert len(said) == 1 and "accept_data (--accept-data)" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits(read_dataset(root), WIDE, accept=True)


def test_names_of_others_that_stand_elsewhere_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "d", WIDE, np.random.default_rng(0).uniform(-1, 1, (5, 4)), verified=False)
    _name(root, ("grip", "x", "y", "z"))
    text = refusal(lambda: fits(read_dataset(root), WIDE), DataError)
    assert "has 'x' as element 1, the sim 'x' as 0" in text
    fits(read_dataset(root), WIDE, accept=True)
    # LeRobot's recorders put them into an object, and write them their own way
    _name(root, {"motors": ["Yaw", "X", "Y", "Z"]})
    found = fits(read_dataset(root), WIDE)
    assert np.array_equal(found.frames("action"), read_dataset(root).frames("action")[:, [1, 2, 3, 0]])


def _name(root: Path, names: Any) -> None:
    features = json.loads((root / "meta/info.json").read_text())["features"]
    features["action"]["names"] = names
    edit_json(root, "meta/info.json", features=features)


def test_numbers_are_no_names() -> None:
    assert numbered(("action_0", "action_1")) and numbered(("0", "1")) and numbered(("m.1", "m.2"))
    assert not numbered(("x", "y")) and not numbered(("a_1", "b_1"))
    assert order_of(("joint_2", "joint_1"), ("joint_1", "joint_2"), False).taken == (1, 0)


# units and bounds


def test_other_units_are_refused(tmp_path: Path) -> None:
    dataset = read_dataset(write(tmp_path / "d", replace(WIDE, units=("m", "m", "m", "deg")), np.zeros((5, 4))))
    assert "has 'yaw' in 'deg': expected 'rad', the sim's" in refusal(lambda: fits(dataset, WIDE, accept=True))
    unstated = replace(WIDE, units=("m", "m", "m", "?"))
    fits(read_dataset(write(tmp_path / "e", unstated, np.full((5, 4), 0.5))), WIDE)


def test_other_bounds_are_doubted(tmp_path: Path) -> None:
    wider = replace(WIDE, high=(2.0, 1.0, 1.0, 3.2))
    dataset = read_dataset(write(tmp_path / "d", wider, np.full((5, 4), 0.5)))
    text = refusal(lambda: fits(dataset, WIDE), DataError)
    assert "action 'x' is stated to lie in -1 to 2, by the sim in -1 to 1 (m)" in text
    fits(dataset, WIDE, accept=True)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 999), scale=st.sampled_from([1000.0, 180 / np.pi, 100.0, 2.0]), shift=st.sampled_from([0, 3])
)
def test_actions_beyond_the_bounds_are_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int, scale: float, shift: float
) -> None:
    """Numbers in other units, or with another zero: whatever element it is, and whoever wrote them."""
    root = tmp_path_factory.mktemp("far") / "d"
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (40, 2)).astype(np.float32)
    element = int(rng.integers(2))
    actions[:, element] = actions[:, element] * scale + shift
    free = replace(ACTION_SPEC, low=(-INF,) * 2, high=(INF,) * 2)
    dataset = read_dataset(write(root, free, actions))
    text = refusal(lambda: fits(dataset), RobotrlError)
    assert f"action '{ACTION_SPEC.names[element]}' is beyond its bounds, -1 to 1 (1), in " in text
    assert "of 80 frames" in text


def test_few_actions_beyond_are_told_and_most_are_never_accepted(tmp_path: Path) -> None:
    free = replace(ACTION_SPEC, low=(-INF,) * 2, high=(INF,) * 2)
    actions = np.random.default_rng(0).uniform(-1, 1, (100, 2)).astype(np.float32)
    actions[3, 1] = 1.2
    with pytest.warns(UserWarning, match=r"action 'dy' is beyond .* in 2 of 200 frames \(1\.00% of them\), up to 1\.2"):
        fits(read_dataset(write(tmp_path / "few", free, actions)))
    actions[:20, 1] = 1.2
    some = read_dataset(write(tmp_path / "some", free, actions))
    assert "in 40 of 200 frames" in refusal(lambda: fits(some), DataError)
    fits(some, accept=True)
    actions[:80, 1] = 50
    most = read_dataset(write(tmp_path / "most", free, actions))
    assert "degrees or percent for 1?; it was not made by this robot" in refusal(lambda: fits(most, accept=True))


def test_measured_numbers_may_pass_their_stops_a_little(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "d", (20,))
    bound = {**OBSERVATION_SPEC, "force": replace(OBSERVATION_SPEC["force"], high=(38.5,))}
    dataset = replace(read_dataset(root), observation_spec=bound)
    agree(dataset, bound, ACTION_SPEC, 1 / RATE_HZ)
    far = {**OBSERVATION_SPEC, "force": replace(OBSERVATION_SPEC["force"], high=(4.0,))}
    dataset = replace(dataset, observation_spec=far)
    text = refusal(lambda: agree(dataset, far, ACTION_SPEC, 1 / RATE_HZ), DataError)
    assert "observation.force 'grip_force' is beyond its bounds, 0 to 4 (N)" in text


def test_actions_that_hardly_move_are_asked_about(tmp_path: Path) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 2)) / 180 * np.pi / 10
    with pytest.warns(UserWarning, match=r"action stays within 0\.\d% of its bounds: is it in 1\?"):
        fits(read_dataset(write(tmp_path / "d", ACTION_SPEC, actions)))


def test_questions_of_units() -> None:
    assert question("rad", 90.0, -1.57, 1.57) == "degrees for radians?"
    assert question("?", 180.0, -np.pi, np.pi) == "degrees for radians?"
    assert question("m", 600.0, -0.8, 0.8) == "millimetres for m?"
    assert question("1", 99.0, -1.0, 1.0) == "degrees or percent for 1?"
    assert question("m", 1.1, -1.0, 1.0) == ""
    assert most_out_of_bounds(np.zeros((0, 2)), ACTION_SPEC, 0.0) is None


def test_the_writer_refuses_other_units_and_tells_of_little(tmp_path: Path) -> None:
    obs, actions, rewards = make_episode(0, 30)
    with DatasetWriter(tmp_path / "d", fps=20, observation_spec=OBSERVATION_SPEC, action_spec=ACTION_SPEC) as writer:
        text = refusal(lambda: writer.add_episode(obs, 100 * actions, rewards, success=True, task="t"))
        assert text.startswith(f"episode 0 of dataset {tmp_path / 'd'}: action 'd")
        assert "degrees or percent for 1?" in text
        actions[4, 0] = -1.4
        writer.add_episode(obs, actions, rewards, success=True, task="t")
        with pytest.warns(UserWarning, match=r"action 'dx' is beyond its bounds, -1 to 1 \(1\), in 1 of 30 frames"):
            writer.finish()
    with (
        pytest.raises(NumericsError),
        DatasetWriter(tmp_path / "e", fps=20, observation_spec=OBSERVATION_SPEC, action_spec=ACTION_SPEC) as writer,
    ):
        writer.add_episode(obs, actions, np.full(30, np.nan), success=True, task="t")


# time


def times(change: Any = None, lengths: tuple[int, ...] = (12, 7, 30), fps: float = 20.0) -> Any:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    frame = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    t = frame / fps
    t = t if change is None else change(t, frame)
    return check_times(t.astype(np.float32), offsets, fps)


@settings(max_examples=12, deadline=None)
@given(fps=st.sampled_from([1.0, 10.0, 29.97, 30.0, 50.0, 200.0]), length=st.integers(1, 20000))
def test_times_of_any_length_are_right_in_float32(fps: float, length: int) -> None:
    assert times(lengths=(length, 3), fps=fps) == ("", ())


@settings(max_examples=12, deadline=None)
@given(factor=st.sampled_from([0.1, 1 / 3, 0.5, 0.97, 1.05, 2.0, 3.0, 1000.0]))
def test_another_rate_is_refused_with_both(factor: float) -> None:
    found = times(lambda t, _: factor * t)
    assert f"frames are at {20 / factor:.4g} Hz" in found.wrong and "meta/info.json says 20 Hz" in found.wrong
    assert ("milliseconds?" in found.wrong) == (factor == 1000)


@pytest.mark.parametrize(
    ("change", "severe", "message"),
    [
        (lambda t, k: t + 3.0 * (k > 5), True, r"frame 6 is 3\.3 s, after 0\.25 s: a pause where 0\.05 s .* \(3 gaps"),
        (lambda t, k: t + 0.1 * (k > 8), True, r"2 missing frames where 0\.05 s were expected \(2 gaps in all\)"),
        (lambda t, _: t + 1.7e9, True, r"a clock's time: expected seconds since the episode's start"),
        (lambda t, _: t + 2.0, False, r"of episode 0, frame 0 is 2\.0 s: expected 0 s at an .* \(3 episodes\)"),
        (lambda t, k: t + 0.01 * (k % 2), False, r"expected \d\.\d+ s at 20 Hz \(uneven in \d+ frames\)"),
        (lambda t, k: np.where(np.arange(len(t)) > 19, t / 2, t), True, r"uneven in \d+ frames"),
    ],
)
def test_gaps_pauses_clocks_and_shakes_have_their_own_words(change: Any, severe: bool, message: str) -> None:
    found = times(change)
    assert found.wrong == "" and found.issues[0].severe is severe
    assert re.search(message, found.issues[0].text), found.issues[0].text
    assert len(found.issues) == 1


def test_steps_back_and_times_that_stand_still() -> None:
    assert "timestamp steps back: it of episode 0, frame 6 is" in times(lambda t, k: t - 0.2 * (k > 5)).wrong
    assert "timestamp stands still at 0.0 s" in times(lambda t, _: 0 * t).wrong


def test_a_doubtful_time_is_refused_before_learning(foreign: Path) -> None:
    table = pq.read_table(foreign / FRAMES)
    late = np.where(table["frame_index"].to_numpy() > 4, 9.0, 0.0) + table["timestamp"].to_numpy()
    edit_column(foreign, FRAMES, "timestamp", pa.array(late, pa.float32()))
    (foreign / "meta/stats.json").unlink()
    dataset = read_dataset(foreign)
    assert "a pause" in refusal(lambda: fits(dataset), DataError)
    fits(dataset, accept=True)
    replay = Replay.create(None, OBSERVATION_SPEC, ACTION_SPEC, streams=1, capacity=40)
    assert "a pause" in refusal(lambda: replay.add_demos(dataset), DataError)


def test_another_rate_than_the_sims(ours: Path) -> None:
    text = refusal(lambda: agree(read_dataset(ours), {"state": STATE}, ACTION_SPEC, 0.1))
    assert "is recorded at 20 Hz: expected 10 Hz, the sim's" in text


# statistics


@settings(max_examples=12, deadline=None)
@given(
    key=st.sampled_from(["min", "max", "mean", "std"]),
    column=st.sampled_from(["observation.state", "action", "next.reward"]),
    factor=st.sampled_from([0.01, 0.5, 2.0, -1.0]),
)
def test_statistics_of_other_data_are_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, column: str, factor: float
) -> None:
    root = write_dataset(tmp_path_factory.mktemp("stats") / "d", (20, 20))
    (root / "meta/robotrl.json").unlink()
    content = json.loads((root / "meta/stats.json").read_text())
    content[column][key] = [factor * x for x in content[column][key]]
    (root / "meta/stats.json").write_text(json.dumps(content))
    assert f"{key} of '{column}'[" in refusal(lambda: read_dataset(root), DataError)


def test_deviations_of_a_sample_are_those_of_the_frames(foreign: Path) -> None:
    content = json.loads((foreign / "meta/stats.json").read_text())
    count = content["action"]["count"][0]
    content["action"]["std"] = [x * np.sqrt(count / (count - 1)) for x in content["action"]["std"]]
    (foreign / "meta/stats.json").write_text(json.dumps(content))
    dataset = read_dataset(foreign)
    assert np.array_equal(dataset.stats["action"]["std"], describe(dataset.frames("action"))["std"])


@pytest.mark.parametrize("gone", [("q01", "q99"), ("q01", "q10", "q50", "q90", "q99"), ("count",)])
def test_what_of_the_file_may_be_missing_is_never_needed(foreign: Path, gone: tuple[str, ...]) -> None:
    whole = read_dataset(foreign).stats
    content = json.loads((foreign / "meta/stats.json").read_text())
    for of in content.values():
        for name in gone:
            of.pop(name)
    (foreign / "meta/stats.json").write_text(json.dumps(content))
    dataset = read_dataset(foreign)
    assert all(np.array_equal(dataset.stats[n][k], x) for n, of in whole.items() for k, x in of.items())
    transforms_for(dataset, OBSERVATION_SPEC, ACTION_SPEC, "quantiles")


def test_quantiles_are_those_of_the_frames_and_others_are_told(foreign: Path) -> None:
    content = json.loads((foreign / "meta/stats.json").read_text())
    content["action"]["q01"], content["action"]["q99"] = [-0.4, -0.4], [0.4, 0.4]
    (foreign / "meta/stats.json").write_text(json.dumps(content))
    dataset = read_dataset(foreign)
    assert np.array_equal(dataset.stats["action"]["q01"], describe(dataset.frames("action"))["q01"])
    with pytest.warns(
        UserWarning, match=r"quantiles of meta/stats\.json are not those of the frames.*q01 of 'action'\["
    ) as said:
        fits(dataset)
    assert len(said) == 1


# what a policy can say and has seen


def _reaching(low: float, high: float) -> TransformGroup:
    return TransformGroup((), (inverse(bounds_to_unit("action", (low,) * 2, (high,) * 2)),))


@pytest.mark.parametrize(("low", "high"), [(-0.9, 0.9), (0.0, 1.0), (0.5, 0.5001), (-90.0, -80.0)])
def test_ranges_that_leave_out_what_was_recorded_are_refused(tmp_path: Path, low: float, high: float) -> None:
    dataset = fits(read_dataset(write_dataset(tmp_path / "d", (100, 100))))
    text = refusal(lambda: check_reach(dataset, _reaching(low, high), ACTION_SPEC, 1.0))
    assert f"is {low:g} to {high:g} (1): " in text and "of 200 frames" in text and "expected 2% at most" in text
    check_reach(dataset, _reaching(-90.0, 90.0), ACTION_SPEC, 1.0)
    check_reach(dataset, _reaching(-0.9, 0.9), ACTION_SPEC, 3.0)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 999), length=st.integers(2, 300), power=st.sampled_from([1, 3, 9]))
def test_quantiles_of_the_frames_leave_out_two_percent_at_most(
    tmp_path_factory: pytest.TempPathFactory, seed: int, length: int, power: int
) -> None:
    actions = np.random.default_rng(seed).uniform(-1, 1, (length, 2)).astype(np.float32) ** power
    dataset = fits(read_dataset(write(tmp_path_factory.mktemp("q") / "d", ACTION_SPEC, actions)), accept=True)
    group = transforms_for(dataset, {"state": STATE}, ACTION_SPEC, "quantiles")
    check_reach(dataset, group, ACTION_SPEC, 1.0)


def test_observations_of_another_robot_are_told(tmp_path: Path) -> None:
    dataset = read_dataset(write_dataset(tmp_path / "d", (30,)))
    known = transforms_for(dataset, {"state": STATE}, ACTION_SPEC).inputs
    fits(dataset, inputs=known)
    other = (replace(known[0], scale=(999_000.0, 1.0, 1.0)),)
    with pytest.warns(UserWarning, match=r"observation\.state\[0\] has mean .*: other units or another robot\?"):
        fits(dataset, inputs=other)


# flags


@pytest.mark.parametrize("value", [0.5, 2.0, -1.0, 255.0])
def test_flags_that_are_none(foreign: Path, value: float) -> None:
    values = np.zeros(24, np.float32)
    values[10] = value
    _flag(foreign, "next.success", values)
    dataset = read_dataset(foreign)
    with pytest.warns(UserWarning, match=r"next\.success is .* in episode 1, frame 2: expected a flag, 0 or 1"):
        agree(dataset, OBSERVATION_SPEC, ACTION_SPEC, 1 / RATE_HZ)
    text = refusal(lambda: label_dataset(dataset, ["state"], 1), DataError)
    assert f"next.success is {value} in episode 1, frame 2: expected a flag, 0 or 1" in text
    _flag(foreign, "next.done", values)
    replay = Replay.create(None, OBSERVATION_SPEC, ACTION_SPEC, streams=1, capacity=40)
    assert "next.done is" in refusal(lambda: replay.add_demos(read_dataset(foreign), accept=True), DataError)


def test_flags_of_another_type_and_ends_in_the_middle(foreign: Path) -> None:
    values = np.zeros(24, np.float32)
    values[[7, 10, 14, 23]] = 1
    _flag(foreign, "next.done", values)
    with pytest.warns(
        UserWarning, match=r"next\.done is set in episode 1, frame 2, before the episode's end \(1 frames"
    ):
        fits(read_dataset(foreign))


def _flag(root: Path, name: str, values: np.ndarray) -> None:
    features = json.loads((root / "meta/info.json").read_text())["features"]
    features[name]["dtype"] = "float32"
    edit_json(root, "meta/info.json", features=features)
    edit_column(root, FRAMES, name, pa.array(values, pa.float32()))
    (root / "meta/stats.json").unlink(missing_ok=True)


# columns of other names


def _rename(root: Path, names: dict[str, str]) -> Path:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] = {names.get(name, name): of for name, of in info["features"].items()}
    (root / "meta/info.json").write_text(json.dumps(info))
    table = pq.read_table(root / FRAMES)
    pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), root / FRAMES)
    (root / "meta/stats.json").unlink(missing_ok=True)
    return root


def test_openpis_names_are_found_alone(foreign: Path) -> None:
    before = agree(read_dataset(foreign), {"state": STATE}, ACTION_SPEC, 1 / RATE_HZ)
    root = _rename(foreign, {"action": "actions", "observation.state": "state", "observation.force": "force"})
    found = fits(read_dataset(root))
    for name in ("action", "observation.state"):
        assert np.array_equal(found.frames(name), before.frames(name))


def test_any_column_can_be_named(foreign: Path) -> None:
    before = fits(read_dataset(foreign))
    names = {"action": "command", "observation.state": "qpos", "next.reward": "r", "next.done": "over"}
    dataset = read_dataset(_rename(foreign, names))
    keys = {"action": "command", "state": "qpos", "next.reward": "r", "next.done": "over"}
    found = fits(dataset, columns=keys)
    for new in ("action", "observation.state", "next.reward", "next.done"):
        assert np.array_equal(found.frames(new), before.frames(new))
    text = refusal(lambda: fits(dataset, columns={"state": "qpos"}, field="algo.dataset_keys"))
    assert "has no column 'action'" in text and "its columns are observation.force, command" in text.replace(
        "qpos, ", ""
    )
    assert "expected algo.dataset_keys to say which it is" in text
    text = refusal(lambda: fits(dataset, columns={"action": "commands"}))
    assert "is unknown: did you mean 'command'?" in text


def test_an_action_in_parts_is_put_side_by_side(tmp_path: Path) -> None:
    part = {"arm": replace(ACTION_SPEC, shape=(1,), names=("dx",), units=("1",), low=(-1.0,), high=(1.0,))}
    part["hand"] = replace(part["arm"], names=("dy",))
    obs, actions, rewards = make_episode(0, 12)
    with DatasetWriter(
        tmp_path / "d", fps=20, observation_spec={"state": STATE, **part}, action_spec=part["arm"]
    ) as writer:
        given_obs = {"state": obs["state"], "arm": actions[:, :1], "hand": actions[:, 1:]}
        writer.add_episode(given_obs, actions[:, :1], rewards, success=True, task="t")
        writer.finish()
    (tmp_path / "d/meta/robotrl.json").unlink()
    dataset = read_dataset(_rename(tmp_path / "d", {"action": "first"}))
    columns = {"action": "observation.arm+observation.hand", "state": "observation.state"}
    found = fits(dataset, columns=columns)
    assert np.array_equal(found.frames("action"), actions)
    assert found.stats["action"]["max"].tolist() == actions.max(axis=0).tolist()
    swapped = fits(dataset, columns={**columns, "action": "observation.hand+observation.arm"})
    assert np.array_equal(swapped.frames("action"), actions)


# pictures


def test_channels_first_are_put_last(tmp_path: Path) -> None:
    eye = Spec((4, 6, 3), ("r", "g", "b"), ("1",) * 3, (0,) * 3, (255,) * 3, "uint8")
    pictures = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)
    _, actions, rewards = make_episode(0, 5)
    root = tmp_path / "d"
    with DatasetWriter(root, fps=20, observation_spec={"eye": eye}, action_spec=ACTION_SPEC) as writer:
        writer.add_episode({"eye": pictures}, actions, rewards, success=True, task="t")
        writer.finish()
    (root / "meta/robotrl.json").unlink()
    (root / "meta/stats.json").unlink()
    features = json.loads((root / "meta/info.json").read_text())["features"]
    features["observation.eye"] |= {"shape": [3, 4, 6], "names": ["channels", "height", "width"]}
    edit_json(root, "meta/info.json", features=features)
    first = np.moveaxis(pictures, -1, 1)
    edit_column(root, FRAMES, "observation.eye", pa.array(first.tolist(), pa.list_(pa.list_(pa.list_(pa.uint8())))))
    dataset = read_dataset(root)
    found = agree(dataset, {"eye": eye}, ACTION_SPEC, 1 / RATE_HZ)
    assert np.array_equal(found.frames("observation.eye"), pictures)
    assert found.features["observation.eye"].shape == eye.shape and found.stats["observation.eye"]["max"].shape == (3,)
    larger = {"eye": replace(eye, shape=(8, 8, 3))}
    text = refusal(lambda: agree(dataset, larger, ACTION_SPEC, 1 / RATE_HZ))
    assert "has shape (3, 4, 6): expected (8, 8, 3) (are its channels the first axis?)" in text


# words


def test_word_numbers_beyond_the_words_are_refused(tmp_path: Path) -> None:
    told = Spec((2,), ("w0", "w1"), ("1", "1"), (0.0, 0.0), (2.0, 2.0), "int32", ("", "go", "stop"))
    _, actions, rewards = make_episode(0, 6)
    numbers = np.array([[1, 2]] * 5 + [[3, 0]], np.int32)
    with DatasetWriter(tmp_path / "d", fps=20, observation_spec={"said": told}, action_spec=ACTION_SPEC) as writer:
        writer.add_episode({"said": numbers}, actions, rewards, success=True, task="t")
        writer.finish()
    text = refusal(lambda: agree(read_dataset(tmp_path / "d"), {"said": told}, ACTION_SPEC, 1 / RATE_HZ))
    assert "holds word number 3: expected whole numbers from 0" in text


# git-LFS


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize(
    "name",
    [FRAMES, "meta/episodes/chunk-000/file-000.parquet", "meta/info.json", "meta/stats.json", "meta/tasks.parquet"],
)
def test_every_file_that_was_not_fetched_is_named_as_that(ours: Path, name: str, hashed: bool) -> None:
    if not hashed:
        (ours / "meta/robotrl.json").unlink()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 69763\n"
    (ours / name).write_text(pointer)
    text = refusal(lambda: read_dataset(ours), DataError)
    assert text == (
        f"{ours / name} is a git-LFS pointer: expected the file itself; fetch it by `git lfs pull` in"
        f" {(ours / name).parent}"
    )


def test_a_video_that_was_not_fetched(ours: Path) -> None:
    (ours / "meta/robotrl.json").unlink()
    video = ours / "videos/observation.eye/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    video.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "file-000.mp4 is a git-LFS pointer" in refusal(lambda: read_dataset(ours), DataError)


def test_one_warning_says_all(foreign: Path) -> None:
    _name(foreign, ["action_0", "action_1"])
    content = json.loads((foreign / "meta/stats.json").read_text())
    content["action"]["q01"] = [-0.1, -0.1]
    (foreign / "meta/stats.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning) as said:
        fits(read_dataset(foreign))
    text = str(said[0].message)
    assert len(said) == 1 and "not checked" in text and "quantiles" in text and "\n" not in text
