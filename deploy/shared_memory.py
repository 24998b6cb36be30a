"""Anonymous shared memory between two processes, and a text in it.

The creator passes the memory to the other process as an open file, so that nothing remains however either of them ends.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import tempfile
import zlib
from typing import Any

from robotrl.deploy.bundle import strict
from robotrl.errors import DataError

BLOCK_HEADER_BYTES = 64
_HEADER = struct.Struct("<8sq")
_TEXT = struct.Struct("<II")


class SharedBlock:
    """One end of a block of shared memory. Create it with `create`, or with `attach` in the other process.

    Attributes:
        handle: the open file; the other process must inherit it.
        memory: the whole block; the first `BLOCK_HEADER_BYTES` are its header.
        creator_pid: id of the process that created it.
    """

    def __init__(self, handle: int, size: int) -> None:
        self.handle = handle
        self._map = mmap.mmap(handle, size)
        self.memory = memoryview(self._map)
        self.creator_pid = 0

    @classmethod
    def create(cls, magic: bytes, size: int) -> SharedBlock:
        """Create a block.

        Args:
            magic: 8 bytes that name its layout.
            size: bytes, the header included.
        """
        if sys.platform == "linux":
            handle = os.memfd_create("robotrl-link", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                handle = os.dup(file.fileno())
        os.ftruncate(handle, size)
        block = cls(handle, size)
        block.creator_pid = os.getpid()
        _HEADER.pack_into(block.memory, 0, magic, block.creator_pid)
        return block

    @classmethod
    def attach(cls, name: str, magic: bytes, size: int) -> SharedBlock:
        """Attach the other end.

        Args:
            name: "fd:N", the inherited file.
            magic: as for `create`.
            size: as for `create`.

        Raises:
            DataError: the file is no such block.
        """
        kind, _, number = name.partition(":")
        if kind != "fd" or not number.isdigit():
            raise DataError(f"link {name!r}: expected 'fd:NUMBER', as the controller passes it")
        try:
            found = os.fstat(int(number)).st_size
        except OSError as error:
            raise DataError(f"link {name!r}: {error.strerror}") from error
        if found != size:
            raise DataError(f"link {name!r} has {found} bytes: expected {size}, both sides of one robotrl version")
        block = cls(int(number), size)
        begins, block.creator_pid = _HEADER.unpack_from(block.memory, 0)
        if begins != magic:
            raise DataError(f"link {name!r} begins with {begins!r}: expected {magic!r}")
        return block

    @property
    def name(self) -> str:
        """Name for `attach` in the other process."""
        return f"fd:{self.handle}"

    def close(self) -> None:
        """Unmap and close this end."""
        self.memory.release()
        self._map.close()
        os.close(self.handle)


class SharedText:
    """A JSON text in shared memory, which one process writes and another reads.

    Args:
        memory: the mapped memory.
        offset: start of the text.
        size: room for it, in bytes.
        label: name of the text, for errors.
    """

    def __init__(self, memory: memoryview, offset: int, size: int, label: str) -> None:
        self._memory = memory
        self._at = offset
        self._most = size - _TEXT.size
        self._label = label

    def write(self, data: dict[str, Any]) -> None:
        """Replace the text."""
        text = json.dumps(data, allow_nan=False).encode()
        if len(text) > self._most:
            raise ValueError(f"{self._label} has {len(text)} bytes: at most {self._most}")
        at = self._at
        self._memory[at + _TEXT.size : at + _TEXT.size + len(text)] = text
        _TEXT.pack_into(self._memory, at, len(text), zlib.crc32(text))

    def read(self) -> dict[str, Any] | None:
        """Read the text; None if there is none yet (or it is being written)."""
        at = self._at
        length, checksum = _TEXT.unpack_from(self._memory, at)
        if not 0 < length <= self._most:
            return None
        text = bytes(self._memory[at + _TEXT.size : at + _TEXT.size + length])
        return strict.loads(text, self._label) if zlib.crc32(text) == checksum else None
