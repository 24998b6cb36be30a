"""The real lerobot package opens what we write, and we open what it writes; see docs/datasets.md for how to run it."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from robotrl.datasets.chunks import load_chunks
from robotrl.datasets.lerobot import read_dataset
from tests.kits.data_helpers import write_dataset
from tests.kits.paths_kit import KITS
from tests.kits.video_kit import KEY, write_pictures

PYTHON = os.environ.get("ROBOTRL_LEROBOT_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="ROBOTRL_LEROBOT_PYTHON names no Python that has lerobot")


def lerobot(command: str, root: Path, tmp_path: Path) -> dict[str, np.ndarray]:
    out = tmp_path / "seen.npz"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    script = KITS / "lerobot_side.py"
    done = subprocess.run(
        [PYTHON, str(script), command, str(root), str(out)],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    with np.load(out) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("data_file_mib", [100, 0.0005], ids=["one file", "several files"])
def test_lerobot_opens_ours(tmp_path, data_file_mib):
    dataset = read_dataset(write_dataset(tmp_path / "ours", (9, 4, 1, 12, 3), data_file_mib=data_file_mib))
    assert (len(list((dataset.root / "data").rglob("*.parquet"))) > 1) == (data_file_mib < 1)
    seen = lerobot("read", dataset.root, tmp_path)
    about = json.loads(str(seen["about"]))
    for name in dataset.features:
        np.testing.assert_array_equal(seen[f"frame/{name}"].reshape(dataset.frames(name).shape), dataset.frames(name))
    assert about["tasks"] == [dataset.tasks[index] for index in dataset.frames("task_index")]
    assert about["episode_tasks"] == dataset.episodes["tasks"].tolist()
    assert about["names"] == ["pos_x_w", "pos_y_w", "yaw_w"]
    assert (about["robot_type"], about["fps"], about["num_episodes"]) == ("test arm", 20, 5)
    for name, values in dataset.episodes.items():
        if name != "tasks":
            np.testing.assert_array_equal(seen[f"episodes/{name}"], values.astype(seen[f"episodes/{name}"].dtype))
    for name, stats in dataset.stats.items():
        for key, value in stats.items():
            np.testing.assert_array_equal(seen[f"stats/{name}/{key}"], value)
    chunks = load_chunks(dataset, ["state"], horizon=4)
    np.testing.assert_array_equal(seen["chunks"], chunks.chunks)
    np.testing.assert_array_equal(seen["padding"], ~chunks.valid)
    np.testing.assert_array_equal(seen["last_episode"], dataset.episode(4)["action"])


def test_we_open_lerobots(tmp_path):
    put_in = lerobot("write", tmp_path / "foreign", tmp_path)
    dataset = read_dataset(tmp_path / "foreign")
    assert not dataset.verified
    assert (dataset.fps, dataset.robot_type) == (20.0, "so101")
    lengths = put_in.pop("lengths")
    np.testing.assert_array_equal(np.diff(dataset.offsets), lengths)
    np.testing.assert_array_equal(dataset.episodes["length"], lengths)
    for name, values in put_in.items():
        np.testing.assert_array_equal(dataset.frames(name).reshape(values.shape), values)
    np.testing.assert_allclose(dataset.stats["action"]["std"], put_in["action"].std(axis=0), rtol=1e-5)
    assert sorted(dataset.tasks) == ["task 0", "task 1"]
    words = [dataset.tasks[index] for index in dataset.frames("task_index")]
    assert words == [f"task {e % 2}" for e, length in enumerate(lengths) for _ in range(length)]


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("pictures", ["video", "video-exact"])
@pytest.mark.parametrize("video_file_mib", [200, 0.002], ids=["one file", "several files"])
@pytest.mark.usefixtures("own_cache")
def test_lerobot_sees_the_pictures_that_we_do(tmp_path, pictures, video_file_mib):
    """PyAV decodes on both sides, of other versions: an exact video is the same bytes, another differs by rounding."""
    given = write_pictures(tmp_path / "ours", (9, 4, 1, 12), pictures=pictures, video_file_mib=video_file_mib)
    dataset = read_dataset(tmp_path / "ours")
    assert (len(list((dataset.root / "videos").rglob("*.mp4"))) > 1) == (video_file_mib < 1)
    seen = lerobot("read-pictures", dataset.root, tmp_path)
    about = json.loads(str(seen["about"]))
    assert (about["videos"], about["shapes"][KEY]) == ([KEY], [3, 16, 24])
    off = np.abs(seen[f"frame/{KEY}"].astype(int) - dataset.frames(KEY))
    assert off.max() <= (0 if pictures == "video-exact" else 2)
    if pictures == "video-exact":
        np.testing.assert_array_equal(seen[f"frame/{KEY}"], given)
    np.testing.assert_array_equal(seen[f"pair/{KEY}"], seen[f"frame/{KEY}"][-2:])
    assert seen[f"stats/{KEY}/mean"].shape == (3, 1, 1)
    np.testing.assert_allclose(255 * seen[f"stats/{KEY}/q50"].reshape(-1), dataset.stats[KEY]["q50"])


@pytest.mark.usefixtures("own_cache")
def test_we_see_the_pictures_that_lerobot_does(tmp_path):
    """A camera in AV1, one in PNG files."""
    put_in = lerobot("write-pictures", tmp_path / "foreign", tmp_path)
    seen = lerobot("read-pictures", tmp_path / "foreign", tmp_path)
    dataset = read_dataset(tmp_path / "foreign")
    top, wrist = "observation.images.top", "observation.images.wrist"
    assert (dataset.features[top].dtype, dataset.features[wrist].dtype) == ("video", "image")
    assert dataset.features[top].info["video.codec"] == "av1"
    np.testing.assert_array_equal(np.diff(dataset.offsets), put_in["lengths"])
    np.testing.assert_array_equal(dataset.frames(wrist), put_in[wrist])
    assert np.abs(dataset.frames(top).astype(int) - seen[f"frame/{top}"]).max() <= 2
    assert np.abs(dataset.frames(top).astype(int) - put_in[top]).mean(axis=(1, 2, 3)).max() < 8
    assert abs(dataset.stats[top]["mean"] - put_in[top].mean(axis=(0, 1, 2))).max() < 3
    chunks = load_chunks(dataset, ["images.top", "images.wrist"], horizon=3)
    np.testing.assert_array_equal(chunks.obs["images.wrist"][[3, 9]], put_in[wrist][[3, 9]])
