"""Video with PyAV (the extra `video`): encode frames as a clip, join clips in a file, decode a file.

Reading does not trust headers: size, number and times of the frames come from the frames themselves. A `ValueError`
names the fault of a video; the caller adds the file's name.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Generator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from robotrl.errors import ConfigError
from robotrl.utils.installation import install_line

if TYPE_CHECKING:
    from av.container import InputContainer, OutputContainer
    from av.video.stream import VideoStream

TOLERANCE_S = 1e-4
"""Largest deviation of a frame's time, s; LeRobot's tolerance."""

_COMMON = {
    # Every second frame is a key frame, so that a random frame is found quickly (also LeRobot's choice).
    "g": "2",
    # No reordering of frames, so that clips can be joined without re-encoding.
    "bf": "0",
    # x264 gives the same bytes for the same frames only with a fixed number of threads.
    "threads": "1",
}


class Encoding(NamedTuple):
    """Settings of a video encoder."""

    encoder: str
    pix_fmt: str
    options: dict[str, str]
    tolerance: float
    """Largest mean difference between a frame before and after encoding, in levels of 255."""
    even: bool
    """True if width and height must be even."""


ENCODINGS = {
    "video": Encoding("libx264", "yuv420p", {"crf": "18", **_COMMON}, tolerance=8.0, even=True),
    "video-exact": Encoding("libx264rgb", "rgb24", {"qp": "0", **_COMMON}, tolerance=0.0, even=False),
}
"""Encodings by user-facing name: H.264 with chroma at half resolution, which everything plays; lossless H.264, which
FFmpeg and LeRobot decode but browsers do not."""


class VideoShape(NamedTuple):
    """Expected size, rate and number of frames of a video."""

    height: int
    width: int
    fps: float
    frames: int


def check_installed(what: str) -> None:
    """Check that PyAV is installed.

    Args:
        what: name of the feature that needs it, for the error.

    Raises:
        ConfigError: PyAV is not installed; the command that installs it is named.
    """
    if importlib.util.find_spec("av") is None:
        raise ConfigError(f"{what} needs the module 'av': {install_line('video')}")


def encode(frames: np.ndarray, fps: int, encoding: Encoding) -> bytes:
    """Encode frames as an mp4 clip, frame k at k / fps seconds. The same frames give the same bytes.

    Args:
        frames: (T, height, width, 3) uint8.
        fps: frames a second.
        encoding: an entry of `ENCODINGS`.
    """
    import av
    from av.video.reformatter import Interpolation, VideoReformatter

    buffer = io.BytesIO()
    # By default the color conversion uses as many slices as there are processors, and the instructions of
    # this processor, so its result would differ between machines.
    converter = VideoReformatter()
    exact = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
    with av.open(buffer, "w", format="mp4") as file:
        stream = cast("VideoStream", file.add_stream(encoding.encoder, rate=fps, options=dict(encoding.options)))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = encoding.pix_fmt
        for frame in frames:
            given = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            file.mux(stream.encode(converter.reformat(given, format=encoding.pix_fmt, interpolation=exact, threads=1)))
        file.mux(stream.encode())
    return buffer.getvalue()


class ClipFile:
    """An mp4 file to which clips of one encoding, size and rate are appended without re-encoding.

    Args:
        path: the file; its folder exists.
        fps: frames a second.
    """

    def __init__(self, path: Path, fps: int) -> None:
        import av

        self.path = path
        self.frames = 0
        self.bytes = 0
        """Total size of the clips; the file's own tables are extra."""
        self._fps = fps
        # put the frame table at the file's start, so that a reader over a network needs no second request at its end
        self._file: OutputContainer = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        self._stream: VideoStream | None = None

    def append(self, clip: bytes) -> None:
        """Append the frames of a clip."""
        import av

        count = 0
        with av.open(io.BytesIO(clip), "r") as source:
            given = source.streams.video[0]
            if self._stream is None:
                self._stream = self._file.add_stream_from_template(given)
                self._stream.time_base = given.time_base
            shift = int(Fraction(self.frames, self._fps) / _time_base(given))
            for packet in source.demux(given):
                if packet.pts is None or packet.dts is None:
                    continue
                packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                packet.stream = self._stream
                self._file.mux(packet)
                count += 1
        self.frames += count
        self.bytes += len(clip)

    def close(self) -> None:
        """Write the file's tables; without them it cannot be read."""
        self._file.close()


def describe_video(source: Path | bytes) -> dict[str, Any]:
    """LeRobot's metadata of a video, under its names: size, codec, pixel format, rate.

    Raises:
        ValueError: it is not a readable video.
    """
    with _opened(source) as (_, stream):
        return {
            "video.height": stream.height,
            "video.width": stream.width,
            "video.codec": stream.codec.canonical_name,
            "video.pix_fmt": stream.pix_fmt,
            "video.is_depth_map": False,
            "video.fps": int(stream.average_rate or 0),
            "video.channels": 3,
            "has_audio": False,
        }


def check_video(path: Path, shape: VideoShape) -> None:
    """Check that an mp4 file has this shape, without decoding it.

    Raises:
        ValueError: it is truncated or not a video; or size, rate, number of frames or the time of a frame differ.
    """
    _check_whole(path)
    with _opened(path) as (file, stream):
        _check_size(stream.height, stream.width, shape)
        times: list[float] = []
        for packet in file.demux(stream):
            if packet.is_corrupt:
                raise ValueError(f"is truncated or altered: frame {len(times)} is not whole")
            if packet.pts is not None and not packet.is_discard:
                times.append(float(packet.pts * _time_base(stream)))
    if len(times) != shape.frames:
        raise ValueError(f"holds {len(times)} frames: expected {shape.frames}, as meta/episodes has them")
    _check_times(np.sort(np.array(times)), shape.fps)


def decode(source: Path | bytes, shape: VideoShape) -> Generator[np.ndarray]:
    """Decode a video that passed `check_video`: frames (height, width, 3) uint8, in order.

    Raises:
        ValueError: a frame cannot be decoded, or there are more or fewer than the video lists.
    """
    from av.error import FFmpegError

    count = 0
    with _opened(source) as (file, stream):
        stream.thread_type = "AUTO"
        # by default a broken frame is silently patched from its neighbors
        stream.codec_context.options = {"err_detect": "explode"}
        frames = file.decode(stream)
        while True:
            try:
                frame = next(frames, None)
            except FFmpegError as error:
                raise ValueError(f"frame {count} cannot be decoded, truncated or altered: {_reason(error)}") from error
            if frame is None:
                break
            if frame.is_corrupt:
                raise ValueError(f"frame {count} cannot be decoded, truncated or altered")
            _check_size(frame.height, frame.width, shape)
            yield frame.to_ndarray(format="rgb24")
            count += 1
    if count != shape.frames:
        raise ValueError(f"gives {count} frames when it is decoded: expected {shape.frames}")


@contextmanager
def _opened(source: Path | bytes) -> Generator[tuple[InputContainer, VideoStream]]:
    import av
    from av.error import FFmpegError

    try:
        with av.open(str(source) if isinstance(source, Path) else io.BytesIO(source), "r") as file:
            if len(file.streams.video) != 1:
                raise ValueError(f"holds {len(file.streams.video)} video streams: expected 1")
            stream = file.streams.video[0]
            # FFmpeg reports a missing decoder, for example for a damaged codec name, without a message
            if getattr(stream, "codec_context", None) is None:
                raise ValueError("cannot be read as a video, truncated or altered: its codec is unknown")
            yield file, stream
    except FFmpegError as error:
        raise ValueError(f"cannot be read as a video, truncated or altered: {_reason(error)}") from error


def _check_whole(path: Path) -> None:
    """Check that an mp4 file is not cut before the end of its last box: FFmpeg reads truncated files without an error.

    Boxes follow one another: 4 bytes of size, 4 of name; a size of 1 means that 8 bytes after the name have it, 0 that
    the box is the last (ISO/IEC 14496-12, 4.2).
    """
    total, at = path.stat().st_size, 0
    with path.open("rb") as file:
        while at < total:
            file.seek(at)
            head = file.read(16)
            size, name = int.from_bytes(head[:4]), head[4:8]
            if at == 0 and name != b"ftyp":
                raise ValueError("cannot be read as a video, truncated or altered: it is no mp4 file")
            size = int.from_bytes(head[8:16]) if size == 1 else size or total - at
            if len(head) < 8 or size < 8 or at + size > total:
                raise ValueError(f"is truncated or altered: ends at {total} bytes, within a part of the file")
            at += size
    if not total:
        raise ValueError("is truncated or altered: is empty")


def _time_base(stream: VideoStream) -> Fraction:
    if stream.time_base is None:
        raise ValueError("has no time base: expected the times of its frames")
    return stream.time_base


def _check_size(height: int, width: int, shape: VideoShape) -> None:
    if (height, width) != (shape.height, shape.width):
        raise ValueError(
            f"is {width} x {height} pixels: expected {shape.width} x {shape.height}, as meta/info.json has it"
        )


def _check_times(times: np.ndarray, fps: float) -> None:
    """Check that the frame times (T,), in seconds, are k / fps."""
    expected = np.arange(len(times)) / fps
    off = np.abs(times - expected) > TOLERANCE_S
    if not off.any():
        return
    steps = np.diff(times)
    if abs(times[0]) > TOLERANCE_S:
        raise ValueError(f"begins at {times[0]:g} s: expected 0 s")
    if np.ptp(steps) <= 2 * TOLERANCE_S:
        raise ValueError(f"is at {1 / steps.mean():g} Hz: expected {fps:g} Hz, as meta/info.json has it")
    at = int(np.argmax(off))
    raise ValueError(f"has a variable frame rate: frame {at} is at {times[at]:g} s, expected {expected[at]:g} s")


def _reason(error: Any) -> str:
    return str(error.strerror or error)
