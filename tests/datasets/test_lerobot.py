"""Round trip, layout, and what the writer refuses."""

import itertools
import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from robotrl.datasets.lerobot import DatasetWriter, read_dataset
from robotrl.datasets.stats import describe
from robotrl.errors import ConfigError, NumericsError
from robotrl.spec import Spec
from tests.kits.data_helpers import ACTION_SPEC, INF, OBSERVATION_SPEC, make_episode, make_writer, tree, write_dataset


def test_round_trip(tmp_path):
    lengths = (3, 1, 6, 4)
    dataset = read_dataset(write_dataset(tmp_path / "d", lengths))
    assert dataset.verified
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps, dataset.robot_type) == (4, 14, 20.0, "test arm")
    assert dataset.observation_spec == OBSERVATION_SPEC
    assert dataset.action_spec == ACTION_SPEC
    assert dataset.provenance == {"sim": "made/up", "seed": 7}
    assert dataset.tasks == ("task 0", "task 1")
    assert dataset.offsets.tolist() == [0, 3, 4, 10, 14]
    assert dataset.episodes["state_id"].tolist() == [100, 101, 102, 103]
    assert dataset.episodes["mode"].tolist() == ["left", "right", "left", "right"]
    assert dataset.episodes["success"].tolist() == [True, False, True, False]
    for e, length in enumerate(lengths):
        obs, actions, rewards = make_episode(e, length)
        found = dataset.episode(e)
        np.testing.assert_array_equal(found["observation.state"], obs["state"])
        np.testing.assert_array_equal(found["observation.force"], obs["force"][:, 0])
        np.testing.assert_array_equal(found["action"], actions)
        np.testing.assert_array_equal(found["next.reward"], rewards)
        np.testing.assert_array_equal(found["next.done"], np.arange(length) == length - 1)
        np.testing.assert_array_equal(found["next.truncated"], (np.arange(length) == length - 1) & (e % 2 == 1))
        np.testing.assert_array_equal(found["next.success"], (np.arange(length) == length - 1) & (e % 2 == 0))
        np.testing.assert_array_equal(found["timestamp"], (np.arange(length) / 20).astype(np.float32))
        assert (found["task_index"] == e % 2).all()
    for name in dataset.features:
        assert dataset.frames(name).flags.c_contiguous
        assert dataset.frames(name).dtype != np.float64


def test_statistics_are_those_of_all_frames(tmp_path):
    dataset = read_dataset(write_dataset(tmp_path / "d", (5, 2, 9), data_file_mib=0.0003))
    actions = dataset.frames("action").astype(np.float64)
    stats = dataset.stats["action"]
    np.testing.assert_allclose(stats["mean"], actions.mean(axis=0))
    np.testing.assert_allclose(stats["std"], actions.std(axis=0))
    np.testing.assert_array_equal(stats["min"], actions.min(axis=0))
    np.testing.assert_array_equal(stats["max"], actions.max(axis=0))
    np.testing.assert_allclose(stats["q10"], np.quantile(actions, 0.1, axis=0))
    assert stats["count"].tolist() == [16]


def test_statistics_by_hand():
    stats = describe(np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]], np.float32))
    assert {key: value.tolist() for key, value in stats.items() if key in ("min", "max", "mean", "count", "q50")} == {
        "min": [0.0, 1.0],
        "max": [4.0, 1.0],
        "mean": [2.0, 1.0],
        "count": [3],
        "q50": [2.0, 1.0],
    }
    np.testing.assert_allclose(stats["std"], [np.sqrt(8 / 3), 0.0])
    np.testing.assert_allclose([stats["q01"][0], stats["q10"][0], stats["q90"][0]], [0.04, 0.4, 3.6])


def test_layout_on_disk(tmp_path):
    root = write_dataset(tmp_path / "d")
    assert sorted(tree(root)) == [
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/robotrl.json",
        "meta/stats.json",
        "meta/tasks.parquet",
    ]
    info = json.loads((root / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert info["splits"] == {"train": "0:4"}
    assert info["features"]["observation.state"] == {
        "dtype": "float32",
        "shape": [3],
        "names": ["pos_x_w", "pos_y_w", "yaw_w"],
    }
    manifest = json.loads((root / "meta/robotrl.json").read_text())
    assert manifest["schema_version"] == 1
    assert manifest["observation_spec"]["state"]["units"] == ["m", "m", "rad"]
    assert sorted(manifest["files"]) == sorted(set(tree(root)) - {"meta/robotrl.json"})
    with pq.ParquetFile(root / "data/chunk-000/file-000.parquet") as file:
        assert file.metadata.num_row_groups == 4
        types = {field.name: str(field.type) for field in file.schema_arrow}
    assert types["observation.state"] == "fixed_size_list<element: float>[3]"
    assert types["observation.force"] == "float"
    assert (types["next.done"], types["index"], types["timestamp"]) == ("bool", "int64", "float")
    row = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").slice(2, 1).to_pydict()
    assert (row["dataset_from_index"], row["dataset_to_index"], row["tasks"]) == ([4], [10], [["task 0"]])
    np.testing.assert_allclose(row["stats/action/mean"][0], make_episode(2, 6)[1].mean(axis=0, dtype=np.float64))


def test_files_are_split_by_size_and_chunk(tmp_path):
    whole = read_dataset(write_dataset(tmp_path / "whole", (4,) * 9))
    split = read_dataset(write_dataset(tmp_path / "split", (4,) * 9, data_file_mib=0.0008, files_per_chunk=2))
    names = sorted(name for name in tree(split.root) if name.startswith("data/"))
    assert names[:3] == [
        "data/chunk-000/file-000.parquet",
        "data/chunk-000/file-001.parquet",
        "data/chunk-001/file-000.parquet",
    ]
    episodes = [pq.read_table(split.root / name)["episode_index"].to_pylist() for name in names]
    assert all(set(a).isdisjoint(b) for a, b in itertools.pairwise(episodes))
    assert any(len(set(numbers)) > 1 for numbers in episodes)
    assert len(list((split.root / "meta/episodes").rglob("*.parquet"))) > 1
    for name in whole.features:
        np.testing.assert_array_equal(split.frames(name), whole.frames(name))
    assert split.episodes["state_id"].tolist() == whole.episodes["state_id"].tolist()


def test_equal_episodes_give_equal_bytes(tmp_path):
    assert tree(write_dataset(tmp_path / "a")) == tree(write_dataset(tmp_path / "b"))


@settings(max_examples=30, deadline=None)
@given(data=st.data(), length=st.integers(1, 5))
def test_any_finite_float32_survives(tmp_path_factory, data, length):
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    actions = data.draw(hnp.arrays(np.float32, (length, 2), elements=numbers))
    root = tmp_path_factory.mktemp("any") / "d"
    free = replace(ACTION_SPEC, low=(-INF, -INF), high=(INF, INF))
    with DatasetWriter(root, fps=20, observation_spec=OBSERVATION_SPEC, action_spec=free) as writer:
        obs, _, rewards = make_episode(0, length)
        writer.add_episode(obs, actions, rewards, success=False, task="any")
        writer.finish()
    np.testing.assert_array_equal(read_dataset(root).frames("action"), actions)


def test_nothing_is_left_without_finish(tmp_path):
    with make_writer(tmp_path / "d") as writer:
        writer.add_episode(*make_episode(0, 3), success=True, task="t")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), make_writer(tmp_path / "d") as writer:
        writer.add_episode(*make_episode(0, 3), success=True, task="t")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_existing_dataset_is_not_touched(tmp_path):
    root = write_dataset(tmp_path / "d")
    before = tree(root)
    with pytest.raises(ConfigError, match="d exists already: expected a new or empty directory"):
        make_writer(root)
    assert tree(root) == before


def test_directory_filled_meanwhile_is_kept(tmp_path):
    root = tmp_path / "d"
    with make_writer(root) as writer:
        writer.add_episode(*make_episode(0, 3), success=True, task="t")
        root.mkdir()
        (root / "other").write_text("mine")
        with pytest.raises(Exception, match="cannot be written"):
            writer.finish()
    assert tree(tmp_path) == {"d/other": b"mine"}


def test_empty_dataset_is_refused(tmp_path):
    with make_writer(tmp_path / "d") as writer, pytest.raises(ConfigError, match="0 episodes"):
        writer.finish()


def test_closed_writer_refuses(tmp_path):
    with make_writer(tmp_path / "d") as writer:
        writer.add_episode(*make_episode(0, 3), success=True, task="t")
        writer.finish()
        with pytest.raises(ConfigError, match="is closed"):
            writer.add_episode(*make_episode(0, 3), success=True, task="t")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda obs, a, r: ({**obs, "stat": obs.pop("state")}, a, r), ConfigError, "did you mean 'observation.state'"),
        (lambda obs, a, r: ({"state": obs["state"]}, a, r), ConfigError, "'observation.force' is missing"),
        (lambda obs, a, r: (obs, a[:, :1], r), ConfigError, r"'action' is float32 of shape \(4, 1\): .* \(4, 2\)"),
        (lambda obs, a, r: (obs, a[:3], r), ConfigError, "expected numbers of shape"),
        (lambda obs, a, r: (obs, a, r[:, None]), None, ""),
        (
            lambda obs, a, r: (obs, np.where(a == a[2, 1], np.nan, a), r),
            NumericsError,
            r"'action' of episode 0 .* \[2, 1\]",
        ),
        (lambda obs, a, r: (obs, a, r * np.inf), NumericsError, "'next.reward' of episode 0 is not finite"),
        (lambda obs, a, r: (obs, a.astype(np.float64) * 1e39, r), NumericsError, "'action'"),
        (lambda obs, a, r: (obs, a[:0], r), ConfigError, "0 frames"),
    ],
)
def test_episode_is_checked(tmp_path, change, error, message):
    with make_writer(tmp_path / "d") as writer:
        arrays = change(*make_episode(0, 4))
        if error is None:
            writer.add_episode(*arrays, success=True, task="t")
            assert read_dataset(writer.finish()).frames("next.reward").shape == (4,)
            return
        with pytest.raises(error, match=message):
            writer.add_episode(*arrays, success=True, task="t")
        assert writer.num_episodes == 0


def test_extra_columns_are_checked(tmp_path):
    with make_writer(tmp_path / "d") as writer:
        for extra in ({"length": 3}, {"a/b": 3}, {"success": True}):
            with pytest.raises(ConfigError, match="taken by the format"):
                writer.add_episode(*make_episode(0, 3), success=True, task="t", extra=extra)
        with pytest.raises(ConfigError, match="expected a bool, int, float or str"):
            writer.add_episode(*make_episode(0, 3), success=True, task="t", extra={"a": [1]})
        writer.add_episode(*make_episode(0, 3), success=True, task="t", extra={"a": 1})
        for extra in ({"a": "1"}, {}, {"a": 1, "b": 2}):
            with pytest.raises(ConfigError, match="expected the first episode's"):
                writer.add_episode(*make_episode(0, 3), success=True, task="t", extra=extra)


def test_spec_and_settings_are_checked(tmp_path):
    picture = Spec((8, 8, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (1.0,) * 3, "float32")
    with pytest.raises(ConfigError, match="expected a vector of numbers"):
        DatasetWriter(tmp_path / "d", fps=20, observation_spec={"image": picture}, action_spec=ACTION_SPEC)
    vector = Spec((1,), ("x",), ("m",), (-INF,), (INF,))
    with pytest.raises(ConfigError, match="holds a slash"):
        DatasetWriter(tmp_path / "d", fps=20, observation_spec={"a/b": vector}, action_spec=ACTION_SPEC)
    for wrong in ({"fps": 0}, {"fps": 12.5}, {"data_file_mib": -1}, {"files_per_chunk": 0.5}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is"):
            make_writer(tmp_path / "d", **wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("limit", "episodes", "stage"), [(20_000, 50, "adding"), (20_000, 1, "finishing")])
def test_full_disk_is_reported_and_leaves_nothing(tmp_path, limit, episodes, stage):
    """A file-size limit fails writes as a full disk does; a dataset that was there before is untouched."""
    write_dataset(tmp_path / "before")
    before = tree(tmp_path)
    code = textwrap.dedent(
        f"""
        import resource, sys
        from pathlib import Path
        from tests.kits.data_helpers import make_episode, make_writer
        from robotrl.errors import DataError
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        writer = make_writer(Path({str(tmp_path / "d")!r}))
        stage = "adding"
        try:
            for episode in range({episodes}):
                writer.add_episode(*make_episode(episode, 50), success=True, task="t")
            stage = "finishing"
            writer.finish()
        except DataError as error:
            print(f"{{stage}}: {{error}}")
            sys.exit(2)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(f"{stage}: dataset {tmp_path / 'd'} cannot be written: ")
    assert "File too large" in done.stdout
    assert done.stdout.count("\n") == 1
    assert tree(tmp_path) == before


def test_killed_writer_leaves_no_dataset_under_the_name(tmp_path):
    code = textwrap.dedent(
        f"""
        import os, signal, sys
        from pathlib import Path
        from tests.kits.data_helpers import make_episode, make_writer
        writer = make_writer(Path({str(tmp_path / "d")!r}))
        writer.add_episode(*make_episode(0, 30), success=True, task="t")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=100)
    assert done.returncode == -9
    assert not (tmp_path / "d").exists()
    write_dataset(tmp_path / "d")
    assert read_dataset(tmp_path / "d").num_episodes == 4
