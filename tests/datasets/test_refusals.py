"""A dataset that is truncated, altered or inconsistent is refused by name, with what is wrong."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import DataError, RobotrlError
from tests.kits.data_helpers import write_dataset
from tests.kits.refusals import raises_naming

FRAMES = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
FILES = (FRAMES, EPISODES, "meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/robotrl.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("whole") / "demos")


@pytest.fixture
def ours(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "demos"))


@pytest.fixture
def foreign(ours) -> Path:
    """The same dataset without our file, as another writer would leave it: nothing is hashed."""
    (ours / "meta/robotrl.json").unlink()
    return ours


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_dataset(root)
    text = str(caught.value)
    assert "\n" not in text
    return text


def edit_json(root: Path, name: str, **changes) -> None:
    content = json.loads((root / name).read_text())
    content.update(changes)
    (root / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_column(root: Path, name: str, column: str, values) -> None:
    """Put other values in a column; None removes it."""
    table = pq.read_table(root / name)
    at = table.column_names.index(column)
    table = table.remove_column(at) if values is None else table.set_column(at, column, values)
    pq.write_table(table, root / name)


def column(root: Path, name: str) -> np.ndarray:
    return pq.read_table(root / FRAMES)[name].to_numpy().copy()


@pytest.mark.parametrize("name", FILES)
def test_truncated_file(ours, name):
    data = (ours / name).read_bytes()
    (ours / name).write_bytes(data[: len(data) // 2])
    text = refusal(ours)
    assert f"dataset {ours}: {name}: " in text
    assert "truncated" in text


@pytest.mark.parametrize("name", FILES[:-1])
def test_missing_file(ours, name):
    (ours / name).unlink()
    assert f"{name}: is missing" in refusal(ours)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(FILES), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_altered_bit(whole, name, where, bit):
    """Reading a dataset never succeeds after any bit of any of its files has flipped."""
    path = whole / name
    good = path.read_bytes()
    at = int(where * len(good))
    try:
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
        assert name in refusal(whole)
    finally:
        path.write_bytes(good)
    assert read_dataset(whole).verified


def test_added_file(ours):
    shutil.copy(ours / FRAMES, ours / "data/chunk-000/file-001.parquet")
    assert "data/chunk-000/file-001.parquet: is not listed in meta/robotrl.json" in refusal(ours)


def test_readme_may_be_added(ours):
    (ours / "README.md").write_text("# Mine")
    assert read_dataset(ours).verified


def test_other_manifest_schema(ours):
    edit_json(ours, "meta/robotrl.json", schema_version=2)
    assert "meta/robotrl.json has schema_version 2, written by a newer robotrl" in refusal(ours)


def test_renamed_file_is_pointed_at(ours):
    (ours / FRAMES).rename(ours / "data/chunk-000/file-000.parquet.bak")
    assert f"{FRAMES}: is missing: found data/chunk-000/file-000.parquet.bak instead" in refusal(ours)


def test_no_such_dataset(ours):
    assert refusal(ours.parent / "demo") == f"dataset {ours.parent / 'demo'} does not exist: did you mean {ours}?"
    assert f"did you mean {ours}?" in refusal(ours.parent)
    assert "expected a dataset of layout v3.0" in refusal(ours / "data")


def test_without_hashes_it_reads_as_unverified(foreign, whole):
    dataset, original = read_dataset(foreign), read_dataset(whole)
    assert not dataset.verified
    assert (dataset.observation_spec, dataset.action_spec, dataset.provenance) == (None, None, {})
    for name in original.features:
        np.testing.assert_array_equal(dataset.frames(name), original.frames(name))


def test_statistics_are_computed_where_the_writer_left_none(foreign, whole):
    (foreign / "meta/stats.json").unlink()
    np.testing.assert_array_equal(
        read_dataset(foreign).stats["action"]["q90"], read_dataset(whole).stats["action"]["q90"]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codebase_version": "v2.1"}, "codebase_version is 'v2.1': expected 'v3.0'; LeRobot converts v2.1"),
        ({"codebase_version": "v3.1"}, "codebase_version is 'v3.1': expected 'v3.0'"),
        ({"total_frames": 15}, "total_frames is 15: meta/episodes holds 14"),
        ({"total_episodes": 3}, "total_episodes is 3: meta/episodes holds 4"),
        ({"total_tasks": 1}, "total_tasks is 1: meta/tasks.parquet holds 2"),
        ({"total_frames": "14"}, "total_frames is '14': expected a whole number"),
        ({"total_frames": None, "total_frame": 14}, "total_frames is None: expected .*: found 'total_frame'"),
        ({"fps": 0}, "fps is 0: expected a rate in Hz above 0"),
        ({"data_path": "../../etc/{chunk_index}"}, "data_path is '../../etc"),
        ({"features": [1]}, r"features is \[1\]: expected an object"),
        ({"features": {"action": {"dtype": "float32"}}}, "feature 'action' is .*: expected dtype, shape and names"),
        ({"features": {"action": {"dtype": "float31", "shape": [2]}}}, "feature 'action' is float31"),
        ({"features": {"indx": {"dtype": "int64", "shape": [1]}}}, "feature '.*' is missing"),
    ],
)
def test_unusable_info(foreign, changes, message):
    edit_json(foreign, "meta/info.json", **changes)
    with pytest.raises(DataError, match=f"meta/info.json: {message}"):
        read_dataset(foreign)


def test_statistics_of_other_data(foreign):
    stats = json.loads((foreign / "meta/stats.json").read_text())
    stats["action"]["mean"][1] += 0.01
    edit_json(foreign, "meta/stats.json", **stats)
    assert "meta/stats.json: mean of 'action'[1] is " in refusal(foreign)
    stats["action"]["mean"] = [0.0]
    edit_json(foreign, "meta/stats.json", **stats)
    assert "mean of 'action' is [0.0]: expected 2 finite numbers" in refusal(foreign)
    edit_json(foreign, "meta/stats.json", action=None, actions=stats["action"])
    assert "has no statistics of 'action': found 'actions'" in refusal(foreign)
    (foreign / "meta/stats.json").write_text('{"action": {"mean": [NaN, 0]}}')
    assert "NaN is not a finite number" in refusal(foreign)


def test_non_finite_frame(foreign):
    actions = np.stack(column(foreign, "action"))
    actions[5, 1] = np.nan
    edit_column(foreign, FRAMES, "action", pa.FixedSizeListArray.from_arrays(pa.array(actions.reshape(-1)), 2))
    assert f"{FRAMES}: column 'action' is not finite at row 5, element [1]" in refusal(foreign)


def test_missing_column(foreign):
    table = pq.read_table(foreign / FRAMES)
    pq.write_table(
        table.rename_columns([{"action": "actions"}.get(n, n) for n in table.column_names]), foreign / FRAMES
    )
    assert f"{FRAMES}: has no column 'action': found 'actions'" in refusal(foreign)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([[1.0, 2.0]] * 13 + [[1.0]]), r"holds lists of lengths \[1, 2\]"),
        (pa.array([[1.0, 2.0]] * 13 + [None]), "holds 1 missing values"),
        (pa.array([[1.0, 2.0]] * 13 + [[1.0, None]]), "holds 1 missing values"),
        (pa.array([[1.0, 2.0, 3.0]] * 14), r"holds 42 numbers in 14 frames: expected shape \(2,\)"),
        (pa.array(["left"] * 14), "is stored as string: expected float32"),
    ],
)
def test_column_of_another_kind(foreign, values, message):
    edit_column(foreign, FRAMES, "action", values)
    with pytest.raises(DataError, match=f"{FRAMES}: column 'action' {message}"):
        read_dataset(foreign)


def test_other_list_types_are_read(foreign, whole):
    """Converted datasets hold lists of free length and doubles; the numbers are what counts."""
    edit_column(
        foreign, FRAMES, "action", pa.array(np.stack(column(foreign, "action")).tolist(), pa.list_(pa.float64()))
    )
    np.testing.assert_array_equal(read_dataset(foreign).frames("action"), read_dataset(whole).frames("action"))


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("index", 4, 5, "data: index of frame 4 is 5: expected 4"),
        ("episode_index", 3, 0, "data: episode_index of frame 3 is 0: expected 1"),
        ("frame_index", 13, 4, "data: frame_index of frame 13 is 4: expected 3"),
        ("task_index", 0, 2, "data: task_index of frame 0 is 2: expected 0 to 1"),
    ],
)
def test_counters_that_do_not_fit(foreign, name, row, value, message):
    values = column(foreign, name)
    values[row] = value
    edit_column(foreign, FRAMES, name, pa.array(values))
    assert message in refusal(foreign)


def test_frames_that_are_missing(foreign):
    pq.write_table(pq.read_table(foreign / FRAMES).slice(0, 13), foreign / FRAMES)
    assert "total_frames is 14: the files in data/ hold 13" in refusal(foreign)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("length", [3, 1, 5, 4], "episode 2 has length 5 and frames 4 to 10: expected 4 to 9"),
        ("dataset_to_index", [3, 4, 11, 14], "episode 2 has length 6 and frames 4 to 11: expected 4 to 10"),
        ("episode_index", [0, 1, 1, 3], "episode_index in row 2 is 1: expected 2"),
        ("data/file_index", [0, 0, 1, 1], "data/chunk-000/file-001.parquet: is missing"),
        ("length", [3.0, 1.0, 6.0, 4.0], "column 'length' is double or has gaps: expected integers"),
        ("length", [3, None, 6, 4], "column 'length' is int64 or has gaps: expected integers"),
        ("length", None, "has no column 'length'"),
    ],
)
def test_episodes_table_that_does_not_fit(foreign, name, values, message):
    edit_column(foreign, EPISODES, name, None if values is None else pa.array(values))
    assert message in refusal(foreign)


def test_tasks_that_do_not_fit(foreign):
    edit_column(foreign, "meta/tasks.parquet", "task_index", pa.array([0, 2]))
    assert "meta/tasks.parquet: has task_index ['0', '2']: expected each of 0 to 1" in refusal(foreign)
    edit_column(foreign, "meta/tasks.parquet", "task_index", None)
    assert "expected task_index and the task texts" in refusal(foreign)


@pytest.mark.parametrize("name", ["meta/tasks.parquet", EPISODES, FRAMES])
def test_altered_page_without_hashes(foreign, name):
    """Parquet's own page checksums, which we write, catch what no hash covers."""
    with pq.ParquetFile(foreign / name) as file:
        pages = [file.metadata.row_group(0).column(i) for i in range(file.metadata.num_columns)]
        wanted = next(page for page in pages if not page.path_in_schema.startswith("stats/"))
        at = wanted.data_page_offset + wanted.total_compressed_size - 2
    data = bytearray((foreign / name).read_bytes())
    data[at] ^= 0x10
    (foreign / name).write_bytes(bytes(data))
    assert f"{name}: cannot be read as parquet, truncated or altered" in refusal(foreign)


def test_texts_are_listed_and_not_loaded(foreign):
    features = json.loads((foreign / "meta/info.json").read_text())["features"]
    features["remark"] = {"dtype": "string", "shape": [1], "names": None}
    edit_json(foreign, "meta/info.json", features=features)
    dataset = read_dataset(foreign)
    assert dataset.features["remark"].shape == (1,)
    with pytest.raises(RobotrlError, match=r"column 'remark' is string of shape \(1,\): expected numbers or colour"):
        dataset.frames("remark")
    with raises_naming(RobotrlError, "column", "actions", nearest="action"):
        dataset.frames("actions")
    with raises_naming(RobotrlError, "episode", 4, 0, 3):
        dataset.episode(4)
