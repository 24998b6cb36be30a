"""Videos: tile several rollouts, write a small animated GIF or an mp4."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from robotrl.errors import ConfigError, out_of_range
from robotrl.utils.files import replace_file
from robotrl.utils.progress import track

MAX_FPS = 50
"""Maximum frame rate of a GIF: browsers slow down faster ones."""
MP4_FPS = 20
PALETTE_SAMPLES = 8
PALETTE_PIXELS = 1 << 18


def grid(videos: Sequence[np.ndarray], columns: int | None = None, gap: int = 2) -> np.ndarray:
    """Tile videos side by side, row by row; shorter ones freeze on their last frame.

    Args:
        videos: (T_i, h, w, 3) uint8 each, h and w the same for all.
        columns: tiles in a row; None makes the grid as square as possible.
        gap: white pixels between tiles.

    Returns:
        (T, rows * h + ..., columns * w + ..., 3) uint8, T the longest of T_i. Empty places are white.

    Raises:
        ConfigError: no videos, or shapes or dtypes that do not fit.
    """
    if not videos:
        raise ConfigError("videos is empty: expected at least one")
    for index, video in enumerate(videos):
        _check_frames(video, f"videos[{index}]")
        if video.shape[1:] != videos[0].shape[1:]:
            raise ConfigError(f"videos[{index}] has frames {video.shape[1:]}: expected {videos[0].shape[1:]}")
    if columns is not None and columns < 1:
        raise out_of_range("columns", columns, "1 or more")
    across = columns or math.ceil(math.sqrt(len(videos)))
    down = math.ceil(len(videos) / across)
    length = max(len(video) for video in videos)
    _, h, w, _ = videos[0].shape
    out = np.full((length, down * (h + gap) - gap, across * (w + gap) - gap, 3), 255, np.uint8)
    for index, video in enumerate(videos):
        y, x = (index // across) * (h + gap), (index % across) * (w + gap)
        out[: len(video), y : y + h, x : x + w] = video
        out[len(video) :, y : y + h, x : x + w] = video[-1]
    return out


def write_gif(frames: np.ndarray, path: Path, fps: float, colors: int = 64) -> None:
    """Write a looping GIF, atomically.

    One palette is used for all frames, without dithering, so static regions cost nothing.

    Args:
        frames: (T, h, w, 3) uint8.
        path: the file, replaced if it exists; its directory is made.
        fps: frames a second, above 0 and at most 50; GIF counts in hundredths of a second, so 30 becomes 33.3.
        colors: palette size, 2 to 256.

    Raises:
        ConfigError: an argument is out of range.
        OSError: writing failed.
    """
    _check_frames(frames, "frames")
    if not 0 < fps <= MAX_FPS:
        raise out_of_range("fps", fps, f"above 0 and at most {MAX_FPS}")
    stream_gif(((frame, 1 / fps) for frame in frames), frames, path, colors)


def stream_gif(frames: Iterable[tuple[np.ndarray, float]], sample: np.ndarray, path: Path, colors: int = 64) -> int:
    """Write a looping GIF, atomically, without holding all full-color frames in memory.

    Args:
        frames: (h, w, 3) uint8 frames, each with its duration, s.
        sample: (n, h, w, 3) some of the frames, for the palette.
        path: the file, replaced if it exists; its directory is made.
        colors: palette size, 2 to 256.

    Returns:
        How many frames were written.

    Raises:
        ConfigError: an argument is out of range.
        OSError: writing failed.
    """
    from PIL import Image

    _check_frames(sample, "sample")
    if not 2 <= colors <= 256:
        raise out_of_range("colors", colors, "2 to 256")
    # Maximum coverage, because a median cut spends its colors on the background and turns a small red peg gray.
    palette = Image.fromarray(_palette_sample(sample)).quantize(colors, method=Image.Quantize.MAXCOVERAGE)
    images: list[Image.Image] = []
    shown_ms: list[int] = []
    for frame, shown_s in frames:
        images.append(Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE))
        shown_ms.append(max(round(100 * shown_s), 1) * 10)
    buffer = io.BytesIO()
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=shown_ms, loop=0, optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, buffer.getvalue())
    return len(images)


def stream_mp4(frames: Iterable[tuple[np.ndarray, float]], path: Path, fps: int = MP4_FPS) -> int:
    """Write an H.264 video that browsers and phones play, atomically; needs PyAV: `pip install 'robotrl[video]'`.

    Args:
        frames: (h, w, 3) uint8 frames of one even size, each with its duration, s.
        path: the file, replaced if it exists; its directory is made.
        fps: frame rate of the video; frames with a longer duration are repeated.

    Returns:
        Number of input frames.

    Raises:
        ConfigError: no frames, or a size that is odd or changes.
        OSError: writing failed.
    """
    import av

    buffer, count, stream = io.BytesIO(), 0, None
    with av.open(buffer, "w", format="mp4") as file:
        for frame, shown_s in frames:
            height, width = frame.shape[:2]
            if stream is None:
                if height % 2 or width % 2:
                    raise ConfigError(f"frames are {width} x {height}: expected even numbers, as H.264 wants them")
                stream = file.add_stream("libx264", rate=fps, options={"crf": "20"})
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            elif (height, width) != (stream.height, stream.width):
                raise ConfigError(
                    f"frame {count} is {width} x {height}: expected {stream.width} x {stream.height}, as the first"
                )
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            for _ in range(max(round(shown_s * fps), 1)):
                picture.pts = None
                file.mux(stream.encode(picture))
            count += 1
        if stream is None:
            raise ConfigError("frames is empty: expected at least one")
        file.mux(stream.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, buffer.getvalue())
    return count


def write_video(
    frames: Iterable[tuple[np.ndarray, float]], count: int, sample: np.ndarray, path: Path, fps: int = MP4_FPS
) -> int:
    """Write a GIF or mp4, by the file's extension, atomically, with a progress bar.

    Args:
        frames: see `stream_mp4`.
        count: number of frames.
        sample: some of the frames, for the palette of a GIF, see `stream_gif`.
        path: file that ends in .gif or .mp4.
        fps: frame rate of an mp4.

    Returns:
        How many frames were written.

    Raises:
        OSError: writing failed.
    """
    with track(count, "video", "frames") as bar:

        def counted() -> Iterator[tuple[np.ndarray, float]]:
            for frame in frames:
                bar.advance(1)
                yield frame

        if path.suffix.lower() == ".mp4":
            return stream_mp4(counted(), path, fps)
        return stream_gif(counted(), sample, path, colors=256)


def _palette_sample(frames: np.ndarray) -> np.ndarray:
    """Sample of the frames, stacked vertically and thinned out so that fitting the palette takes milliseconds."""
    chosen = frames[np.linspace(0, len(frames) - 1, min(len(frames), PALETTE_SAMPLES)).round().astype(int)]
    stride = max(1, math.isqrt(chosen[..., 0].size // PALETTE_PIXELS))
    thinned = np.ascontiguousarray(chosen[:, ::stride, ::stride])
    return thinned.reshape(-1, thinned.shape[2], 3)


def _check_frames(frames: np.ndarray, name: str) -> None:
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or frames.size == 0:
        raise ConfigError(f"{name} is {frames.dtype} {frames.shape}: expected uint8 (T, h, w, 3), none of them 0")
