"""Risk graph of a bundle, evaluated with numpy alone: small enough for each tick of a servo.

The graph has the inputs "measured" (1, S) and "action" (1, A) and one output, the risk (1,). It may hold the operators
of a multilayer perceptron with normalization, and no others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robotrl.deploy.native.onnx_graph import GraphNode, read_graph
from robotrl.errors import DataError

MEASURED, ACTION = "measured", "action"
"""Inputs of the graph."""
RISK_FILE = "risk.onnx"
_Arrays = tuple[np.ndarray, ...]


def _gemm(node: GraphNode) -> Callable[[_Arrays], np.ndarray]:
    given = node.attributes
    plain = given.get("alpha", 1.0) == 1.0 == given.get("beta", 1.0) and not given.get("transA", 0)
    if not plain:
        raise DataError("Gemm scales or transposes its input: expected a plain linear layer")
    turned = bool(given.get("transB", 0))

    def product(x: _Arrays) -> np.ndarray:
        out = x[0] @ (x[1].T if turned else x[1])
        # an exporter leaves out a bias of zeros
        return out + x[2] if len(x) > 2 else out

    return product


def _concat(node: GraphNode) -> Callable[[_Arrays], np.ndarray]:
    axis = node.attributes.get("axis", 1)
    if not isinstance(axis, int):
        raise DataError(f"Concat has axis {axis!r}: expected a whole number")
    return lambda x: np.concatenate(x, axis=axis)


_KINDS: dict[str, Callable[[GraphNode], Callable[[_Arrays], np.ndarray]]] = {
    "Add": lambda node: lambda x: x[0] + x[1],
    "Clip": lambda node: lambda x: np.minimum(np.maximum(x[0], x[1]), x[2]),
    "Concat": _concat,
    "Gemm": _gemm,
    "Mul": lambda node: lambda x: x[0] * x[1],
    "Relu": lambda node: lambda x: np.maximum(x[0], np.float32(0)),
    "Sigmoid": lambda node: lambda x: np.float32(1) / (np.float32(1) + np.exp(-x[0])),
    "Squeeze": lambda node: lambda x: x[0].reshape(-1),
    "Sub": lambda node: lambda x: x[0] - x[1],
}
"""Operator to the function that makes it of a node. Minimum and maximum of numpy keep NaN."""


class RiskGraph:
    """A risk graph as a list of numpy functions.

    Args:
        data: the file's content; scanned before (`robotrl.deploy.bundle.onnx_scan`).
        measured: S.
        actions: A.
        name: name of the file, for errors.

    Raises:
        DataError: not readable, an operator that no perceptron has, or inputs and outputs of other shapes.
    """

    def __init__(self, data: bytes, measured: int, actions: int, name: str = RISK_FILE) -> None:
        graph = read_graph(data, name)
        expected = {MEASURED: (1, measured), ACTION: (1, actions)}
        if graph.inputs != expected or len(graph.outputs) != 1:
            raise DataError(
                f"{name}: inputs {graph.inputs} and {len(graph.outputs)} outputs: expected {expected} and 1 output"
            )
        self._name = name
        self._constants = graph.constants
        self._output = graph.outputs[0]
        self._steps = [self._step(node) for node in graph.nodes]
        self._check(measured, actions)

    def __call__(self, measured: np.ndarray, action: np.ndarray) -> float:
        """Risk of an action (A,) float32 in a state (S,) float32, 0 to 1; NaN where a number is NaN."""
        values = {**self._constants, MEASURED: measured[None], ACTION: action[None]}
        # a risk of nearly 0 is exp of a large number
        with np.errstate(over="ignore", invalid="ignore"):
            for run, inputs, output in self._steps:
                values[output] = run(tuple(values[key] for key in inputs))
        return float(values[self._output][0])

    def _step(self, node: GraphNode) -> tuple[Callable[[_Arrays], np.ndarray], tuple[str, ...], str]:
        if node.kind not in _KINDS or len(node.outputs) != 1:
            raise DataError(f"{self._name}: holds the operator {node.kind}: expected only {', '.join(sorted(_KINDS))}")
        try:
            return _KINDS[node.kind](node), node.inputs, node.outputs[0]
        except DataError as error:
            raise DataError(f"{self._name}: {error}") from error

    def _check(self, measured: int, actions: int) -> None:
        """Compute it once: shapes that do not fit show now and not on the robot."""
        try:
            found = self(np.zeros(measured, np.float32), np.zeros(actions, np.float32))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise DataError(f"{self._name}: cannot be computed: {error}") from error
        if not 0.0 <= found <= 1.0:
            raise DataError(f"{self._name}: gives a risk of {found} for zeros: expected 0 to 1")
