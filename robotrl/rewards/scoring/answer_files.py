"""Answers in a directory, so that no later run asks a scorer about the same picture again.

    DIRECTORY/SCORER/scorer.json     the scorer, by its identity, its number of outputs and the size of the pictures
    DIRECTORY/SCORER/PROCESS.rows    one row an answer: hash of the picture, outputs, checksum

SCORER is a hash of `scorer.json`. Each service appends to a file of its own, so several may share a directory. A file
whose writer was killed may end inside a row, which is dropped; a row that does not match its checksum is dropped, too.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError
from robotrl.rewards.scoring.cache import KEY_BYTES
from robotrl.utils.files import dump_json, open_plain, read_json, replace_file

SCHEMA_VERSION = 1
LARGEST_FILE = 1 << 44
"""Bytes of a file, at most."""


class AnswerFiles:
    """Stored answers of one scorer.

    Memory holds where each of them stands, about 200 bytes whatever the number of outputs; an answer is read when it is
    asked for.

    Args:
        directory: directory of the answers of all scorers; created.
        identity: the scorer's.
        num_outputs: K.
        picture_shape: height and width of the pictures; None: they may differ.
        field: name of the setting that names the directory, for errors.

    Raises:
        DataError: the directory cannot be read or written, or its `scorer.json` is of another schema or scorer.
    """

    def __init__(
        self,
        directory: str,
        identity: str,
        num_outputs: int,
        picture_shape: tuple[int, int] | None,
        field: str = "service.answers",
    ) -> None:
        scorer: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            "identity": identity,
            "num_outputs": num_outputs,
            "picture_shape": None if picture_shape is None else list(picture_shape),
        }
        digest = hashlib.blake2b(dump_json(scorer), digest_size=16).hexdigest()
        self.folder = Path(directory) / digest
        self._dtype = np.dtype([("key", f"V{KEY_BYTES}"), ("outputs", "<f4", (num_outputs,)), ("check", "<u4")])
        self._files = list[Path]()
        # number of the file and byte in it, packed: a tuple would take as much memory as all the rest
        self._places = dict[bytes, int]()
        self._descriptor: int | None = None
        # place of the first row of the file that is written, and its bytes
        self._own, self._size = 0, 0
        self.damaged = 0
        """Rows that did not match their checksum."""
        try:
            self._open(scorer)
        except OSError as error:
            raise DataError(f"{field} {directory} cannot be used: {error.strerror}") from error

    def _open(self, scorer: dict[str, object]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "scorer.json"
        if not path.exists():
            replace_file(path, dump_json(scorer))
        if read_json(path, "scorer of stored answers", SCHEMA_VERSION) != scorer:
            raise DataError(f"{path} is of another scorer: expected the one that its folder is named after")
        for file in sorted(self.folder.glob("*.rows")):
            self._read(file)

    def _read(self, path: Path) -> None:
        place = self._first_place(path)
        size = self._dtype.itemsize
        with open_plain(path, f"stored answers {path}") as file:
            while len(row := file.read(size)) == size:
                body = _intact(row)
                if body is None:
                    self.damaged += 1
                else:
                    self._places[body[:KEY_BYTES]] = place
                place += size

    def _first_place(self, path: Path) -> int:
        """Place of the first row of a further file."""
        self._files.append(path)
        return (len(self._files) - 1) * LARGEST_FILE

    def warn_of_damage(self) -> None:
        """Warn of damaged rows, if there are any."""
        if self.damaged:
            warnings.warn(f"{self.damaged} damaged answers in {self.folder} are asked for again", stacklevel=4)

    def __len__(self) -> int:
        """Number of answers."""
        return len(self._places)

    def get(self, key: bytes) -> NDArray[np.float32] | None:
        """Outputs (K,) of the picture with this hash; None if they are not known, or were damaged or removed since."""
        place = self._places.get(key)
        if place is None:
            return None
        number, start = divmod(place, LARGEST_FILE)
        try:
            with open_plain(self._files[number], "stored answers") as file:
                file.seek(start)
                body = _intact(file.read(self._dtype.itemsize))
        except (OSError, DataError):
            return None
        if body is None or body[:KEY_BYTES] != key:
            return None
        return np.frombuffer(body[KEY_BYTES:], "<f4").astype(np.float32)

    def put(self, keys: list[bytes], outputs: NDArray[np.float32]) -> None:
        """Store the outputs (B, K) of pictures.

        Raises:
            OSError: the disk refused; none of them is stored.
        """
        data = bytearray()
        for key, row in zip(keys, outputs.astype("<f4"), strict=True):
            body = key + row.tobytes()
            data += body + zlib.crc32(body).to_bytes(4, "little")
        if self._descriptor is None:
            path = self.folder / f"{os.getpid()}-{os.urandom(6).hex()}.rows"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._own, self._size = self._first_place(path), 0
        if os.write(self._descriptor, data) < len(data):
            # later rows would not stand where they are looked for
            os.ftruncate(self._descriptor, self._size)
            raise OSError(0, "only a part of the answers could be written")
        for number, key in enumerate(keys):
            self._places[key] = self._own + self._size + number * self._dtype.itemsize
        self._size += len(data)

    def close(self) -> None:
        """Sync what was stored to the disk; may be called repeatedly."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _intact(row: bytes) -> bytes | None:
    """Key and outputs of a row; None if it does not match its checksum."""
    body, check = row[:-4], row[-4:]
    return body if zlib.crc32(body).to_bytes(4, "little") == check else None
