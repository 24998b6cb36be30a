"""Tape: the program of the C++ engine, one record of whole numbers for each operation over one block of memory.

The block holds the constants first, and then a place for each tensor. Operations name places by their offset in floats.
The engine checks every record before it runs any (`src/engine.cpp`), and finds records, places and numbers by the
layout below.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

MAGIC = b"rrltape1"
_HEAD = struct.Struct("<8sI4x5q")
"""Magic, checksum of the rest; floats of memory and of constants, whole numbers of the records, inputs, outputs."""
ALIGN = 16
"""Places begin at multiples of so many floats."""
PANEL = 64
"""Outputs that are computed at a time; the last ones in panels of `NARROW`."""
NARROW = 16


class TapeOp(IntEnum):
    """Kind of a record. Its numbers follow: y is the place of the result, n the floats of it."""

    MATRIX = 1
    """x, y, rows, k, n, weights, bias (-1 for none): y = x weights + bias; weights as `paneled`."""
    UNARY = 2
    """function, x, y, n."""
    BINARY = 3
    """function, a, b, y, n."""
    SCALAR = 4
    """function, a, b, y, n: b is one number for all."""
    COPY = 5
    """x, y, n."""
    GATHER = 6
    """y, n, then the n places to read."""
    LAYER_NORM = 7
    """x, y, rows, n, scale, bias (-1 for none), bits of epsilon as float32."""
    SOFTMAX = 8
    """x, y, rows, n."""
    PRODUCT = 9
    """a, b, y, batch, m, k, n: y = a b, of batch matrices each."""
    MEAN = 10
    """x, y, rows, n: mean of each row."""


class UnaryFunction(IntEnum):
    """Function of a `UNARY` record."""

    SIGMOID = 1
    TANH = 2
    RELU = 3
    SILU = 4
    EXP = 5
    LOG = 6
    SQRT = 7
    NEG = 8
    ABS = 9
    ERF = 10
    GELU = 11
    SOFTPLUS = 12
    RECIPROCAL = 13
    SIN = 14
    COS = 15
    ELU = 16


class BinaryFunction(IntEnum):
    """Function of a `BINARY` or `SCALAR` record."""

    ADD = 1
    SUB = 2
    MUL = 3
    DIV = 4
    MAX = 5
    MIN = 6


@dataclass
class Tape:
    """A program under construction."""

    records: list[int] = field(default_factory=list[int])
    constants: list[np.ndarray] = field(default_factory=list[np.ndarray])
    inputs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Place and floats of each input."""
    outputs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    constant_floats: int = 0
    value_floats: int = 0
    _known: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def constant(self, values: np.ndarray) -> int:
        """Offset of constants among all constants; equal ones share it."""
        flat = np.ascontiguousarray(values, np.float32).ravel()
        key = flat.tobytes()
        if key not in self._known:
            self._known[key] = self.constant_floats
            padded = np.zeros(-(-max(1, len(flat)) // ALIGN) * ALIGN, np.float32)
            padded[: len(flat)] = flat
            self.constants.append(padded)
            self.constant_floats += len(padded)
        return self._known[key]

    def value(self, count: int) -> int:
        """A new place among the values."""
        at = self.value_floats
        self.value_floats += -(-max(1, count) // ALIGN) * ALIGN
        return at

    def packed(self) -> bytes:
        """The program as bytes."""
        places = [number for pair in (*self.inputs, *self.outputs) for number in pair]
        body = np.asarray(places, "<i8").tobytes() + np.asarray(self.records, "<i4").tobytes()
        body += b"\0" * (-len(body) % 8)
        body += b"".join(array.astype("<f4").tobytes() for array in self.constants)
        sizes = (self.constant_floats + self.value_floats, self.constant_floats, len(self.records))
        rest = struct.pack("<5q", *sizes, len(self.inputs), len(self.outputs)) + body
        return _HEAD.pack(MAGIC, zlib.crc32(rest), *sizes, len(self.inputs), len(self.outputs)) + body


def paneled(weights: np.ndarray) -> np.ndarray:
    """(K, N) weights in the order in which the engine reads them.

    Panels of 64 outputs, then of 16, each with the weights of one input after the other; missing outputs are zero.
    """
    k, n = weights.shape
    wide = n // PANEL * PANEL
    rest = -(-(n - wide) // NARROW) * NARROW
    padded = np.zeros((k, wide + rest), np.float32)
    padded[:, :n] = weights
    panels = [padded[:, at : at + PANEL] for at in range(0, wide, PANEL)]
    panels += [padded[:, at : at + NARROW] for at in range(wide, wide + rest, NARROW)]
    return np.concatenate([panel.ravel() for panel in panels])
