"""Flag columns: episode terminated, truncated, succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from robotrl.datasets.agreement.issues import DataIssue
from robotrl.datasets.layout import OUTCOME, Feature
from robotrl.errors import DataError

if TYPE_CHECKING:
    from robotrl.datasets.reader import Dataset

FLAGS = tuple(name for name, feature in OUTCOME.items() if feature.dtype == "bool")
ENDS = ("next.done", "next.truncated")
"""Flags that can only be set in an episode's last frame."""


def flags(dataset: Dataset, column: str) -> np.ndarray:
    """(F,) bool values of a flag column.

    Raises:
        ConfigError: there is no such column.
        DataError: it holds values other than 0 and 1.
    """
    values = dataset.frames(column)
    wrong = _no_flag(values)
    if wrong is None:
        return values.reshape(len(values)).astype(np.bool_)
    raise DataError(f"dataset {dataset.root}: {column} {_values_text(values, wrong, dataset.offsets)}")


def flag_issues(
    features: Mapping[str, Feature], frames: Mapping[str, np.ndarray], offsets: np.ndarray
) -> tuple[DataIssue, ...]:
    """Doubts about flag columns: values other than 0 and 1, and episode ends within an episode.

    Args:
        features: all columns.
        frames: numeric columns, by name.
        offsets: (E + 1,) first frame of each episode, and the number of frames.
    """
    out: list[DataIssue] = []
    last = np.zeros(int(offsets[-1]), np.bool_)
    last[offsets[1:] - 1] = True
    for name in FLAGS:
        if name not in features or name not in frames:
            continue
        values = frames[name]
        wrong = _no_flag(values)
        if wrong is not None:
            out.append(DataIssue(f"{name} {_values_text(values, wrong, offsets)}", False))
        elif name in ENDS and (early := values.astype(np.bool_) & ~last).any():
            row = int(np.argmax(early))
            text = f"{name} is set {_where(row, offsets)}, before the episode's end ({int(early.sum())} frames in all)"
            out.append(DataIssue(text, False))
    return tuple(out)


def _no_flag(values: np.ndarray) -> int | None:
    """First frame whose value is neither 0 nor 1; None if there is none."""
    if values.dtype == np.bool_ and values.ndim == 1:
        return None
    wrong = ((values != 0) & (values != 1)).reshape(len(values), -1)
    return int(np.argmax(wrong.any(axis=1))) if wrong.any() or wrong.shape[1] != 1 else None


def _values_text(values: np.ndarray, row: int, offsets: np.ndarray) -> str:
    return f"is {np.asarray(values[row]).tolist()} {_where(row, offsets)}: expected a flag, 0 or 1"


def _where(row: int, offsets: np.ndarray) -> str:
    episode = int(np.searchsorted(offsets, row, side="right")) - 1
    return f"in episode {episode}, frame {row - int(offsets[episode])}"
