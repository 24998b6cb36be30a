"""Warps bird's-eye frames by a relative SE(2) pose: what a logged frame shows, seen from another pose.

RAD-2's BEV-Warp. The source is always the logged frame of that time, so no blur adds up over an episode. Masks and
channels of bytes are sampled at the nearest pixel, features bilinearly. A pixel's center lies half a pixel from its
corner (as with `align_corners=False` of torch's `grid_sample`), so a shift by whole pixels is exact.

A pixel of a frame is one unsigned integer: eight channels of a byte are 64 bits, eight masks one byte. Positions go
along the rows of the view in fixed point, and the columns that fall inside the frame follow from their ends, so the
inner loop tests no bounds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.driving.backends.jit import kernel

SHIFT = 32
"""Binary places of fixed-point positions."""
ONE = 1 << SHIFT


class FrameView(NamedTuple):
    """Scale of a frame, and the place of its vehicle, which faces up."""

    pixels_per_m: float
    row: float
    """Vehicle's center, pixels from the upper edge."""
    column: float
    """Likewise from the left edge."""


class PixelMap(NamedTuple):
    """Affine map from pixels of a view to pixels of its source: centers to positions from the corner of the source."""

    row: float
    """Source row of the center of the view's first pixel."""
    column: float
    row_per_row: float
    column_per_row: float
    row_per_column: float
    column_per_column: float


@kernel
def relative(x: float, y: float, yaw: float, to_x: float, to_y: float, to_yaw: float) -> tuple[float, float, float]:
    """Pose (x, y, yaw) of `to` in the frame of the first pose: meters ahead, meters to the left, rad."""
    dx, dy = to_x - x, to_y - y
    cos, sin = math.cos(yaw), math.sin(yaw)
    return dx * cos + dy * sin, dy * cos - dx * sin, to_yaw - yaw


@kernel
def pixel_map(source: FrameView, view: FrameView, ahead: float, left: float, turn: float) -> PixelMap:
    """Pixel map for a view whose vehicle stands `ahead` m ahead and `left` m left of the source's, turned by `turn`."""
    scale = source.pixels_per_m / view.pixels_per_m
    cos, sin = math.cos(turn), math.sin(turn)
    f, aside = (view.row - 0.5) / view.pixels_per_m, (view.column - 0.5) / view.pixels_per_m
    return PixelMap(
        source.row - source.pixels_per_m * (ahead + f * cos - aside * sin),
        source.column - source.pixels_per_m * (left + f * sin + aside * cos),
        scale * cos,
        scale * sin,
        -scale * sin,
        scale * cos,
    )


@kernel
def span(start: Any, step: Any, end: Any, count: int) -> tuple[int, int]:
    """First and last (excluded) k from 0 to `count` for which start + k * step lies from 0 to `end` (excluded)."""
    if step == 0:
        return (0, count) if 0 <= start < end else (0, 0)
    if step > 0:
        low, high = -(start // step), (end - 1 - start) // step + 1
    else:
        low, high = -((end - 1 - start) // -step), start // -step + 1
    return max(low, 0), min(high, count)


@kernel
def row_span(at: PixelMap, r: int, height: int, width: int, columns: int) -> tuple[Any, Any, Any, Any, int, int]:
    """Positions along row `r` of a view, and the columns whose centers fall inside a source of height by width.

    Returns:
        Row and column of the source at column 0, their steps, all in fixed point, first column inside, last (excluded).
    """
    y = np.int64(math.floor((at.row + r * at.row_per_row) * ONE + 0.5))
    x = np.int64(math.floor((at.column + r * at.column_per_row) * ONE + 0.5))
    dy = np.int64(math.floor(at.row_per_column * ONE + 0.5))
    dx = np.int64(math.floor(at.column_per_column * ONE + 0.5))
    first, last = span(y, dy, np.int64(height) << SHIFT, columns)
    first_x, last_x = span(x, dx, np.int64(width) << SHIFT, columns)
    first, last = max(first, first_x), min(last, last_x)
    return y, x, dy, dx, min(first, columns), max(last, min(first, columns))


@kernel
def warp_pixels(source: Any, at: PixelMap, out: Any) -> None:
    """Sample integer pixels (height, width) at the nearest one into out (h, w); 0 outside of the source."""
    rows, columns = out.shape
    height, width = source.shape
    for r in range(rows):
        y, x, dy, dx, first, last = row_span(at, r, height, width, columns)
        line = out[r]
        for c in range(first):
            line[c] = 0
        y, x = y + first * dy, x + first * dx
        for c in range(first, last):
            # unsigned indices avoid the check for negative ones
            line[c] = source[np.uint64(y >> SHIFT), np.uint64(x >> SHIFT)]
            y += dy
            x += dx
        for c in range(last, columns):
            line[c] = 0


@kernel
def warp_words(source: Any, at: PixelMap, out: Any) -> None:
    """`warp_pixels` for pixels of several integers, (height, width, words) into (h, w, words)."""
    rows, columns, words = out.shape
    height, width, _ = source.shape
    for r in range(rows):
        y, x, dy, dx, first, last = row_span(at, r, height, width, columns)
        line = out[r]
        for c in range(columns):
            if c < first or c >= last:
                for k in range(words):
                    line[c, k] = 0
        y, x = y + first * dy, x + first * dx
        for c in range(first, last):
            pixel = source[np.uint64(y >> SHIFT), np.uint64(x >> SHIFT)]
            for k in range(words):
                line[c, k] = pixel[k]
            y += dy
            x += dx


@kernel
def warp_features(source: Any, at: PixelMap, out: Any) -> None:
    """Sample features (height, width, channels) bilinearly into out (h, w, channels); 0 outside of the source."""
    rows, columns, channels = out.shape
    height, width, _ = source.shape
    for r in range(rows):
        for c in range(columns):
            # from the centers of pixels
            y = at.row + r * at.row_per_row + c * at.row_per_column - 0.5
            x = at.column + r * at.column_per_row + c * at.column_per_column - 0.5
            i, j = np.int64(math.floor(y)), np.int64(math.floor(x))
            v, u = np.float32(y - i), np.float32(x - j)
            pixel = out[r, c]
            for k in range(channels):
                pixel[k] = 0.0
            for di in range(2):
                for dj in range(2):
                    if 0 <= i + di < height and 0 <= j + dj < width:
                        weight = (v if di else np.float32(1.0) - v) * (u if dj else np.float32(1.0) - u)
                        there = source[i + di, j + dj]
                        for k in range(channels):
                            pixel[k] += weight * there[k]


@kernel
def mark_valid(at: PixelMap, height: int, width: int, out: Any) -> None:
    """Write 255 into out (h, w) where the center of a pixel falls inside a source of height by width, 0 elsewhere."""
    rows, columns = out.shape
    for r in range(rows):
        _, _, _, _, first, last = row_span(at, r, height, width, columns)
        for c in range(columns):
            out[r, c] = 255 if first <= c < last else 0


@kernel
def coverage(at: PixelMap, height: int, width: int, rows: int, columns: int) -> float:
    """Fraction of the pixels of a view (rows, columns) whose centers fall inside a source of height by width."""
    inside = 0
    for r in range(rows):
        _, _, _, _, first, last = row_span(at, r, height, width, columns)
        inside += last - first
    return inside / (rows * columns)


def as_pixels(frames: NDArray[np.uint8]) -> NDArray[Any]:
    """View of byte channels (..., height, width, channels) as pixels of few integers, without a copy.

    Returns:
        (..., height, width) for 1, 2, 4 or 8 channels, else (..., height, width, words) of the widest integers that
        fit.
    """
    channels = frames.shape[-1]
    size = next(size for size in (8, 4, 2, 1) if channels % size == 0)
    words = frames.view(f"u{size}")
    return words[..., 0] if words.shape[-1] == 1 else words


@kernel
def warp_pixel_frames(
    frames: Any, numbers: Any, source: FrameView, view: FrameView, poses: Any, rows: Any, out: Any, low: int, high: int
) -> None:
    """Warp pixels of the frames `numbers[low:high]`, seen from relative poses (n, 3), into rows of out (N, h, w)."""
    for i in range(low, high):
        at = pixel_map(source, view, poses[i, 0], poses[i, 1], poses[i, 2])
        warp_pixels(frames[numbers[i]], at, out[rows[i]])


@kernel
def warp_word_frames(
    frames: Any, numbers: Any, source: FrameView, view: FrameView, poses: Any, rows: Any, out: Any, low: int, high: int
) -> None:
    """`warp_pixel_frames` for pixels of several integers, (F, height, width, words) into (N, h, w, words)."""
    for i in range(low, high):
        at = pixel_map(source, view, poses[i, 0], poses[i, 1], poses[i, 2])
        warp_words(frames[numbers[i]], at, out[rows[i]])


@kernel
def warp_feature_frames(
    frames: Any, numbers: Any, source: FrameView, view: FrameView, poses: Any, rows: Any, out: Any, low: int, high: int
) -> None:
    """`warp_pixel_frames` for features, (F, height, width, channels) into (N, h, w, channels)."""
    for i in range(low, high):
        at = pixel_map(source, view, poses[i, 0], poses[i, 1], poses[i, 2])
        warp_features(frames[numbers[i]], at, out[rows[i]])


@kernel
def mark_valid_frames(
    height: int, width: int, source: FrameView, view: FrameView, poses: Any, rows: Any, out: Any, low: int, high: int
) -> None:
    """Write validity masks of `warp_pixel_frames`, 255 inside frames of height by width, into rows of out (N, h, w)."""
    for i in range(low, high):
        at = pixel_map(source, view, poses[i, 0], poses[i, 1], poses[i, 2])
        mark_valid(at, height, width, out[rows[i]])
