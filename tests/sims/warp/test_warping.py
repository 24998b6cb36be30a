"""Warped frames: shifts by whole pixels are exact, turns return, masks say what is known, torch agrees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robotrl.sims.driving.backends.backend import Threads
from robotrl.sims.warp import warping
from robotrl.sims.warp.warping import FrameView

Array = NDArray[Any]
HEIGHT, WIDTH, PPM = 24, 20, 2.0
VIEW = FrameView(PPM, 13.0, 10.0)


def frames(count: int = 3, channels: int = 8) -> Array:
    # no pixel is 0 in its first channel, so that the outside differs from every pixel
    out = np.random.default_rng(0).integers(0, 256, (count, HEIGHT, WIDTH, channels), dtype=np.uint8)
    out[..., 0] |= 1
    return out


def warped(given: Array, pose: tuple[float, float, float], view: FrameView = VIEW, size: Any = None) -> Array:
    """One frame of bytes (height, width, channels) seen from a pose; a last channel is 1 where valid, 0 elsewhere."""
    height, width, channels = given.shape
    size = size or (height, width)
    source = warping.as_pixels(given[None])
    out = np.zeros((1, *size, *source.shape[3:]), source.dtype)
    kernel = warping.warp_pixel_frames if source.ndim == 3 else warping.warp_word_frames
    at, zero = np.array([pose]), np.zeros(1, np.int64)
    kernel(source, zero, VIEW, view, at, zero, out, 0, 1)
    mask = np.zeros((1, *size), np.uint8)
    warping.mark_valid_frames(height, width, VIEW, view, at, zero, mask, 0, 1)
    assert set(np.unique(mask)) <= {0, 255}
    return np.concatenate([out.view(np.uint8).reshape(*size, channels), (mask[0, ..., None] == 255)], axis=-1)


def smooth(given: Array, pose: tuple[float, float, float]) -> Array:
    """One frame of features (height, width, channels) seen from a pose."""
    out = np.zeros((1, *given.shape), np.float32)
    zero = np.zeros(1, np.int64)
    warping.warp_feature_frames(given[None], zero, VIEW, VIEW, np.array([pose]), zero, out, 0, 1)
    return out[0]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8, 10])
def test_no_motion_changes_nothing(channels: int) -> None:
    frame = frames(channels=channels)[0]
    out = warped(frame, (0.0, 0.0, 0.0))
    assert np.array_equal(out[..., :-1], frame)
    assert (out[..., -1] == 1).all()


@pytest.mark.parametrize("channels", [8, 3])
@pytest.mark.parametrize(("down", "right"), [(1, 0), (-1, 0), (0, 1), (0, -1), (5, -7), (-HEIGHT, 0), (0, 2 * WIDTH)])
def test_shift_by_whole_pixels_is_exact(down: int, right: int, channels: int) -> None:
    """Ahead is up and left is left: a view from one pixel further ahead moves the picture down."""
    frame = frames(channels=channels)[1]
    out = warped(frame, (down / PPM, right / PPM, 0.0))
    expected = np.zeros((HEIGHT, WIDTH, channels + 1), np.uint8)
    for r in range(HEIGHT):
        for c in range(WIDTH):
            if 0 <= r - down < HEIGHT and 0 <= c - right < WIDTH:
                expected[r, c] = [*frame[r - down, c - right], 1]
    assert np.array_equal(out, expected)


def test_shift_of_features_is_exact_too() -> None:
    given = np.random.default_rng(1).normal(size=(HEIGHT, WIDTH, 5)).astype(np.float32)
    out = smooth(given, (1 / PPM, -2 / PPM, 0.0))
    assert np.array_equal(out[1:, : WIDTH - 2], given[:-1, 2:])
    # nothing is known outside
    assert (out[0] == 0).all() and (out[:, WIDTH - 2 :] == 0).all()


def test_half_a_pixel_is_the_mean_of_two() -> None:
    given = np.random.default_rng(2).normal(size=(HEIGHT, WIDTH, 2)).astype(np.float32)
    out = smooth(given, (0.5 / PPM, 0.0, 0.0))
    assert np.allclose(out[1:], 0.5 * (given[:-1] + given[1:]), atol=1e-6)


@pytest.mark.parametrize("turns", [1, -1, 2])
def test_full_turn_returns_to_the_start(turns: int) -> None:
    frame = frames()[2]
    assert np.array_equal(warped(frame, (0.0, 0.0, turns * 2 * math.pi)), warped(frame, (0.0, 0.0, 0.0)))


def test_quarter_turns_turn_the_picture() -> None:
    """A view turned to the left by 90 degrees shows at its top what was on the left."""
    size = 16
    square = np.random.default_rng(3).integers(1, 256, (size, size, 1), dtype=np.uint8)
    view = FrameView(PPM, size / 2, size / 2)
    zero, out = np.zeros(1, np.int64), np.zeros((1, size, size), np.uint8)
    poses = np.array([[0.0, 0.0, math.pi / 2]])
    warping.warp_pixel_frames(square[None, ..., 0], zero, view, view, poses, zero, out, 0, 1)
    assert np.array_equal(out[0], np.rot90(square[..., 0], -1))


def test_warps_compose() -> None:
    """Two shifts in a row are one, where both are known; the second starts from what the first has shown."""
    frame = frames()[0]
    once = warped(frame, (3 / PPM, -4 / PPM, 0.0))
    twice = warped(np.ascontiguousarray(once[..., :-1]), (-1 / PPM, 2 / PPM, 0.0))
    whole = warped(frame, (2 / PPM, -2 / PPM, 0.0))
    known = (twice[..., 0] != 0) & (whole[..., -1] == 1)
    assert known.mean() > 0.6
    assert np.array_equal(twice[known][:, :-1], whole[known][:, :-1])


def test_nearest_and_bilinear_agree_with_torch() -> None:
    rng = np.random.default_rng(4)
    given = rng.integers(1, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
    image = torch.from_numpy(given.astype(np.float32)).permute(2, 0, 1)[None]
    differ, count = 0, 0
    for _ in range(50):
        pose = tuple(rng.uniform([-4, -4, -3], [4, 4, 3]).tolist())
        at = warping.pixel_map(VIEW, VIEW, *pose)
        r, c = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
        y = at.row + r * at.row_per_row + c * at.row_per_column
        x = at.column + r * at.column_per_row + c * at.column_per_column
        grid = torch.from_numpy(np.stack([2 * x / WIDTH - 1, 2 * y / HEIGHT - 1], axis=-1))[None].float()
        ours = warped(given, pose)[..., :-1]
        theirs = torch.nn.functional.grid_sample(image, grid, mode="nearest", align_corners=False)
        theirs = theirs[0].permute(1, 2, 0).numpy()
        inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        assert np.array_equal(warped(given, pose)[..., -1] == 1, inside)
        differ += int((ours[inside] != theirs[inside]).any(1).sum())
        count += int(inside.sum())
        soft = torch.nn.functional.grid_sample(image, grid, mode="bilinear", align_corners=False)
        soft = soft[0].permute(1, 2, 0).numpy()
        assert np.allclose(smooth(given.astype(np.float32), pose), soft, atol=0.05)
    # float32 positions of torch round to another pixel now and then
    assert differ < 1e-3 * count
    assert count > 5000


def test_view_may_have_another_size_and_scale() -> None:
    """A view of half the resolution, ego at its center, takes the pixel below the center of each of its own."""
    frame = frames()[0]
    view = FrameView(1.0, 4.0, 3.0)
    out = warped(frame, (0.0, 0.0, 0.0), view, (8, 6))
    for r in range(8):
        for c in range(6):
            ahead, left = 4.0 - (r + 0.5), 3.0 - (c + 0.5)
            row, column = math.floor(VIEW.row - PPM * ahead), math.floor(VIEW.column - PPM * left)
            assert np.array_equal(out[r, c, :-1], frame[row, column])


def test_share_inside_is_that_of_the_mask() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        pose = tuple(rng.uniform([-9, -9, -3], [9, 9, 3]).tolist())
        at = warping.pixel_map(VIEW, VIEW, *pose)
        mask = warped(frames()[0], pose)[..., -1]
        assert warping.coverage(at, HEIGHT, WIDTH, HEIGHT, WIDTH) == pytest.approx(mask.mean())


@pytest.mark.parametrize("step", [-7, -1, 0, 1, 3])
def test_span_is_where_positions_lie_inside(step: int) -> None:
    for start in range(-30, 40):
        for end in (1, 9):
            inside = [k for k in range(12) if 0 <= start + k * step < end]
            first, last = warping.span(start, step, end, 12)
            assert list(range(first, max(first, last))) == inside


def test_threads_share_the_frames() -> None:
    given = warping.as_pixels(frames(7))
    rng = np.random.default_rng(6)
    poses, numbers = rng.uniform(-2, 2, (32, 3)), rng.integers(0, 7, 32)
    found = []
    for count in (1, 3):
        threads = Threads(count)
        out = np.zeros((32, HEIGHT, WIDTH), np.uint64)
        threads.run(warping.warp_pixel_frames, 32, given, numbers, VIEW, VIEW, poses, np.arange(32)[::-1].copy(), out)
        threads.close()
        found.append(out)
    assert np.array_equal(*found)
    assert len({row.tobytes() for row in found[0]}) == 32
