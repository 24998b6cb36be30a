"""Program of a risk graph: what a servo of either runtime computes, read from ONNX once.

A program is a list of registers, each a row of float32: first the measurements, then the action, then constants and
results of registers before them. `robotrl.deploy.bundle.risk_graph` runs it with numpy, and the C++ servo by loops of
its own (`native/src/risk.cpp`). Both do the same operations of IEEE 754 in the same order, so they find the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from robotrl.deploy.native.onnx_graph import GraphNode, OnnxGraph, read_graph
from robotrl.errors import DataError

MEASURED, ACTION = "measured", "action"
"""Inputs of the graph."""
MOST_FLOATS = 1 << 24
"""Floats that a register holds at most."""


class RiskOp(IntEnum):
    """Operation that fills a register; a, b and c are registers before it."""

    CONSTANT = 0
    ADD = 1
    """a + b, of one width."""
    SUB = 2
    MUL = 3
    MAX = 4
    """The larger one; NaN where one is NaN."""
    MIN = 5
    JOIN = 6
    """The elements of a, then those of b."""
    MATRIX = 7
    """a times the (k, n) weights b, in the order of `folds`, plus the bias c if there is one."""
    SIGMOID = 8
    """See `risk_graph.sigmoid`."""


class RiskRegister(NamedTuple):
    """One register after the two inputs."""

    op: RiskOp
    of: tuple[int, ...]
    """The registers a, b and c, as many as the operation takes."""
    width: int
    values: np.ndarray | None = None
    """(width,) float32 of a constant."""


class RiskProgram(NamedTuple):
    """A risk graph as registers; the inputs are registers 0 and 1."""

    measured: int
    """S, the width of register 0."""
    actions: int
    """A, the width of register 1."""
    registers: tuple[RiskRegister, ...]
    result: int
    """Register of the risk, of one element."""


def folds(count: int) -> list[tuple[int, int]]:
    """The order in which a sum of so many terms is taken: by halves.

    Returns:
        Pairs (n, half), one after the other: to each of the first n - half terms, the one `half` further on is added,
        and the first `half` terms are left. The sum is then the first term.
    """
    found: list[tuple[int, int]] = []
    while count > 1:
        half = (count + 1) // 2
        found.append((count, half))
        count = half
    return found


def read_program(data: bytes, measured: int, actions: int, name: str) -> RiskProgram:
    """Read the program of a risk graph.

    Args:
        data: the file's content; scanned before (`robotrl.deploy.bundle.onnx_scan`).
        measured: S.
        actions: A.
        name: name of the file, for errors.

    Raises:
        DataError: not readable, an operator that no perceptron has, or shapes that do not fit.
    """
    graph = read_graph(data, name)
    expected = {MEASURED: (1, measured), ACTION: (1, actions)}
    if graph.inputs != expected or len(graph.outputs) != 1:
        raise DataError(
            f"{name}: inputs {graph.inputs} and {len(graph.outputs)} outputs: expected {expected} and 1 output"
        )
    try:
        return _Reader(graph, measured, actions).program()
    except _NoPerceptron as error:
        raise DataError(f"{name}: {error}") from error


class _NoPerceptron(Exception):
    """The graph has no program; the message says why."""


class _Reader:
    """Reads one graph; each method of an operator takes its node and returns the register of the result."""

    def __init__(self, graph: OnnxGraph, measured: int, actions: int) -> None:
        self.graph = graph
        self.inputs = (measured, actions)
        self.registers: list[RiskRegister] = []
        self.known = {MEASURED: 0, ACTION: 1}
        """Register of each tensor that is computed."""

    def program(self) -> RiskProgram:
        for node in self.graph.nodes:
            method = _METHODS.get(node.kind)
            if method is None or len(node.outputs) != 1:
                raise _NoPerceptron(f"holds the operator {node.kind}: expected only {', '.join(sorted(_METHODS))}")
            self.known[node.outputs[0]] = method(self, node)
        result = self.known.get(self.graph.outputs[0])
        if result is None or self.width(result) != 1:
            raise _NoPerceptron(f"cannot be computed: output {self.graph.outputs[0]!r} is not 1 computed number")
        return RiskProgram(*self.inputs, tuple(self.registers), result)

    # registers

    def width(self, register: int) -> int:
        return self.inputs[register] if register < 2 else self.registers[register - 2].width

    def add(self, op: RiskOp, of: tuple[int, ...], width: int) -> int:
        if width > MOST_FLOATS:
            raise _NoPerceptron(f"cannot be computed: {op.name} of {width} numbers, expected at most {MOST_FLOATS}")
        self.registers.append(RiskRegister(op, of, width))
        return len(self.registers) + 1

    def hold(self, values: np.ndarray) -> int:
        """A constant."""
        flat = np.ascontiguousarray(values, np.float32).ravel()
        self.registers.append(RiskRegister(RiskOp.CONSTANT, (), flat.size, flat))
        return len(self.registers) + 1

    # inputs of a node

    def constant(self, node: GraphNode, i: int) -> np.ndarray | None:
        """A constant input; None where it is computed."""
        name = self.name(node, i)
        found = self.graph.constants.get(name)
        if found is None and name not in self.known:
            raise _NoPerceptron(f"cannot be computed: {node.kind} reads {name!r} before it is computed")
        if found is not None and found.dtype != np.float32:
            raise _NoPerceptron(f"cannot be computed: {node.kind} reads {name!r} of {found.dtype}, expected float32")
        return found

    def name(self, node: GraphNode, i: int) -> str:
        if not self.given(node, i):
            raise _NoPerceptron(f"cannot be computed: {node.kind} has {len(node.inputs)} inputs, expected {i + 1}")
        return node.inputs[i]

    @staticmethod
    def given(node: GraphNode, i: int) -> bool:
        return i < len(node.inputs) and node.inputs[i] != ""

    def row(self, node: GraphNode, i: int) -> int:
        """Register of an input that is a row."""
        found = self.constant(node, i)
        if found is None:
            return self.known[node.inputs[i]]
        if found.ndim and found.size != found.shape[-1]:
            raise _NoPerceptron(f"cannot be computed: {node.kind} reads {found.shape} constants, expected a row")
        return self.hold(found)

    def beside(self, node: GraphNode, i: int, width: int) -> int:
        """Register of an input that stands beside a row of a width; one constant number is repeated for it."""
        found = self.constant(node, i)
        if found is not None and found.size == 1:
            return self.hold(np.full(width, found.ravel()[0]))
        return self.row(node, i)

    def pairs(self, node: GraphNode, op: RiskOp, a: int, b: int) -> int:
        """An operation on each pair of elements."""
        if self.width(a) != self.width(b):
            raise _NoPerceptron(
                f"cannot be computed: {node.kind} of {self.width(a)} and {self.width(b)} numbers, expected one width"
            )
        return self.add(op, (a, b), self.width(a))

    # operators

    def arithmetic(self, node: GraphNode, op: RiskOp) -> int:
        widths = [self.size(node, i) for i in (0, 1)]
        a, b = (self.beside(node, i, max(widths)) for i in (0, 1))
        return self.pairs(node, op, a, b)

    def size(self, node: GraphNode, i: int) -> int:
        found = self.constant(node, i)
        return self.width(self.known[node.inputs[i]]) if found is None else found.size

    def clip(self, node: GraphNode) -> int:
        out = self.row(node, 0)
        for i, op in ((1, RiskOp.MAX), (2, RiskOp.MIN)):
            if self.given(node, i):
                out = self.pairs(node, op, out, self.beside(node, i, self.width(out)))
        return out

    def concat(self, node: GraphNode) -> int:
        axis = node.attributes.get("axis", 1)
        if axis not in (1, -1):
            raise _NoPerceptron(f"Concat has axis {axis!r}: expected 1, that of the elements")
        out = self.row(node, 0)
        for i in range(1, len(node.inputs)):
            more = self.row(node, i)
            out = self.add(RiskOp.JOIN, (out, more), self.width(out) + self.width(more))
        return out

    def gemm(self, node: GraphNode) -> int:
        given = node.attributes
        plain = given.get("alpha", 1.0) == 1.0 == given.get("beta", 1.0) and not given.get("transA", 0)
        if not plain:
            raise _NoPerceptron("Gemm scales or transposes its input: expected a plain linear layer")
        x, weights = self.row(node, 0), self.constant(node, 1)
        if weights is None or weights.ndim != 2:
            raise _NoPerceptron("cannot be computed: Gemm has no constant matrix of weights")
        matrix = weights.T if given.get("transB", 0) else weights
        inputs, outputs = matrix.shape
        if inputs != self.width(x):
            raise _NoPerceptron(f"cannot be computed: Gemm has weights of {inputs} inputs, expected {self.width(x)}")
        of = (x, self.hold(matrix))
        # an exporter leaves out a bias of zeros
        if self.given(node, 2):
            bias = self.beside(node, 2, outputs)
            if self.width(bias) != outputs:
                raise _NoPerceptron(f"cannot be computed: Gemm has {self.width(bias)} biases, expected {outputs}")
            of = (*of, bias)
        return self.add(RiskOp.MATRIX, of, outputs)

    def relu(self, node: GraphNode) -> int:
        x = self.row(node, 0)
        return self.add(RiskOp.MAX, (x, self.hold(np.zeros(self.width(x), np.float32))), self.width(x))

    def sigmoid(self, node: GraphNode) -> int:
        x = self.row(node, 0)
        return self.add(RiskOp.SIGMOID, (x,), self.width(x))

    def same(self, node: GraphNode) -> int:
        """An operator that moves no element of a row."""
        return self.row(node, 0)


_METHODS: dict[str, Callable[[_Reader, GraphNode], int]] = {
    "Add": lambda reader, node: reader.arithmetic(node, RiskOp.ADD),
    "Clip": _Reader.clip,
    "Concat": _Reader.concat,
    "Gemm": _Reader.gemm,
    "Mul": lambda reader, node: reader.arithmetic(node, RiskOp.MUL),
    "Relu": _Reader.relu,
    "Sigmoid": _Reader.sigmoid,
    "Squeeze": _Reader.same,
    "Sub": lambda reader, node: reader.arithmetic(node, RiskOp.SUB),
}
"""Operator to the method that reads it."""
