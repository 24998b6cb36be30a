"""Pictures as videos: written in LeRobot's layout, looked at again, read back through a cache on the disk."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.datasets.chunks import load_chunks
from robotrl.datasets.image_cache import cache_folder
from robotrl.datasets.lerobot import DatasetWriter, read_dataset
from robotrl.datasets.stats import count_levels, describe, describe_levels
from robotrl.datasets.video import ENCODINGS, ClipFile, VideoShape, check_video, decode, encode
from robotrl.errors import ConfigError, DataError
from robotrl.spec import Spec
from robotrl.utils.installation import install_line
from tests.kits.data_helpers import tree
from tests.kits.video_kit import (
    ACTION,
    EPISODES,
    FPS,
    FRAMES,
    HEIGHT,
    KEY,
    PICTURE,
    SPECS,
    VIDEO,
    WIDTH,
    as_foreign,
    edit_json,
    write_mp4,
    write_pictures,
)

av = pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "cache"))


def difference(found: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Mean difference of each frame, in levels of 255."""
    return np.abs(found.astype(int) - given.astype(int)).mean(axis=(1, 2, 3))


def test_what_is_exact_comes_back_bit_for_bit_and_what_is_not_within_its_tolerance(tmp_path):
    seen = write_pictures(tmp_path / "exact", pictures="video-exact")
    write_pictures(tmp_path / "lossy", pictures="video")
    exact, lossy = read_dataset(tmp_path / "exact"), read_dataset(tmp_path / "lossy")
    assert exact.verified
    assert np.array_equal(exact.frames(KEY), seen)
    off = difference(lossy.frames(KEY), seen)
    assert lossy.frames(KEY).dtype == np.uint8
    # it does lose something, or the tolerance would be of no use
    assert 0.1 < off.max() <= ENCODINGS["video"].tolerance == 8.0
    told = lossy.provenance["pictures"]
    assert told["stored"] == "video"
    assert told["changed_by"][KEY]["mean"] == pytest.approx(off.max())
    assert exact.provenance["pictures"]["changed_by"] == {KEY: {"mean": 0.0, "largest": 0}}
    for dataset in (exact, lossy):
        assert dataset.observation_spec == SPECS
        assert dataset.features[KEY].shape == (HEIGHT, WIDTH, 3)


def test_layout_on_disk_is_lerobots(tmp_path):
    write_pictures(tmp_path / "d", (5, 1, 9), pictures="video")
    tables = ("info.json", "robotrl.json", "stats.json", "tasks.parquet")
    assert set(tree(tmp_path / "d")) == {VIDEO, EPISODES, FRAMES, *(f"meta/{name}" for name in tables)}
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert info["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    assert info["features"][KEY] == {
        "dtype": "video",
        "shape": [16, 24, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": 16,
            "video.width": 24,
            "video.codec": "h264",
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "video.fps": 20,
            "video.channels": 3,
            "has_audio": False,
            "video.crf": 18,
            "video.g": 2,
        },
    }
    assert KEY not in pq.read_schema(tmp_path / "d/data/chunk-000/file-000.parquet").names
    table = pq.read_table(tmp_path / "d" / EPISODES)
    places = {name: table[f"videos/{KEY}/{name}"].to_pylist() for name in ("chunk_index", "file_index")}
    assert places == {"chunk_index": [0, 0, 0], "file_index": [0, 0, 0]}
    assert table[f"videos/{KEY}/from_timestamp"].to_pylist() == [0.0, 0.25, 0.3]
    assert table[f"videos/{KEY}/to_timestamp"].to_pylist() == [0.25, 0.3, 0.75]
    assert VIDEO in json.loads((tmp_path / "d/meta/robotrl.json").read_text())["files"]


def test_every_frame_lies_at_its_time_and_every_second_one_stands_for_itself(tmp_path):
    write_pictures(tmp_path / "d", (5, 1, 9), pictures="video")
    with av.open(str(tmp_path / "d" / VIDEO)) as file:
        stream = file.streams.video[0]
        packets = [packet for packet in file.demux(stream) if packet.pts is not None]
        assert stream.frames == 15
        assert stream.average_rate == FPS
        assert [packet.pts * stream.time_base for packet in packets] == [Fraction(k, FPS) for k in range(15)]
        # an episode begins with a frame that needs no other
        assert [k for k, packet in enumerate(packets) if packet.is_keyframe] == [0, 2, 4, 5, 6, 8, 10, 12, 14]


def test_statistics_are_of_what_was_given_in_both_forms(tmp_path):
    seen = write_pictures(tmp_path / "d", (5, 1, 9), pictures="video")
    written = json.loads((tmp_path / "d/meta/stats.json").read_text())[KEY]
    assert np.asarray(written["mean"]).shape == (3, 1, 1)
    np.testing.assert_allclose(np.ravel(written["mean"]), seen.reshape(-1, 3).mean(axis=0) / 255)
    np.testing.assert_allclose(np.ravel(written["q10"]), np.quantile(seen.reshape(-1, 3), 0.1, axis=0) / 255)
    assert written["count"] == [15]
    stats = read_dataset(tmp_path / "d").stats[KEY]
    np.testing.assert_allclose(stats["mean"], seen.reshape(-1, 3).mean(axis=0))
    assert np.round(stats["max"]).tolist() == seen.reshape(-1, 3).max(axis=0).tolist()
    table = pq.read_table(tmp_path / "d" / EPISODES)
    of_second = np.ravel(table[f"stats/{KEY}/mean"].to_pylist()[1])
    np.testing.assert_allclose(of_second, seen[5].reshape(-1, 3).mean(axis=0) / 255)
    assert table[f"stats/{KEY}/count"].to_pylist() == [[5], [1], [9]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_counts_of_parts_give_the_statistics_of_the_whole(lengths, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, rng.integers(1, 257), (n, 2, 3, 3), dtype=np.uint8) for n in lengths]
    found, expected = describe_levels(sum(map(count_levels, parts))), describe(np.concatenate(parts))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_files_are_closed_before_their_size_and_no_episode_lies_in_two(tmp_path):
    lengths = (5, 1, 9, 3, 7)
    seen = write_pictures(tmp_path / "d", lengths, pictures="video-exact", video_file_mib=0.004, files_per_chunk=2)
    files = sorted(path.relative_to(tmp_path / "d").as_posix() for path in (tmp_path / "d/videos").rglob("*.mp4"))
    assert len(files) >= 3
    assert files[:3] == [
        f"videos/{KEY}/chunk-000/file-000.mp4",
        f"videos/{KEY}/chunk-000/file-001.mp4",
        f"videos/{KEY}/chunk-001/file-000.mp4",
    ]
    dataset = read_dataset(tmp_path / "d")
    assert np.array_equal(dataset.frames(KEY), seen)
    begins = dataset.episodes[f"videos/{KEY}/from_timestamp"]
    new = np.diff(dataset.episodes[f"videos/{KEY}/file_index"], prepend=-1) != 0
    assert (begins[new] == 0).all()
    assert (begins[~new] > 0).all()


def test_the_same_frames_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_pictures(tmp_path / name, pictures="video")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_the_bytes_do_not_depend_on_how_many_processors_there_are():
    program = textwrap.dedent("""
        import hashlib, os, sys
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
        from robotrl.datasets.video import ENCODINGS, encode
        from tests.kits.video_kit import scene
        print(hashlib.sha256(encode(scene(2, 9, 48, 40), 20, ENCODINGS["video"])).hexdigest())
    """)
    told = [
        subprocess.run(
            [sys.executable, "-c", program, count],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for count in ("1", "2")
    ]
    assert len(told[0]) == 65
    assert told[0] == told[1]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    fps=st.sampled_from([1, 7, 20, 29, 50, 120]),
    seed=st.integers(0, 2**32 - 1),
)
def test_clips_in_a_file_are_their_frames_whatever_size_rate_and_content(
    tmp_path_factory, lengths, height, width, fps, seed
):
    """Noise is the hardest content there is; what is exact is exact on it, too."""
    rng = np.random.default_rng(seed)
    clips = [rng.integers(0, 256, (n, height, width, 3), dtype=np.uint8) for n in lengths]
    path = tmp_path_factory.mktemp("clips") / "a.mp4"
    file = ClipFile(path, fps)
    for frames in clips:
        file.append(encode(frames, fps, ENCODINGS["video-exact"]))
    file.close()
    shape = VideoShape(height, width, fps, sum(lengths))
    check_video(path, shape)
    assert np.array_equal(np.stack(list(decode(path, shape))), np.concatenate(clips))


def test_pictures_that_change_too_much_are_refused_and_the_writer_goes_on(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (3, HEIGHT, WIDTH, 3), dtype=np.uint8)
    flat = np.full((2, HEIGHT, WIDTH, 3), 90, np.uint8)
    rest = {"success": True, "task": "look"}
    with DatasetWriter(tmp_path / "d", fps=FPS, observation_spec=SPECS, action_spec=ACTION, pictures="video") as writer:
        with pytest.raises(DataError) as caught:
            writer.add_episode({"state": np.zeros((3, 2)), "image_top": noise}, np.zeros((3, 2)), np.zeros(3), **rest)
        assert "observation.image_top: frame 0 changes by " in str(caught.value)
        assert "of 255 on average when it is encoded: expected 8 at most; pictures='video-exact'" in str(caught.value)
        assert str(tmp_path / "d") in str(caught.value)
        writer.add_episode({"state": np.zeros((2, 2)), "image_top": flat}, np.zeros((2, 2)), np.zeros(2), **rest)
        writer.finish()
    dataset = read_dataset(tmp_path / "d")
    assert dataset.num_episodes == 1
    assert difference(dataset.frames(KEY), flat).max() <= 2


@pytest.mark.parametrize(
    ("specs", "pictures", "message"),
    [
        ({"image_top": PICTURE}, "vidoe", "pictures 'vidoe' is unknown: did you mean 'video'"),
        ({"state": SPECS["state"]}, "video", "pictures is 'video', and the observations hold none"),
        (
            {"image_top": Spec((15, 24, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")},
            "video",
            "image_top is 24 x 15 pixels: expected even numbers for pictures='video'; 'video-exact' takes any",
        ),
        (
            {"map": Spec((16, 24, 2), ("road", "car"), ("1",) * 2, (0.0,) * 2, (255.0,) * 2, "uint8")},
            "video-exact",
            "map has 2 channels: expected 3 for a video",
        ),
    ],
)
def test_videos_that_cannot_be_are_refused_before_anything_is_written(tmp_path, specs, pictures, message):
    with pytest.raises(ConfigError, match=message):
        DatasetWriter(tmp_path / "d", fps=FPS, observation_spec=specs, action_spec=ACTION, pictures=pictures)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pictures", ["numbers", "video"])
def test_pictures_that_are_no_bytes_are_refused(tmp_path, pictures):
    with DatasetWriter(
        tmp_path / "d", fps=FPS, observation_spec=SPECS, action_spec=ACTION, pictures=pictures
    ) as writer:
        obs = {"state": np.zeros((1, 2)), "image_top": np.full((1, HEIGHT, WIDTH, 3), 0.5)}
        with pytest.raises(ConfigError, match="image_top' is float64: expected uint8, as pictures are bytes"):
            writer.add_episode(obs, np.zeros((1, 2)), np.zeros(1), success=True, task="look")


def test_without_pyav_numbers_are_read_and_one_error_says_what_to_install(tmp_path, monkeypatch):
    write_pictures(tmp_path / "d", pictures="video")
    monkeypatch.setitem(sys.modules, "av", None)
    dataset = read_dataset(tmp_path / "d")
    assert dataset.episode(2)["action"].shape == (9, 2)
    needs = "needs the module 'av': " + re.escape(install_line("video"))
    with pytest.raises(ConfigError, match=rf"column 'observation.image_top' of dataset .* {needs}"):
        dataset.frames(KEY)
    with pytest.raises(ConfigError, match=needs):
        load_chunks(dataset, ["image_top"], horizon=2)
    with pytest.raises(ConfigError, match=f"pictures='video' {needs}"):
        write_pictures(tmp_path / "e", pictures="video")
    assert not (tmp_path / "e").exists()


def test_chunks_have_pictures_that_stay_on_the_disk(tmp_path):
    seen = write_pictures(tmp_path / "d", (5, 1, 9), pictures="video-exact")
    data = load_chunks(read_dataset(tmp_path / "d"), ["state", "image_top"], horizon=3)
    assert np.array_equal(data.obs["image_top"][[7, 2, 14]], seen[[7, 2, 14]])
    assert data.chunks.shape == (15, 3, 2)
    bottom = data.obs["image_top"]
    while isinstance(bottom.base, np.ndarray):
        bottom = bottom.base
    assert isinstance(bottom, np.memmap)


def test_a_video_is_decoded_once_anywhere(tmp_path, capsys):
    seen = write_pictures(tmp_path / "d", pictures="video-exact")
    assert np.array_equal(read_dataset(tmp_path / "d").frames(KEY), seen)
    assert "decoding observation.image_top" in capsys.readouterr().err
    (cached,) = cache_folder().glob("*.npy")
    made = cached.stat().st_mtime_ns
    # a copy of the dataset is the same pictures
    (tmp_path / "d").rename(tmp_path / "moved")
    frames = read_dataset(tmp_path / "moved").frames(KEY)
    assert "decoding" not in capsys.readouterr().err
    # what is written to the array stays in this process
    frames[0] = 0
    assert np.array_equal(read_dataset(tmp_path / "moved").frames(KEY), seen)
    assert cached.stat().st_mtime_ns == made
    assert np.load(cached, allow_pickle=False).shape == seen.shape


def test_a_cache_file_that_was_cut_is_made_again_and_another_dataset_gets_its_own(tmp_path):
    seen = write_pictures(tmp_path / "d", pictures="video-exact")
    read_dataset(tmp_path / "d").frames(KEY)
    (cached,) = cache_folder().glob("*.npy")
    for size in (0, 20, cached.stat().st_size - 1):
        cached.write_bytes(cached.read_bytes()[:size])
        assert np.array_equal(read_dataset(tmp_path / "d").frames(KEY), seen)
    other = write_pictures(tmp_path / "e", (5, 1, 8), pictures="video-exact")
    assert np.array_equal(read_dataset(tmp_path / "e").frames(KEY), other)
    assert len(list(cache_folder().glob("*.npy"))) == 2


def _read(root: str, start, out) -> None:
    start.wait()
    out.put(read_dataset(root).frames(KEY)[-1].tobytes())


def test_processes_that_want_the_same_pictures_at_once_all_get_them(tmp_path):
    seen = write_pictures(tmp_path / "d", (40, 40), pictures="video-exact")
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_read, args=(str(tmp_path / "d"), start, out)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [out.get(timeout=120) for _ in processes] == [seen[-1].tobytes()] * 3
    for process in processes:
        process.join()
    assert len(list(cache_folder().glob("*.npy"))) == 1
    assert not list(cache_folder().glob("*.partial"))


@pytest.mark.parametrize(("limit", "stage"), [(8_000, "file-000.mp4"), (16_000, "Error writing bytes")])
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path, limit, stage):
    """A limit on file size fails writes as a full disk does: in the video, in a table after it, in the cache."""
    script = f"""
        import resource, signal, sys
        from pathlib import Path
        from tests.kits.video_kit import KEY, write_pictures
        from robotrl.datasets.lerobot import read_dataset
        from robotrl.errors import DataError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        write_pictures(Path("whole"), (30, 9), pictures="video-exact")
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        for act in (lambda: write_pictures(Path("d"), (30, 9), pictures="video-exact"),
                    lambda: read_dataset("whole").frames(KEY)):
            try:
                act()
            except DataError as error:
                print(error)
            else:
                print("no error")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    writing, reading = done.stdout.splitlines()
    assert writing.startswith("dataset d cannot be written: ")
    assert stage in writing
    assert "nothing was left under that name" in writing
    assert reading.startswith("dataset whole: observation.image_top: cannot be decoded to ")
    assert "1 MiB: File too large: set ROBOTRL_CACHE to another folder" in reading
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("cache", "whole")] == []
    assert not [path for path in cache_folder().iterdir() if path.suffix != ".lock"]


def test_a_cache_folder_that_cannot_be_is_named(tmp_path, monkeypatch):
    write_pictures(tmp_path / "d", pictures="video")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be decoded to .*file/robotrl/pictures, 1 MiB: .*: set ROBOTRL_CACHE"):
        read_dataset(tmp_path / "d").frames(KEY)


def test_hashes_cover_the_videos(tmp_path):
    write_pictures(tmp_path / "d", pictures="video")
    path = tmp_path / "d" / VIDEO
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=f"{VIDEO}: was altered: its SHA-256 is not the one in meta/robotrl.json"):
        read_dataset(tmp_path / "d")


def test_other_codecs_are_read(tmp_path):
    """AV1 as LeRobot writes it by default, HEVC, and H.264 with frames that are stored in another order."""
    seen = write_pictures(tmp_path / "d", (5, 1, 9), pictures="video")
    as_foreign(tmp_path / "d")
    for codec, options in (
        ("libsvtav1", {"g": "2", "crf": "30"}),
        ("libx265", {"crf": "20", "x265-params": "log-level=none"}),
        ("libx264", {"bf": "3", "crf": "12"}),
    ):
        # one clip over all: the times are the same
        big = np.repeat(np.repeat(seen, 4, axis=1), 4, axis=2)
        write_mp4(tmp_path / "d" / VIDEO, big, codec=codec, options=options)
        _declare_size(tmp_path / "d", big.shape[1:])
        assert difference(read_dataset(tmp_path / "d").frames(KEY), big).max() < 8, codec


def _declare_size(root: Path, shape) -> None:
    edit_json(root, "meta/info.json", lambda info: info["features"][KEY].update(shape=list(shape)))
