"""Images of a control log, in a file beside it: the frames that inferences were asked for with, one after the other."""

from __future__ import annotations

import contextlib
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from robotrl.errors import DataError

FRAMES_BEGIN = re.compile(rb"robotrl frames 1\n")
_BEGIN = b"robotrl frames 1\n"


def frames_path(log: Path) -> Path:
    """Path of the frames of a log: its name and ".frames"."""
    return log.with_name(f"{log.name}.frames")


@dataclass
class FrameWriter:
    """Writes frames; `log` None writes nothing. A failing disk ends the frames, not the control.

    Attributes:
        error: reason why writing ended early; None if it did not.
    """

    log: Path | None
    error: str | None = None
    _file: IO[bytes] | None = field(default=None, repr=False)
    _at: int = 0

    def open(self) -> None:
        """Begin the file.

        Raises:
            DataError: it cannot be made.
        """
        if self.log is None:
            return
        place = frames_path(self.log)
        try:
            self._file = open(place, "wb")  # noqa: SIM115 - open as long as the run, see `close`
            self._file.write(_BEGIN)
        except OSError as error:
            raise DataError(f"frames {str(place)!r} cannot be written: {error.strerror}") from error
        self._at = len(_BEGIN)

    def write(self, pixels: np.ndarray) -> int | None:
        """Append a frame; returns its place in the file, or None if it was not written."""
        if self._file is None or self.log is None:
            return None
        at, data = self._at, np.ascontiguousarray(pixels).tobytes()
        try:
            self._file.write(data)
        except OSError as error:
            self.error = f"frames {str(frames_path(self.log))!r} ended early: {error.strerror}"
            self.close()
            return None
        self._at += len(data)
        return at

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            # On a full disk the flush fails again; `error` holds the reason already.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def read_frame(log: Path, at: int, shape: tuple[int, ...], checksum: int) -> np.ndarray:
    """(h, w, channels) uint8 frame of a log.

    Args:
        log: path of the log.
        at: place of the frame in the file.
        shape: shape of the frame.
        checksum: CRC-32 of its pixels, from the log.

    Raises:
        DataError: the file is missing, too short, or of another log.
    """
    place, size = frames_path(log), int(np.prod(shape))
    try:
        with place.open("rb") as file:
            file.seek(at)
            data = file.read(size)
    except OSError as error:
        raise DataError(f"frames {str(place)!r} cannot be read: {error.strerror}") from error
    if len(data) != size:
        raise DataError(f"frames {str(place)!r} end at byte {at + len(data)}: expected a frame of {size} bytes at {at}")
    if zlib.crc32(data) != checksum:
        raise DataError(
            f"frames {str(place)!r} hold other pixels at byte {at} than the log states: expected its own file"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
