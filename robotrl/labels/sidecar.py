"""Labels per frame in a file beside a dataset: one Parquet file, one row a frame, one column a label.

The dataset itself is never changed. The file states the digest of the dataset that it was made for, and what made it;
it is written atomically, and refused once the dataset is another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robotrl.datasets.manifest import dataset_digest
from robotrl.errors import ConfigError, DataError, unknown
from robotrl.utils.files import check_schema, parse_json, read_plain, replace_file

SCHEMA_VERSION = 1
KEY = b"robotrl"
"""Key of our entry in the file's metadata."""
INDEX = "index"
"""Column of the frames' numbers, as in the dataset."""
LABELS: dict[str, type[np.generic]] = {
    "return_to_go": np.float32,
    "progress": np.float32,
    "advantage": np.float32,
    "positive": np.bool_,
    "keep": np.bool_,
}
"""Labels by name: return from a frame on, value of its state, advantage of its action, whether the action counts as
good, and whether it is cloned."""


class FrameLabels(NamedTuple):
    """Labels of all frames of a dataset."""

    columns: dict[str, NDArray[Any]]
    """(F,) each, by name."""
    dataset: str
    """Digest of the dataset, see `dataset_digest`."""
    maker: dict[str, Any]
    """Their origin: algorithm, settings, policy."""
    digest: str
    """SHA-256 of columns, dataset and maker."""


def labels_path(dataset: Path | str, name: str) -> Path:
    """File of the labels of this name: beside the dataset DIR it is DIR.labels/NAME.parquet.

    Raises:
        ConfigError: the name is empty or holds a slash.
    """
    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"labels is {name!r}: expected a name without slashes, e.g. 'recap'")
    root = Path(dataset).absolute()
    return root.parent / f"{root.name}.labels" / f"{name}.parquet"


def write_labels(dataset: Path | str, name: str, columns: Mapping[str, NDArray[Any]], maker: Mapping[str, Any]) -> Path:
    """Write labels beside a dataset, in place of earlier ones of this name; returns their file.

    Args:
        dataset: the dataset's directory.
        name: name of the labels.
        columns: (F,) each, by the names of `LABELS`.
        maker: what made them, JSON values.

    Raises:
        ConfigError: no columns, an unknown one, or columns of different lengths.
        DataError: there is no dataset, a number is not finite, or the disk is full.
    """
    path = labels_path(dataset, name)
    typed = {label: np.asarray(values, _dtype(label)) for label, values in columns.items()}
    lengths = {label: len(values) for label, values in typed.items()}
    if len(set(lengths.values())) != 1:
        raise ConfigError(f"columns is {lengths}: expected one or more labels of equal length")
    for label, values in typed.items():
        if not np.isfinite(values.astype(np.float64)).all():
            raise DataError(f"label {label!r} for dataset {dataset} has a number that is not finite")
    digest = dataset_digest(dataset)
    made = json.loads(json.dumps(dict(maker), allow_nan=False))
    header = {"schema_version": SCHEMA_VERSION, "dataset": digest, "maker": made}
    header["digest"] = _digest(typed, digest, made)
    count = next(iter(lengths.values()))
    table = pa.table({INDEX: np.arange(count), **typed}).replace_schema_metadata({KEY: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, sink.getvalue().to_pybytes())
    return path


def read_labels(path: Path, dataset: Path | str, frames: int) -> FrameLabels:
    """Read the labels of a dataset.

    Args:
        path: their file, of `labels_path`.
        dataset: the dataset's directory.
        frames: F, number of the dataset's frames.

    Raises:
        DataError: there are no such labels, the file is damaged, rows are missing, or the dataset has changed since;
            the error then names both digests.
    """
    if not path.is_file():
        raise _absent(path, dataset)
    table, header = _read(path)
    found = dataset_digest(dataset)
    if header["dataset"] != found:
        raise DataError(
            f"labels {path} were made for a dataset of the digest {header['dataset']}, and {dataset} has {found}:"
            " the dataset has changed since; expected labels that are made anew"
        )
    index = np.asarray(table[INDEX])
    if not np.array_equal(index, np.arange(frames)):
        raise DataError(f"labels {path} have {len(index)} rows: expected {frames}, one for each frame, in their order")
    columns = {label: np.asarray(table[label]) for label in table.column_names if label != INDEX}
    if header["digest"] != _digest(columns, header["dataset"], header["maker"]):
        raise DataError(f"labels {path} were altered: expected the digest {header['digest']}")
    return FrameLabels(columns, header["dataset"], header["maker"], header["digest"])


def read_label(path: Path, label: str, dataset: Path | str, frames: int) -> NDArray[Any]:
    """Read one label (F,) of a dataset's frames; see `read_labels`.

    Raises:
        ConfigError: the file has no such label; the nearest one is named.
        DataError: see `read_labels`.
    """
    columns = read_labels(path, dataset, frames).columns
    if label not in columns:
        raise unknown(f"label of {path}", label, columns)
    return columns[label]


def _read(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    try:
        table = pq.read_table(pa.BufferReader(read_plain(path, str(path))))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"labels {path} cannot be read, truncated or altered: {error}") from error
    raw = (table.schema.metadata or {}).get(KEY)
    if raw is None or INDEX not in table.column_names:
        raise DataError(f"{path} holds no labels: expected a file of robotrl.labels")
    header = check_schema(parse_json(raw, str(path)), f"labels {path}", SCHEMA_VERSION)
    for name in ("dataset", "maker", "digest"):
        if name not in header:
            raise DataError(f"labels {path} lack {name!r}: expected a file of robotrl.labels")
    return table, header


def _absent(path: Path, dataset: Path | str) -> DataError:
    place = labels_path(dataset, "any").parent
    there = ", ".join(str(one) for one in sorted(place.glob("*.parquet")))
    some = f"it has {there}" if there else "it has none (algo recap makes some, with algo.labels)"
    return DataError(f"there are no labels {path} of dataset {dataset}: {some}")


def _dtype(label: str) -> type[np.generic]:
    if label not in LABELS:
        raise unknown("label", label, LABELS)
    return LABELS[label]


def _digest(columns: Mapping[str, NDArray[Any]], dataset: str, maker: Mapping[str, Any]) -> str:
    found = hashlib.sha256(json.dumps([dataset, dict(maker)], sort_keys=True).encode())
    for label in sorted(columns):
        found.update(label.encode())
        found.update(np.ascontiguousarray(columns[label]).tobytes())
    return found.hexdigest()
