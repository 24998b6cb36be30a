"""Labels beside a dataset: read by name, and refused once the dataset is another or rows are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from robotrl.datasets.manifest import dataset_digest
from robotrl.datasets.reader import read_dataset
from robotrl.errors import ConfigError, DataError
from robotrl.labels.sidecar import labels_path, read_label, read_labels, write_labels
from tests.kits import off_policy_kit as off
from tests.kits.refusals import raises_naming

MAKER = {"algorithm": "recap", "seed": 3}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("labels") / "walks", episodes=4)


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "walks")


def frames_of(data: Path) -> int:
    return read_dataset(data).num_frames


def columns(count: int) -> dict[str, np.ndarray]:
    return {"progress": np.linspace(-1, 0, count), "keep": np.arange(count) % 2 == 0}


def test_labels_are_read_by_name_and_the_dataset_stays_as_it_is(data: Path) -> None:
    before, count = dataset_digest(data), frames_of(data)
    path = write_labels(data, "mine", columns(count), MAKER)
    assert path == labels_path(data, "mine") == data.parent / "walks.labels" / "mine.parquet"
    assert dataset_digest(data) == before and read_dataset(data).verified
    found = read_labels(labels_path(data, "mine"), data, count)
    assert (found.dataset, found.maker) == (before, MAKER)
    keep = read_label(labels_path(data, "mine"), "keep", data, count)
    assert keep.dtype == np.bool_ and np.array_equal(keep, columns(count)["keep"])
    assert np.allclose(read_label(labels_path(data, "mine"), "progress", data, count), columns(count)["progress"])
    # equal labels have an equal digest; of another maker they are others
    write_labels(data, "again", columns(count), MAKER)
    write_labels(data, "other", columns(count), {**MAKER, "seed": 4})
    again, other = (read_labels(labels_path(data, name), data, count).digest for name in ("again", "other"))
    assert again == found.digest != other
    assert sorted(one.name for one in path.parent.iterdir()) == ["again.parquet", "mine.parquet", "other.parquet"]


def test_labels_of_a_dataset_that_changed_since_are_refused(data: Path, tmp_path: Path) -> None:
    count, before = frames_of(data), dataset_digest(data)
    write_labels(data, "mine", columns(count), MAKER)
    shutil.rmtree(data)
    off.write_random_walks(data, episodes=4, seed=1)
    with raises_naming(DataError, str(labels_path(data, "mine")), before, dataset_digest(data)):
        read_labels(labels_path(data, "mine"), data, frames_of(data))


def test_missing_rows_and_damaged_files_are_refused(data: Path) -> None:
    count = frames_of(data)
    path = write_labels(data, "mine", columns(count - 2), MAKER)
    with raises_naming(DataError, str(path), count - 2, count):
        read_labels(labels_path(data, "mine"), data, count)
    path = write_labels(data, "mine", columns(count), MAKER)
    table = pq.read_table(path)
    flipped = table.set_column(table.column_names.index("keep"), "keep", [~columns(count)["keep"]])
    pq.write_table(flipped.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(DataError, match="altered"):
        read_labels(labels_path(data, "mine"), data, count)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(DataError, match="holds no labels"):
        read_labels(labels_path(data, "mine"), data, count)
    header = json.loads(table.schema.metadata[b"robotrl"]) | {"schema_version": 9}
    pq.write_table(table.replace_schema_metadata({b"robotrl": json.dumps(header)}), path)
    with pytest.raises(DataError, match="schema_version"):
        read_labels(labels_path(data, "mine"), data, count)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="truncated"):
        read_labels(labels_path(data, "mine"), data, count)


def test_what_is_no_label_is_refused(data: Path) -> None:
    count = frames_of(data)
    with raises_naming(ConfigError, "label", "progres", nearest="progress"):
        write_labels(data, "mine", {"progres": np.zeros(count)}, MAKER)
    with pytest.raises(ConfigError, match="equal length"):
        write_labels(data, "mine", {"keep": np.ones(3), "progress": np.zeros(2)}, MAKER)
    with pytest.raises(DataError, match="not finite"):
        write_labels(data, "mine", {"progress": np.full(count, np.nan)}, MAKER)
    for name in ("", "a/b", ".."):
        with pytest.raises(ConfigError, match="labels is"):
            labels_path(data, name)
    with pytest.raises(DataError, match="it has none"):
        read_labels(labels_path(data, "mine"), data, count)
    write_labels(data, "mine", columns(count), MAKER)
    with pytest.raises(DataError, match=r"it has .*mine\.parquet"):
        read_labels(labels_path(data, "mien"), data, count)
    with raises_naming(ConfigError, f"label of {labels_path(data, 'mine')}", "keeps", nearest="keep"):
        read_label(labels_path(data, "mine"), "keeps", data, count)
