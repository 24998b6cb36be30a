"""A video that is not what the tables say is refused by name, and so is a picture file in the frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import ConfigError, DataError
from tests.kits.video_kit import (
    EPISODES,
    FRAMES,
    HEIGHT,
    KEY,
    VIDEO,
    WIDTH,
    as_foreign,
    edit_column,
    edit_json,
    png,
    scene,
    store_as_png,
    write_mp4,
    write_pictures,
)

av = pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")
LENGTHS = (5, 1, 9)
TOTAL = sum(LENGTHS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def foreign(tmp_path) -> Path:
    """Videos of three episodes as another writer would leave them: nothing is hashed."""
    write_pictures(tmp_path / "d", LENGTHS, pictures="video")
    return as_foreign(tmp_path / "d")


@pytest.fixture
def seen() -> np.ndarray:
    return np.concatenate([scene(e, length) for e, length in enumerate(LENGTHS)])


def refusal(root: Path) -> str:
    """What reading the dataset, or decoding its pictures, says; nothing decoded is left."""
    with pytest.raises(DataError) as caught:
        read_dataset(root).frames(KEY)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"dataset {root}: ")
    assert not list(root.parent.glob("cache/**/*.npy"))
    assert not list(root.parent.glob("cache/**/*.partial"))
    return text


def test_it_reads_before_anything_is_wrong(foreign, seen):
    """Else the refusals below would show nothing."""
    dataset = read_dataset(foreign)
    assert not dataset.verified
    assert np.abs(dataset.frames(KEY).astype(int) - seen).mean() < 8
    write_mp4(foreign / VIDEO, seen)
    assert np.abs(read_dataset(foreign).frames(KEY).astype(int) - seen).mean() < 10


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_truncated_video(foreign, share):
    data = (foreign / VIDEO).read_bytes()
    (foreign / VIDEO).write_bytes(data[: int(share * len(data))])
    text = refusal(foreign)
    assert f"{VIDEO}: " in text
    assert "truncated or altered" in text


def test_a_truncated_video_whose_table_of_frames_is_at_its_end(foreign, seen):
    """FFmpeg reads this one: what is lost names the program that wrote it."""
    write_mp4(foreign / VIDEO, seen)
    data = (foreign / VIDEO).read_bytes()
    (foreign / VIDEO).write_bytes(data[:-20])
    assert f"{VIDEO}: is truncated or altered: ends at {len(data) - 20} bytes" in refusal(foreign)


def test_a_table_that_promises_more_bytes_than_there_are(foreign):
    data = bytearray((foreign / VIDEO).read_bytes())
    table = data.index(b"stsz")
    count = int.from_bytes(data[table + 12 : table + 16])
    last = table + 16 + 4 * (count - 1)
    data[last : last + 4] = (int.from_bytes(data[last : last + 4]) + 1000).to_bytes(4)
    (foreign / VIDEO).write_bytes(bytes(data))
    assert count == TOTAL
    assert f"{VIDEO}: is truncated or altered: frame 14 is not whole" in refusal(foreign)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_no_truncation_is_read(tmp_path_factory, share):
    root = tmp_path_factory.mktemp("cut") / "d"
    write_pictures(root, (3, 2), pictures="video-exact")
    as_foreign(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBOTRL_CACHE", str(root.parent / "cache"))
        data = (root / VIDEO).read_bytes()
        (root / VIDEO).write_bytes(data[: int(share * len(data))])
        assert VIDEO in refusal(root)


def test_a_frame_that_cannot_be_decoded(foreign):
    """Decoders patch broken frames from their neighbours unless they are told not to."""
    with av.open(str(foreign / VIDEO)) as file:
        packets = [packet for packet in file.demux(video=0) if packet.pts is not None]
        at, size = packets[7].pos, packets[7].size
    data = bytearray((foreign / VIDEO).read_bytes())
    data[at + 12 : at + size] = bytes(size - 12)
    (foreign / VIDEO).write_bytes(bytes(data))
    assert f"{VIDEO}: frame 7 cannot be decoded, truncated or altered" in refusal(foreign)


def test_missing_video(foreign):
    (foreign / VIDEO).rename(foreign / VIDEO.replace("000.mp4", "001.mp4"))
    assert f"{VIDEO}: is missing: found {VIDEO.replace('000.mp4', '001.mp4')} instead" in refusal(foreign)


def test_something_else_under_a_videos_name(foreign):
    (foreign / VIDEO).write_text("#!/bin/sh\n" * 100)
    assert f"{VIDEO}: cannot be read as a video, truncated or altered" in refusal(foreign)


@pytest.mark.parametrize("count", [14, 16])
def test_another_number_of_frames(foreign, seen, count):
    write_mp4(foreign / VIDEO, np.concatenate([seen, seen])[:count])
    assert f"{VIDEO}: holds {count} frames: expected 15, as meta/episodes has them" in refusal(foreign)


@pytest.mark.parametrize(("fps", "told"), [(25, "25 Hz"), (10, "10 Hz"), (19.5, "19.5 Hz")])
def test_another_rate(foreign, seen, fps, told):
    write_mp4(foreign / VIDEO, seen, fps=fps)
    assert f"{VIDEO}: is at {told}: expected 20 Hz, as meta/info.json has it" in refusal(foreign)


def test_variable_rate(foreign, seen):
    """The right number of frames, the right length, and one of them late."""
    ticks = [5 * k for k in range(TOTAL)]
    ticks[6] += 2
    write_mp4(foreign / VIDEO, seen, ticks=ticks)
    assert f"{VIDEO}: has a variable frame rate: frame 6 is at 0.32 s, expected 0.3 s" in refusal(foreign)


def test_a_dropped_frame(foreign, seen):
    ticks = [5 * k for k in range(TOTAL + 1) if k != 9]
    write_mp4(foreign / VIDEO, seen, ticks=ticks)
    assert f"{VIDEO}: has a variable frame rate: frame 9 is at 0.5 s, expected 0.45 s" in refusal(foreign)


@pytest.mark.parametrize(("height", "width"), [(16, 32), (32, 24), (24, 16)])
def test_another_size(foreign, height, width):
    write_mp4(foreign / VIDEO, scene(0, TOTAL, height, width))
    assert f"{VIDEO}: is {width} x {height} pixels: expected 24 x 16, as meta/info.json has it" in refusal(foreign)


def test_sound_without_pictures(foreign):
    with av.open(str(foreign / VIDEO), "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 16000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    assert f"{VIDEO}: holds 0 video streams: expected 1" in refusal(foreign)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "from_timestamp",
            [0.0, 0.26, 0.3],
            "from_timestamp of episode 1 is 0.26 s: expected a whole number of frames, 0.25 s is the nearest at 20 Hz",
        ),
        ("to_timestamp", [0.25, 0.3, 0.7501], None),
        ("to_timestamp", [0.25, 0.3, 0.7503], "to_timestamp of episode 2 is 0.7503 s: expected a whole number"),
        (
            "to_timestamp",
            [0.3, 0.3, 0.75],
            "episode 0 of 5 frames lies at 0 to 0.3 s in the video of .*: expected 0 to",
        ),
        (
            "from_timestamp",
            [0.0, 0.2, 0.3],
            "episode 1 of 1 frames lies at 0.2 to 0.3 s in the video of .*: expected 0.25",
        ),
        ("from_timestamp", [0.05, 0.25, 0.3], "episode 0 of 5 frames lies at 0.05 to 0.25 s .*: expected 0 to 0.25 s"),
        (
            "from_timestamp",
            [0.0, None, 0.3],
            "from_timestamp' has gaps or is not numbers: expected one for each episode",
        ),
        ("from_timestamp", ["0", "1", "2"], "from_timestamp' has gaps or is not numbers"),
        ("file_index", [0, 0, 1], "videos/observation.image_top/chunk-000/file-001.mp4: is missing"),
        ("chunk_index", None, "has no column 'videos/observation.image_top/chunk_index': found 'videos/"),
    ],
)
def test_an_episodes_table_that_does_not_fit(foreign, column, values, message):
    edit_column(foreign, EPISODES, f"videos/{KEY}/{column}", values)
    if message is None:
        # a tenth of a millisecond is what clocks and formats may round
        assert len(read_dataset(foreign).frames(KEY)) == TOTAL
        return
    with pytest.raises(DataError, match=message):
        read_dataset(foreign)
    assert "meta/episodes" in refusal(foreign) or "is missing" in refusal(foreign)


def test_episodes_may_lie_in_a_video_in_any_order(foreign, seen):
    """The table says which frames are whose; here the last episode was stored first."""
    parts = np.split(seen, np.cumsum(LENGTHS)[:-1])
    write_mp4(foreign / VIDEO, np.concatenate([parts[2], parts[0], parts[1]]), options={"crf": "5"})
    edit_column(foreign, EPISODES, f"videos/{KEY}/from_timestamp", [0.45, 0.7, 0.0])
    edit_column(foreign, EPISODES, f"videos/{KEY}/to_timestamp", [0.7, 0.75, 0.45])
    found = read_dataset(foreign).frames(KEY).astype(int)
    off = np.abs(found - seen).mean(axis=(1, 2, 3))
    assert off.max() < 8
    # frames of other episodes are further away than that
    assert np.abs(found[:5] - seen[6:11]).mean(axis=(1, 2, 3)).min() > 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda info: info["features"][KEY]["info"].update({"video.fps": 30}), "video.fps of .* is 30: expected 20"),
        (lambda info: info.update(video_path="videos/{video_key}.mp4"), "video_path is 'videos/{video_key}.mp4': exp"),
        (lambda info: info.update(video_path=None), "video_path is None: expected 'videos/"),
        (lambda info: info["features"][KEY].update(shape=[16, 24]), r"has shape \[16, 24\]: expected a picture's"),
        (
            lambda info: info["features"].update({"a/b": info["features"].pop(KEY)}),
            "feature 'a/b' holds a slash",
        ),
    ],
)
def test_an_unusable_declaration(foreign, change, message):
    edit_json(foreign, "meta/info.json", change)
    with pytest.raises(DataError, match=f"meta/info.json: .*{message}"):
        read_dataset(foreign)


def test_a_depth_map_is_listed_and_not_read(foreign):
    edit_json(foreign, "meta/info.json", lambda i: i["features"][KEY]["info"].update({"video.is_depth_map": True}))
    dataset = read_dataset(foreign)
    assert dataset.features[KEY].dtype == "video"
    with pytest.raises(ConfigError, match=r"column 'observation.image_top' is video .*: expected numbers or colour"):
        dataset.frames(KEY)


@pytest.mark.parametrize("names", [["channels", "height", "width"], None, {"axes": ["c", "h", "w"]}])
def test_channels_may_be_declared_first(foreign, names):
    edit_json(foreign, "meta/info.json", lambda i: i["features"][KEY].update(shape=[3, HEIGHT, WIDTH], names=names))
    dataset = read_dataset(foreign)
    assert dataset.features[KEY].shape == (HEIGHT, WIDTH, 3)
    assert dataset.frames(KEY).shape == (TOTAL, HEIGHT, WIDTH, 3)


def test_statistics_of_pictures_may_be_missing_and_may_not_be_bytes(foreign):
    stats = json.loads((foreign / "meta/stats.json").read_text())
    edit_json(foreign, "meta/stats.json", lambda s: s[KEY].update(mean=[[[90.0]], [[91.0]], [[92.0]]]))
    assert "meta/stats.json: mean of 'observation.image_top' is [[[90.0]]" in refusal(foreign)
    assert "expected numbers from 0 to 1" in refusal(foreign)
    edit_json(foreign, "meta/stats.json", lambda s: s[KEY].update(mean=stats[KEY]["mean"][:2]))
    assert "expected 3 finite numbers" in refusal(foreign)
    edit_json(foreign, "meta/stats.json", lambda s: s.pop(KEY))
    dataset = read_dataset(foreign)
    assert KEY not in dataset.stats
    assert len(dataset.frames(KEY)) == TOTAL


# pictures in the frames, one PNG file each


@pytest.fixture
def single(tmp_path) -> tuple[Path, np.ndarray]:
    seen = write_pictures(tmp_path / "d", LENGTHS)
    return tmp_path / "d", seen


@pytest.mark.parametrize(
    "wrap", [lambda b: {"bytes": b, "path": "frame-000.png"}, lambda b: b], ids=["lerobot", "bytes"]
)
def test_png_files_in_the_frames_are_read_bit_for_bit(tmp_path, wrap, monkeypatch):
    root = tmp_path / "d"
    seen = write_pictures(root, LENGTHS, data_file_mib=0.01)
    # several files of several batches each, so that rows have to be counted over all of them
    assert len(list((root / "data").rglob("*.parquet"))) > 1
    monkeypatch.setattr("robotrl.datasets.images.ROWS_AT_ONCE", 4)
    store_as_png(root, seen, [wrap(png(picture)) for picture in seen])
    dataset = read_dataset(root)
    assert dataset.features[KEY].dtype == "image"
    assert np.array_equal(dataset.frames(KEY), seen)
    assert dataset.frames("action").shape == (TOTAL, 2)


def test_two_cameras_of_png_files_are_kept_apart(single):
    """Both come from the same frames files, so the files alone do not say which pictures are meant."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root, seen = single
    store_as_png(root, seen)
    table = pq.read_table(root / FRAMES)
    other = pa.array([{"bytes": png(255 - picture), "path": None} for picture in seen])
    pq.write_table(table.append_column("observation.image_side", other), root / FRAMES)
    edit_json(
        root, "meta/info.json", lambda i: i["features"].update({"observation.image_side": dict(i["features"][KEY])})
    )
    dataset = read_dataset(root)
    assert np.array_equal(dataset.frames(KEY), seen)
    assert np.array_equal(dataset.frames("observation.image_side"), 255 - seen)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (lambda p: {"bytes": png(p)[:40], "path": None}, "cannot be read as a picture, truncated or altered"),
        (lambda p: {"bytes": png(p)[:-30], "path": None}, "cannot be read as a picture, truncated or altered"),
        (lambda p: {"bytes": b"GIF89a" + bytes(60), "path": None}, "cannot be read as a picture, truncated or altered"),
        (lambda p: {"bytes": None, "path": "images/frame.png"}, "holds no picture but 'images/frame.png'"),
        (lambda p: None, "holds no picture but None: expected the bytes of a PNG file"),
        (lambda p: {"bytes": png(p[:8]), "path": None}, "is 24 x 8 pixels, RGB: expected 24 x 16, RGB"),
        (lambda p: {"bytes": png(p, mode="L"), "path": None}, "is 24 x 16 pixels, L: expected 24 x 16, RGB"),
        (lambda p: {"bytes": png(p, mode="RGBA"), "path": None}, "is 24 x 16 pixels, RGBA: expected"),
    ],
)
def test_a_picture_that_is_none(single, cell, message):
    root, seen = single
    cells = [{"bytes": png(picture), "path": None} for picture in seen]
    cells[6] = cell(seen[6])
    store_as_png(root, seen, cells)
    text = refusal(root)
    assert f"{FRAMES}: column 'observation.image_top', frame 6: " in text
    assert message in text


def test_a_declared_column_of_pictures_that_is_not_there(single):
    root, seen = single
    store_as_png(root, seen)
    edit_column(root, FRAMES, KEY, None)
    text = refusal(root)
    assert (
        f"{FRAMES}: column 'observation.image_top', frame 0: there is no such column: found 'observation.state'" in text
    )
