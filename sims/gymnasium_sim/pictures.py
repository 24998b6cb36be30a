"""Rendered images of Gymnasium environments: checks, scaling, and rendering without a display."""

from __future__ import annotations

import os
import sys

import numpy as np
from numpy.typing import NDArray

REMEDY = (
    "give it 'rgb_array' in metadata['render_modes'], and a render() that returns (height, width, 3) uint8, as"
    " gymnasium.make(ID, render_mode='rgb_array') expects"
)
"""Advice in the error for environments without the render mode "rgb_array"."""


def draw_offscreen() -> None:
    """Make pygame render offscreen on machines without a display.

    Otherwise SDL looks for a display and complains on stderr (`XDG_RUNTIME_DIR is invalid`). Drivers set by the user
    are kept.
    """
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def fault_of(picture: object) -> str:
    """Error text for an invalid result of `render()`; empty if it is a uint8 image (height, width, 3)."""
    if not isinstance(picture, np.ndarray):
        return f"render() gave {_named(picture)}: expected an array (height, width, 3) of uint8"
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or picture.size == 0:
        return f"render() gave {picture.dtype} {picture.shape}: expected uint8 (height, width, 3)"
    return ""


def scaled(picture: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Resize an image to (height, width, 3)."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def _named(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
