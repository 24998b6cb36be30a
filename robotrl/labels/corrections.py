"""Frames in which a person acted, as datasets mark them."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from robotrl.datasets.reader import Dataset
from robotrl.errors import DataError, short

PERSON = "person_frames"
"""Column of the episodes table: number of first frames that a person acted in."""
CORRECTIONS = "corrections"
"""Column of the episodes table: frames of a person's corrections, e.g. "12-30 44-51"."""
SPAN = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)


def spans_text(person: NDArray[np.bool_]) -> str:
    """Frames of a person's corrections as text, ends included: "12-30 44-51"; empty if there are none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], person, [False]]).astype(np.int8)))
    return " ".join(f"{first}-{end - 1}" for first, end in edges.reshape(-1, 2).tolist())


def spans_mask(text: str, length: int) -> NDArray[np.bool_]:
    """Inverse of `spans_text`, (length,).

    Raises:
        ValueError: it is no such text, or names frames that the episode does not have.
    """
    out = np.zeros(length, np.bool_)
    for word in text.split():
        match = SPAN.fullmatch(word)
        first, last = (int(match[1]), int(match[2])) if match else (1, 0)
        if not first <= last < length:
            raise ValueError(f"{word!r}: expected FIRST-LAST, two frames from 0 to {length - 1}")
        out[first : last + 1] = True
    return out


def person_frames(dataset: Dataset) -> NDArray[np.bool_]:
    """Frames (F,) in which a person acted, by either column; none in a dataset without them.

    Raises:
        DataError: a mark is none, or names frames that its episode does not have.
    """
    out = np.zeros(dataset.num_frames, np.bool_)
    lengths = np.diff(dataset.offsets).tolist()
    for index, (first, length) in enumerate(zip(dataset.offsets.tolist(), lengths, strict=False)):
        if PERSON in dataset.episodes:
            count = int(dataset.episodes[PERSON][index])
            if not 0 <= count <= length:
                raise DataError(
                    f"dataset {dataset.root}: {PERSON} of episode {index} is {count}: expected 0 to {length}"
                )
            out[first : first + count] = True
        if CORRECTIONS in dataset.episodes:
            text = str(dataset.episodes[CORRECTIONS][index])
            try:
                out[first : first + length] |= spans_mask(text, length)
            except ValueError as error:
                raise DataError(
                    f"dataset {dataset.root}: {CORRECTIONS} of episode {index} is {short(repr(text))}: {error}"
                ) from error
    return out
