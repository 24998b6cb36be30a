"""Reader of protobuf fields, without a protobuf library.

It accepts a subset: no groups, no unexpected wire types. A file with more fields than `MAX_FIELDS` is refused, which
bounds the time that it takes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from robotrl.errors import DataError

MAX_FIELDS = 3_000_000
"""Most fields in a file; our graphs have thousands."""
# Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ProtobufField(NamedTuple):
    """One field of a message."""

    number: int
    wire: int
    value: int
    """Value of a varint field; else 0."""
    data: memoryview
    """Content of a field of bytes or of fixed size; else empty."""


class ProtobufReader:
    """Reads the fields of messages, and raises on what does not parse.

    Args:
        name: name of the file, for errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.walked = 0

    def fields(self, data: memoryview) -> Iterator[ProtobufField]:
        """Iterate over the fields of a message."""
        at, empty = 0, data[:0]
        while at < len(data):
            self.walked += 1
            if self.walked > MAX_FIELDS:
                raise self.damaged(f"more than {MAX_FIELDS} fields")
            key, at = self._number(data, at)
            number, wire = key >> 3, key & 7
            if number == 0:
                raise self.damaged(f"field number 0 at byte {at}")
            if wire == _VARINT:
                value, at = self._number(data, at)
                yield ProtobufField(number, wire, value, empty)
                continue
            if wire == _BYTES:
                size, at = self._number(data, at)
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise self.damaged(f"wire type {wire} at byte {at}")
            if size > len(data) - at:
                raise self.damaged(f"a field of {size} bytes at byte {at} runs past the end: truncated")
            yield ProtobufField(number, wire, 0, data[at : at + size])
            at += size

    def varint(self, field: ProtobufField, what: str) -> int:
        """Value of a varint field."""
        if field.wire != _VARINT:
            raise self.damaged(f"field {what} has wire type {field.wire}")
        return field.value

    def whole(self, field: ProtobufField, what: str) -> int:
        """Value of a varint field as a signed number of 64 bits."""
        value = self.varint(field, what)
        return value - (1 << 64) if value >= 1 << 63 else value

    def wholes(self, field: ProtobufField, what: str) -> list[int]:
        """Values of a repeated field of signed numbers, packed or not."""
        if field.wire == _VARINT:
            return [self.whole(field, what)]
        found: list[int] = []
        data, at = self.message(field, what), 0
        while at < len(data):
            value, at = self._number(data, at)
            found.append(value - (1 << 64) if value >= 1 << 63 else value)
        return found

    def single(self, field: ProtobufField, what: str) -> float:
        """Value of a float field."""
        if field.wire != _FIXED32:
            raise self.damaged(f"field {what} has wire type {field.wire}")
        return float(struct.unpack("<f", field.data)[0])

    def message(self, field: ProtobufField, what: str) -> memoryview:
        """Content of a field of bytes."""
        if field.wire != _BYTES:
            raise self.damaged(f"field {what} has wire type {field.wire}")
        return field.data

    def text(self, field: ProtobufField, what: str) -> str:
        """Content of a field of text."""
        try:
            return bytes(self.message(field, what)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"field {what} is not text") from error

    def damaged(self, why: str) -> DataError:
        """The error for a file that does not parse."""
        return DataError(f"{self.name}: not a readable ONNX file: {why}")

    def _number(self, data: memoryview, at: int) -> tuple[int, int]:
        """Read the base-128 number at `at`; returns it and the offset after it."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(data):
                raise self.damaged("it ends inside a number: truncated")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
        raise self.damaged(f"a number longer than 10 bytes at byte {at}")
