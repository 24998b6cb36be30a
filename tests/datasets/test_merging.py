"""Datasets that are merged: nothing is lost, differing ones are refused by name, a clone learns from the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robotrl.cli.main import main
from robotrl.datasets.merging import merge
from robotrl.datasets.reader import read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import CapabilityError, ConfigError, DataError
from tests.kits.data_helpers import ACTION_SPEC, OBSERVATION_SPEC, make_episode, make_writer, tree, write_dataset


def written(root: Path, lengths: tuple[int, ...], extra: dict[str, Any], **writer: Any) -> Path:
    """A dataset with columns of its own in the episodes table."""
    with make_writer(root, **writer) as out:
        for e, length in enumerate(lengths):
            obs, actions, rewards = make_episode(e, length)
            out.add_episode(obs, actions, rewards, success=e == 0, truncated=e != 0, task=f"task {e}", extra=extra)
        out.finish()
    return root


def test_all_frames_and_outcomes_are_kept_in_order(tmp_path: Path) -> None:
    parts = [
        read_dataset(write_dataset(tmp_path / "one", (3, 1, 6))),
        read_dataset(write_dataset(tmp_path / "two", (4, 2))),
    ]
    seen: list[None] = []
    merged = merge(parts, tmp_path / "all", lambda: seen.append(None))
    assert (merged.episodes, merged.frames, merged.left_out, merged.differing) == (5, 16, (), ())
    assert len(seen) == 5
    found = read_dataset(tmp_path / "all")
    assert found.verified
    assert (found.observation_spec, found.action_spec) == (OBSERVATION_SPEC, ACTION_SPEC)
    assert (found.fps, found.robot_type) == (20.0, "test arm")
    for name in ("observation.state", "observation.force", "action", "next.reward", "next.done", "next.truncated"):
        np.testing.assert_array_equal(found.frames(name), np.concatenate([part.frames(name) for part in parts]))
    for name in ("success", "length", "state_id", "mode"):
        np.testing.assert_array_equal(found.episodes[name], np.concatenate([part.episodes[name] for part in parts]))
    told = [found.tasks[found.frames("task_index")[start]] for start in found.offsets[:-1]]
    assert told == ["task 0", "task 1", "task 0", "task 0", "task 1"]
    own = [{"name": name, "episodes": count, "sim": "made/up", "seed": 7} for name, count in (("one", 3), ("two", 2))]
    assert found.provenance == {"sim": "made/up", "seed": 7, "merged": own}
    merge(parts, tmp_path / "again")
    assert tree(tmp_path / "again") == tree(tmp_path / "all")


def test_what_not_all_state_is_left_out_and_named(tmp_path: Path) -> None:
    one = written(tmp_path / "one", (2, 2), {"state_id": 3, "mode": "left"}, provenance={"sim": "a", "seed": 1})
    two = written(tmp_path / "two", (3,), {"state_id": 4, "driver": "x"}, provenance={"sim": "a", "seed": 2})
    merged = merge([read_dataset(one), read_dataset(two)], tmp_path / "all")
    assert merged.left_out == ("driver", "mode")
    assert merged.differing == ("seed",)
    found = read_dataset(tmp_path / "all")
    assert found.episodes["state_id"].tolist() == [3, 3, 4]
    assert "mode" not in found.episodes
    assert found.provenance["sim"] == "a" and "seed" not in found.provenance


def test_datasets_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    first = read_dataset(write_dataset(tmp_path / "first"))
    state = OBSERVATION_SPEC["state"]
    units = tuple(["cm", *state.units[1:]])
    others: dict[str, tuple[dict[str, Any], str]] = {
        "rate": ({"fps": 10}, r"other.*: rate, Hz, 10\.0: expected 20\.0 as of .*first"),
        "robot": ({"robot_type": "hand"}, "robot type 'hand': expected 'test arm'"),
        "units": (
            {"observation_spec": {**OBSERVATION_SPEC, "state": replace(state, units=units)}},
            r"observation 'state', units, \('cm'",
        ),
        "keys": ({"observation_spec": {"state": state}}, r"observations \['state'\]: expected \['force', 'state'\]"),
    }
    for name, (changed, says) in others.items():
        root = tmp_path / f"other-{name}"
        settings: dict[str, Any] = {
            "fps": 20,
            "robot_type": "test arm",
            "observation_spec": OBSERVATION_SPEC,
            **changed,
        }
        with DatasetWriter(root, action_spec=ACTION_SPEC, **settings) as out:
            obs, actions, rewards = make_episode(0, 3)
            given = {key: obs[key] for key in settings["observation_spec"]}
            out.add_episode(given, actions, rewards, success=True, task="t")
            out.finish()
        with pytest.raises(ConfigError, match=says):
            merge([first, read_dataset(root)], tmp_path / "all")
    other = written(tmp_path / "text", (2,), {"state_id": "three", "mode": "left"})
    with pytest.raises(ConfigError, match=r"text: column 'state_id' of its episodes is text: expected int64 as of"):
        merge([first, read_dataset(other)], tmp_path / "all")
    with pytest.raises(ConfigError, match="1 dataset to merge: expected two or more"):
        merge([first], tmp_path / "all")
    with pytest.raises(ConfigError, match="first is named twice"):
        merge([first, read_dataset(tmp_path / "first")], tmp_path / "all")
    (tmp_path / "first/meta/robotrl.json").unlink()
    with pytest.raises(DataError, match="does not state its observations and units"):
        merge([read_dataset(tmp_path / "first"), first], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_videos_are_not_encoded_twice(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")
    from tests.kits.video_kit import write_pictures

    write_pictures(tmp_path / "seen", pictures="video")
    parts = [read_dataset(tmp_path / "seen")] * 2
    with pytest.raises(CapabilityError, match=r"holds observation.* as videos"):
        merge(parts, tmp_path / "all")


def test_a_clone_learns_from_two_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, mode in enumerate(("clockwise", "anticlockwise")):
        command = ["demos", "mujoco/reach", "--out", str(tmp_path / mode), "--episodes", "3", "--mode", mode]
        assert main([*command, "--seed", str(seed)]) == 0
    both = [str(tmp_path / "clockwise"), str(tmp_path / "anticlockwise")]
    assert main(["dataset", "merge", *both, "--out", str(tmp_path / "mixed")]) == 0
    shown = capsys.readouterr().out
    assert "6 episodes" in shown and "they differ in expert, seed: see `merged` in" in shown
    learn = ["--algo", "bc", "--algo.updates", "4", "--algo.updates-per-iteration", "2", "--evaluation.episodes", "2"]
    small = ["--policy", "gaussian", "--policy.hidden", "8", "--dataset", str(tmp_path / "mixed")]
    assert main(["train", "--sim", "mujoco/reach", *learn, *small, "--run-dir", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run/run.json").read_text())
    assert main(["dataset", "merge", *both, "--out", str(tmp_path / "mixed")]) == 2
    assert "mixed" in capsys.readouterr().err
    assert main(["dataset", "merg", *both]) == 2
    assert "did you mean 'merge'" in capsys.readouterr().err
    assert main(["dataset"]) == 0
    assert "merge" in capsys.readouterr().out
