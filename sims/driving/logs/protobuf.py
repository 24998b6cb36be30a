"""Wire format of Protocol Buffers: fields of a message by number. No protobuf package and no schema are needed."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from robotrl.errors import DataError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Unsigned number at a position, and the position after it.

    Raises:
        DataError: truncated, or longer than 10 bytes.
    """
    value = 0
    for place in range(10):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise DataError(f"protocol buffer: a number at byte {at} does not end: truncated, or no message")


def fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """Number, wire type and value of each field: unsigned for a varint, else the bytes.

    Raises:
        DataError: truncated, or an unknown wire type.
    """
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise DataError(f"protocol buffer: wire type {kind} of field {number}: expected 0, 1, 2 or 5")
        if number == 0 or at + length > len(data):
            raise DataError(f"protocol buffer: field {number} has {length} bytes at byte {at}, the message {len(data)}")
        yield number, kind, data[at : at + length]
        at += length


class ProtoMessage:
    """Fields of a message by number.

    Args:
        data: the message.

    Raises:
        DataError: no message, or truncated.
    """

    def __init__(self, data: bytes) -> None:
        self._found: dict[int, list[tuple[int, Value]]] = {}
        for number, kind, value in fields(data):
            self._found.setdefault(number, []).append((kind, value))

    def messages(self, number: int) -> list[ProtoMessage]:
        """Messages of a repeated field."""
        return [ProtoMessage(value) for value in self.all_bytes(number)]

    def all_bytes(self, number: int) -> list[bytes]:
        """Bytes of a repeated field."""
        return [self._bytes(number, kind, value) for kind, value in self._found.get(number, [])]

    def text(self, number: int) -> str:
        """Text of a field; "" without it."""
        found = self.all_bytes(number)
        return found[-1].decode("utf-8", "replace") if found else ""

    def integer(self, number: int, default: int = 0) -> int:
        """Signed whole number of a field."""
        found = self.integers(number)
        return found[-1] if found else default

    def integers(self, number: int) -> list[int]:
        """Signed whole numbers of a repeated field, packed or not."""
        out: list[int] = []
        for kind, value in self._found.get(number, []):
            if isinstance(value, int):
                out.append(_signed(value))
                continue
            at = 0
            while at < len(self._bytes(number, kind, value)):
                one, at = varint(value, at)
                out.append(_signed(one))
        return out

    def double(self, number: int, default: float = 0.0) -> float:
        """Number of 64 bits of a field."""
        found = self.doubles(number)
        return found[-1] if found else default

    def doubles(self, number: int) -> list[float]:
        """Numbers of 64 bits of a repeated field, packed or not."""
        return self._floats(number, FIXED64, "<d", 8)

    def single(self, number: int, default: float = 0.0) -> float:
        """Number of 32 bits of a field."""
        found = self._floats(number, FIXED32, "<f", 4)
        return found[-1] if found else default

    def _floats(self, number: int, fixed: int, form: str, size: int) -> list[float]:
        out: list[float] = []
        for kind, value in self._found.get(number, []):
            if isinstance(value, int) or kind not in (fixed, BYTES) or len(value) % size:
                raise DataError(
                    f"protocol buffer: field {number} has wire type {kind}: expected numbers of {size} bytes"
                )
            out += [one for (one,) in struct.iter_unpack(form, value)]
        return out

    def _bytes(self, number: int, kind: int, value: Value) -> bytes:
        if isinstance(value, int) or kind != BYTES:
            raise DataError(f"protocol buffer: field {number} has wire type {kind}: expected bytes")
        return value


def _signed(value: int) -> int:
    """Whole number of 64 bits in two's complement."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
