"""Episodes in pictures, and as sheets of frames that a page plays."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
Pick = Literal["first", "failures", "successes", "worst", "best"]
"""Which episodes are shown, by what came of them."""

PAGE_BYTES = 6 << 20
"""Of all sheets of a page together."""
PAGE_FRAMES = 96
"""Of one episode on a page."""
QUALITY = 82


class EpisodePictures(NamedTuple):
    """An episode in F pictures."""

    name: str
    """Its start: the split, and the number within it."""
    success: bool
    ret: float
    """Sum of rewards."""
    length: int
    """Steps."""
    steps: tuple[int, ...]
    """(F,) the step before which each picture was taken."""
    frames: Frames
    """(F, height, width, 3)."""


def thinned(replay: EpisodePictures, most: int) -> EpisodePictures:
    """A replay with `most` pictures or fewer, evenly spread; the first and the last one stay."""
    kept = np.unique(np.linspace(0, len(replay.steps) - 1, min(len(replay.steps), most)).round().astype(int))
    return replay._replace(steps=tuple(replay.steps[k] for k in kept), frames=replay.frames[kept])


def pack_replays(replays: Sequence[EpisodePictures], limit: int = PAGE_BYTES) -> list[dict[str, Any]]:
    """Replays as JSON values for the page's player.

    Each is `{"steps", "length", "width", "height", "columns", "sheet"}`: the sheet is a picture as a data URL, in which
    the frames stand row by row. Where sheets would be larger than `limit` bytes together, frames are left out.
    """
    share = limit // max(len(replays), 1)
    return [_packed(thinned(replay, PAGE_FRAMES), share) for replay in replays]


def _packed(replay: EpisodePictures, limit: int) -> dict[str, Any]:
    sheet, columns = _sheet(replay.frames)
    while len(sheet) > limit and len(replay.steps) > 2:
        replay = thinned(replay, math.ceil(len(replay.steps) / 2))
        sheet, columns = _sheet(replay.frames)
    _, height, width, _ = replay.frames.shape
    return {
        "steps": list(replay.steps),
        "length": replay.length,
        "width": width,
        "height": height,
        "columns": columns,
        "sheet": sheet,
    }


def _sheet(frames: Frames) -> tuple[str, int]:
    """Frames in one picture, as a data URL, and how many stand in a row."""
    from PIL import Image, features

    count, height, width, _ = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    # what stands in no frame repeats the last one, which costs next to nothing
    padded = np.concatenate([frames, np.repeat(frames[-1:], rows * columns - count, axis=0)])
    tiled = padded.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)
    kind, options = ("webp", {"quality": QUALITY}) if features.check("webp") else ("png", {"optimize": True})
    buffer = io.BytesIO()
    Image.fromarray(tiled).save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}", columns
