"""Filmed episodes, and their frames as sprite sheets for the page's player."""

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
"""Selection of episodes by outcome."""
Layout = Literal["grid", "sequence"]
"""Place of several episodes in one video: side by side, or one after another."""

PAGE_BYTES = 6 << 20
"""Size limit of all sprite sheets of a page together."""
PAGE_FRAMES = 96
"""Maximum number of frames of one episode on a page."""
QUALITY = 82


class StepCurve(NamedTuple):
    """A number at each step of an episode, for a small chart below its pictures."""

    title: str
    unit: str
    """Remark beside the title; may be empty."""
    values: tuple[float, ...]
    """(T,) finite."""


class EpisodePictures(NamedTuple):
    """An episode in F frames."""

    name: str
    """Name of its start: the split and the number within it."""
    state_id: int
    """Id of its start, which names it in every process."""
    success: bool
    ret: float
    """Sum of rewards."""
    length: int
    """Number of steps."""
    steps: tuple[int, ...]
    """(F,) step before which each frame was rendered."""
    frames: Frames
    """(F, height, width, 3) uint8."""
    rewards: tuple[float, ...]
    """(T,) reward of each step."""
    instruction: str = ""
    """Language instruction of the episode; empty if the sim gives none."""
    curves: tuple[StepCurve, ...] = ()
    """Charts to show instead of those of the return and the reward."""


def thinned(replay: EpisodePictures, most: int) -> EpisodePictures:
    """A replay with at most `most` frames, evenly spaced; the first and the last one are kept."""
    kept = np.unique(np.linspace(0, len(replay.steps) - 1, min(len(replay.steps), most)).round().astype(int))
    return replay._replace(steps=tuple(replay.steps[k] for k in kept), frames=replay.frames[kept])


def pack_replays(replays: Sequence[EpisodePictures], limit: int = PAGE_BYTES) -> list[dict[str, Any]]:
    """Replays as JSON values for the page's player.

    Each is `{"name", "id", "instruction", "ok", "ret", "rewards", "curves", "steps", "length", "width", "height",
    "columns", "sheet"}`: the sheet is an image as a data URL, with the frames row by row; rewards and curves have six
    significant digits. If all sheets together would be larger than `limit` bytes, frames are left out.
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
        "name": replay.name,
        "id": replay.state_id,
        "instruction": replay.instruction,
        "ok": replay.success,
        "ret": replay.ret,
        "rewards": _rounded(replay.rewards),
        "curves": [[one.title, one.unit, _rounded(one.values)] for one in replay.curves],
        "steps": list(replay.steps),
        "length": replay.length,
        "width": width,
        "height": height,
        "columns": columns,
        "sheet": sheet,
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _sheet(frames: Frames) -> tuple[str, int]:
    """Sprite sheet of frames as a data URL, and its number of columns."""
    from PIL import Image, features

    count, height, width, _ = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    # unused cells repeat the last frame, which costs next to nothing
    padded = np.concatenate([frames, np.repeat(frames[-1:], rows * columns - count, axis=0)])
    tiled = padded.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)
    kind, options = ("webp", {"quality": QUALITY}) if features.check("webp") else ("png", {"optimize": True})
    buffer = io.BytesIO()
    Image.fromarray(tiled).save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}", columns
