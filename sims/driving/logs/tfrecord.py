"""TFRecord files: records with their length, each part with a CRC-32C checksum. No TensorFlow is needed."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError
from robotrl.utils.files import open_plain

POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, bits reversed."""
MASK = 0xA282EAD8
LANES = 1024
"""Pieces of a long record whose checksums are computed side by side."""
LARGEST = 1 << 30
"""Largest record, bytes."""


@functools.cache
def table() -> NDArray[np.uint32]:
    """(256,) remainders of single bytes."""
    rows = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        rows = ((rows >> 1) ^ (rows & 1) * np.uint32(POLYNOMIAL)).astype(np.uint32)
    return rows


def crc32c(data: bytes) -> int:
    """CRC-32C of bytes."""
    remainder = 0xFFFFFFFF
    if len(data) >= 8 * LANES:
        length = len(data) // LANES
        remainder = _combined(_side_by_side(np.frombuffer(data, np.uint8, LANES * length), length), length)
        data = data[LANES * length :]
    rows = table().tolist()
    for byte in data:
        remainder = rows[(remainder ^ byte) & 0xFF] ^ (remainder >> 8)
    return remainder ^ 0xFFFFFFFF


def _side_by_side(data: NDArray[np.uint8], length: int) -> NDArray[np.uint32]:
    """Remainders (LANES,) of consecutive pieces of `length` bytes; the first one starts from all ones."""
    columns = np.ascontiguousarray(data.reshape(LANES, length).T)
    out, rows = np.zeros(LANES, np.uint32), table()
    out[0] = 0xFFFFFFFF
    for column in columns:
        out = rows[(out ^ column) & 0xFF] ^ (out >> np.uint32(8))
    return out


def _combined(pieces: NDArray[np.uint32], length: int) -> int:
    """Remainder of pieces in a row: what stands before a piece moves on by `length` zero bytes."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    rows = table()
    for _ in range(length):
        bits = rows[bits & 0xFF] ^ (bits >> np.uint32(8))
    # four tables for four bytes, so that a step is four look-ups
    single = np.zeros((4, 256), np.uint32)
    for place in range(4):
        for bit in range(8):
            single[place] ^= np.where(np.arange(256) >> bit & 1, bits[8 * place + bit], np.uint32(0))
    first, second, third, fourth = single.tolist()
    remainder = 0
    for piece in pieces.tolist():
        moved = first[remainder & 0xFF] ^ second[remainder >> 8 & 0xFF]
        remainder = moved ^ third[remainder >> 16 & 0xFF] ^ fourth[remainder >> 24] ^ piece
    return remainder


def masked(data: bytes) -> int:
    """Checksum as TFRecord files store it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


def records(path: Path) -> Iterator[bytes]:
    """Records of a file, one after the other.

    Raises:
        DataError: missing, truncated, a record that is too long, or a wrong checksum; the record is named.
    """
    where = f"TFRecord file {path}"
    try:
        file = open_plain(path, where)
    except FileNotFoundError:
        raise DataError(f"{where} does not exist") from None
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror}") from error
    with file:
        left = os.fstat(file.fileno()).st_size
        number = 0
        while left:
            head = file.read(12)
            if len(head) < 12:
                raise DataError(f"{where}, record {number}: truncated, {len(head)} bytes of its length: expected 12")
            length, crc = struct.unpack("<QI", head)
            if masked(head[:8]) != crc:
                raise DataError(f"{where}, record {number}: its length has a wrong checksum: altered, or no TFRecord")
            if length > LARGEST or length + 16 > left:
                raise DataError(f"{where}, record {number}: {length} bytes, of which {max(left - 16, 0)} are there")
            body = file.read(length)
            (crc,) = struct.unpack("<I", file.read(4))
            if masked(body) != crc:
                raise DataError(f"{where}, record {number}: its contents have a wrong checksum: the file was altered")
            yield body
            left -= length + 16
            number += 1


def record(body: bytes) -> bytes:
    """Bytes of a record in a file."""
    head = struct.pack("<Q", len(body))
    return head + struct.pack("<I", masked(head)) + body + struct.pack("<I", masked(body))
