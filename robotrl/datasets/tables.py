"""The parquet tables of a dataset: frames, episodes, tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robotrl.datasets import layout
from robotrl.datasets.layout import Feature, refuse
from robotrl.errors import nearest

INDEX_COLUMN = "__index_level_0__"
"""Name that pandas gives an unnamed index; the task texts are stored as one."""


def write_tasks(root: Path, tasks: Sequence[str]) -> None:
    """Write `meta/tasks.parquet` as a pandas table whose index holds the texts, with pandas' metadata."""
    column = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    index = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    described = {
        "index_columns": [INDEX_COLUMN],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", **column},
            {"name": None, "field_name": INDEX_COLUMN, **index},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    table = pa.table(
        {"task_index": pa.array(range(len(tasks)), pa.int64()), INDEX_COLUMN: pa.array(tasks, pa.string())}
    )
    (root / layout.TASKS).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table.replace_schema_metadata({"pandas": json.dumps(described)}), root / layout.TASKS, write_page_checksum=True
    )


def read_tasks(root: Path) -> tuple[str, ...]:
    """The task texts in the order of `task_index`."""
    table = read_table(root, layout.TASKS)
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(texts) != 1:
        raise refuse(root, layout.TASKS, f"has columns {table.column_names}: expected task_index and the task texts")
    by_index = dict(zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True))
    if sorted(map(str, by_index)) != sorted(map(str, range(table.num_rows))):
        raise refuse(
            root,
            layout.TASKS,
            f"has task_index {sorted(map(str, by_index))}: expected each of 0 to {table.num_rows - 1}",
        )
    return tuple(str(by_index[index]) for index in range(table.num_rows))


def write_episodes(root: Path, rows: Sequence[Mapping[str, Any]], limit_bytes: float, files_per_chunk: int) -> None:
    """Write the episodes table, split like the frames."""
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    rows_per_file = max(1, int(limit_bytes * len(rows) / max(1, table.nbytes)))
    for number, start in enumerate(range(0, len(rows), rows_per_file)):
        part = table.slice(start, rows_per_file)
        chunk, file = divmod(number, files_per_chunk)
        for name, value in (("meta/episodes/chunk_index", chunk), ("meta/episodes/file_index", file)):
            part = part.append_column(name, pa.array([value] * part.num_rows, pa.int64()))
        path = root / layout.EPISODES_FILE.format(chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(part, path, write_page_checksum=True)


def read_episodes(root: Path) -> dict[str, np.ndarray]:
    """Columns of the episodes table in the order of `episode_index`, without the per-episode statistics."""
    names = parquet_files(root, "meta/episodes")
    parts = [read_table(root, name, lambda column: not column.startswith("stats/")) for name in names]
    try:
        table = pa.concat_tables(parts, promote_options="default")
    except pa.ArrowInvalid as error:
        raise refuse(root, names[-1], f"has other columns than {names[0]}: {one_line(error)}") from error
    required = (
        "episode_index",
        "length",
        "dataset_from_index",
        "dataset_to_index",
        "data/chunk_index",
        "data/file_index",
    )
    for name in required:
        if name not in table.column_names:
            close = nearest(name, table.column_names)
            raise refuse(root, names[0], f"has no column {name!r}" + (f": found {close!r}" if close else ""))
        if not pa.types.is_integer(table.schema.field(name).type) or table[name].null_count:
            raise refuse(
                root, names[0], f"column {name!r} is {table.schema.field(name).type} or has gaps: expected integers"
            )
    table = table.sort_by("episode_index")
    return {name: _column(table[name]) for name in table.column_names}


def read_columns(root: Path, features: Mapping[str, Feature], frames: int) -> dict[str, np.ndarray]:
    """Frame columns as contiguous arrays (F, ...) over all files; `frames` is the expected number of rows.

    Raises:
        DataError: a file or column is missing, unreadable, of another type or holds a non-finite number.
    """
    names = parquet_files(root, "data")
    out: dict[str, np.ndarray] = {}
    done = 0
    for name in names:
        table = read_table(root, name, lambda column: column in features)
        for key, feature in features.items():
            if key not in table.column_names:
                close = nearest(key, pq.read_schema(root / name).names)
                raise refuse(root, name, f"has no column {key!r}" + (f": found {close!r}" if close else ""))
            try:
                part = layout.to_numpy(table[key], feature)
            except (ValueError, pa.ArrowException) as error:
                raise refuse(root, name, f"column {key!r} {one_line(error)}") from error
            finite = part.dtype.kind != "f" or np.isfinite(part).all()
            if not finite:
                bad = np.argwhere(~np.isfinite(part))
                raise refuse(
                    root, name, f"column {key!r} is not finite at row {bad[0][0]}, element {bad[0][1:].tolist()}"
                )
            if key not in out:
                out[key] = np.empty((frames, *feature.trailing), part.dtype)
            if done + table.num_rows <= frames:
                out[key][done : done + table.num_rows] = part
        done += table.num_rows
    if done != frames:
        raise refuse(root, layout.INFO, f"total_frames is {frames}: the files in data/ hold {done}")
    return out


def parquet_files(root: Path, folder: str) -> list[str]:
    """Names of the parquet files of a table, in order.

    Raises:
        DataError: there is none.
    """
    found = sorted(path.relative_to(root).as_posix() for path in (root / folder).glob("chunk-*/file-*.parquet"))
    if not found:
        raise refuse(root, f"{folder}/chunk-000/file-000.parquet", "is missing")
    return found


def read_table(root: Path, name: str, wanted: Any = None) -> pa.Table:
    """Read a parquet file and verify its page checksums; `wanted` selects columns by name.

    Raises:
        DataError: missing, truncated or altered.
    """
    try:
        with pq.ParquetFile(root / name, page_checksum_verification=True) as file:
            columns = file.schema_arrow.names
            return file.read([column for column in columns if wanted is None or wanted(column)])
    except FileNotFoundError as error:
        raise refuse(root, name, "is missing") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise refuse(root, name, f"cannot be read as parquet, truncated or altered: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """First line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _column(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_primitive(column.type) and not column.null_count:
        return column.to_numpy()
    out = np.empty(len(column), object)
    out[:] = column.to_pylist()
    return out
