"""Known answers, in memory and on the disk."""

from __future__ import annotations

import json
import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from robotrl.errors import DataError
from robotrl.rewards.scoring.answer_files import AnswerFiles
from robotrl.rewards.scoring.cache import AnswerCache, picture_key
from tests.kits.refusals import raises_naming
from tests.kits.scoring_kit import SHAPE, pictures_of

KEYS = [picture_key(picture) for picture in pictures_of(np.arange(6))]
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
ROW_BYTES = 16 + 8 + 4


def files_in(folder: Path, identity: str = "a", shape: tuple[int, int] = SHAPE) -> AnswerFiles:
    return AnswerFiles(str(folder), identity, 2, shape)


def stored(folder: Path) -> Path:
    """A directory with all six answers; returns the file."""
    files = files_in(folder)
    files.put(KEYS[:4], ROWS[:4])
    files.put(KEYS[4:], ROWS[4:])
    files.close()
    (path,) = folder.glob("*/*.rows")
    return path


def test_keys_are_those_of_pictures() -> None:
    assert len(set(KEYS)) == 6 and all(len(key) == 16 for key in KEYS)
    assert picture_key(pictures_of(np.arange(3))[2]) == KEYS[2]


def test_the_least_recently_used_answer_leaves_first() -> None:
    cache = AnswerCache(2)
    cache.put(KEYS[0], ROWS[0])
    cache.put(KEYS[1], ROWS[1])
    assert cache.get(KEYS[0]) is not None
    cache.put(KEYS[2], ROWS[2])
    assert cache.get(KEYS[1]) is None and len(cache) == 2
    assert [None if row is None else row.tolist() for row in map(cache.get, KEYS[:3])] == [[0, 1], None, [4, 5]]


def test_a_cache_of_no_size_keeps_nothing() -> None:
    cache = AnswerCache(0)
    cache.put(KEYS[0], ROWS[0])
    assert len(cache) == 0 and cache.get(KEYS[0]) is None


def test_stored_answers_are_found_again(tmp_path: Path) -> None:
    path = stored(tmp_path)
    assert path.stat().st_size == 6 * ROW_BYTES
    again = files_in(tmp_path)
    assert len(again) == 6
    for key, row in zip(KEYS, ROWS, strict=True):
        np.testing.assert_array_equal(again.get(key), row)
    assert again.get(b"x" * 16) is None and again.damaged == 0
    again.put([b"x" * 16], ROWS[:1])
    assert len(list(tmp_path.glob("*/*.rows"))) == 2, "each service has a file of its own"
    assert len(files_in(tmp_path)) == 7


def test_memory_holds_no_answers(tmp_path: Path) -> None:
    count, outputs = 2000, 500
    keys = [number.to_bytes(16, "little") for number in range(count)]
    rows = np.random.default_rng(0).random((count, outputs), np.float32)
    tracemalloc.start()
    try:
        files = AnswerFiles(str(tmp_path), "a", outputs, None)
        for start in range(0, count, 100):
            files.put(keys[start : start + 100], rows[start : start + 100])
        again = AnswerFiles(str(tmp_path), "a", outputs, None)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    for number in (0, 1, count - 1):
        np.testing.assert_array_equal(files.get(keys[number]), rows[number])
        np.testing.assert_array_equal(again.get(keys[number]), rows[number])
    # answers alone would be 4 MB, twice
    assert held < 2 * count * 300


def test_an_answer_that_was_damaged_or_removed_since_is_not_known(tmp_path: Path) -> None:
    path = stored(tmp_path)
    again = files_in(tmp_path)
    data = bytearray(path.read_bytes())
    data[2 * ROW_BYTES + 20] ^= 1
    path.write_bytes(data)
    assert again.get(KEYS[2]) is None and again.get(KEYS[3]) is not None
    path.unlink()
    assert again.get(KEYS[3]) is None


def test_a_service_that_stores_nothing_leaves_no_file(tmp_path: Path) -> None:
    files_in(tmp_path).close()
    assert list(tmp_path.glob("*/*.rows")) == []


@pytest.mark.parametrize("lost", [1, ROW_BYTES - 1])
def test_a_torn_tail_is_dropped(tmp_path: Path, lost: int) -> None:
    path = stored(tmp_path)
    path.write_bytes(path.read_bytes()[:-lost])
    again = files_in(tmp_path)
    assert len(again) == 5 and again.get(KEYS[5]) is None and again.damaged == 0
    again.put(KEYS[5:], ROWS[5:])
    again.close()
    assert len(files_in(tmp_path)) == 6


def test_a_damaged_row_is_dropped_alone(tmp_path: Path) -> None:
    path = stored(tmp_path)
    data = bytearray(path.read_bytes())
    data[2 * ROW_BYTES + 20] ^= 1
    path.write_bytes(data)
    again = files_in(tmp_path)
    assert len(again) == 5 and again.get(KEYS[2]) is None and again.damaged == 1


def test_other_scorers_and_other_pictures_have_other_answers(tmp_path: Path) -> None:
    stored(tmp_path)
    assert len(files_in(tmp_path, "b")) == 0
    assert len(files_in(tmp_path, shape=(2, 8))) == 0
    assert len(files_in(tmp_path)) == 6


def test_a_folder_of_another_scorer_or_version_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path).with_name("scorer.json")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "identity": "z"}))
    with raises_naming(DataError, str(path)):
        files_in(tmp_path)
    path.write_text(json.dumps({**data, "schema_version": 2}))
    with raises_naming(DataError, str(path), "schema_version", 2, 1):
        files_in(tmp_path)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_naming(DataError, "service.answers", tmp_path / "file"):
        files_in(tmp_path / "file")


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.put(KEYS[:1], ROWS[:1])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROW_BYTES + 7, limits[1]))
    try:
        with pytest.raises(OSError):
            files.put(KEYS[1:2], ROWS[1:2])
        assert files.get(KEYS[1]) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    files.put(KEYS[2:3], ROWS[2:3])
    np.testing.assert_array_equal(files.get(KEYS[2]), ROWS[2])
    files.close()
    assert len(files_in(tmp_path)) == 2
