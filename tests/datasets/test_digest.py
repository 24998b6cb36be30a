"""The digest by which a run knows the dataset that it learned from."""

import json
import shutil

import pytest

from robotrl.datasets.manifest import dataset_digest
from robotrl.errors import DataError
from tests.kits.data_helpers import write_dataset

FRAMES = "data/chunk-000/file-000.parquet"


def test_the_same_data_has_one_digest(tmp_path):
    one, same = (write_dataset(tmp_path / name) for name in ("one", "same"))
    other = write_dataset(tmp_path / "other", (3, 1, 6, 5))
    assert dataset_digest(one) == dataset_digest(str(same)) != dataset_digest(other)
    assert len(dataset_digest(one)) == 64
    for root in (one, same, other):
        (root / "meta/robotrl.json").unlink()
    assert dataset_digest(one) == dataset_digest(same) != dataset_digest(other)


@pytest.mark.parametrize("hashed", [True, False])
def test_a_change_shows_and_a_readme_does_not(tmp_path, hashed):
    root = write_dataset(tmp_path / "d")
    if not hashed:
        (root / "meta/robotrl.json").unlink()
    before = dataset_digest(root)
    (root / "README.md").write_text("demonstrations")
    assert dataset_digest(root) == before
    assert dataset_digest(shutil.copytree(root, tmp_path / "copy")) == before
    if hashed:
        content = json.loads((root / "meta/robotrl.json").read_text())
        content["provenance"]["seed"] = 8
        (root / "meta/robotrl.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match="was altered"):
            dataset_digest(root)
    else:
        (root / FRAMES).write_bytes((root / FRAMES).read_bytes() + b"x")
        assert dataset_digest(root) != before


def test_no_dataset(tmp_path):
    with pytest.raises(DataError, match=r"meta/info\.json: is missing"):
        dataset_digest(tmp_path / "none")
