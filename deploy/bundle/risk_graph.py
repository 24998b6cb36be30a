"""Risk graph of a bundle, evaluated with numpy alone: small enough for each tick of a servo.

The graph has the inputs "measured" (1, S) and "action" (1, A) and one output, the risk (1,). It may hold the operators
of a multilayer perceptron with normalization, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from robotrl.deploy.bundle.risk_program import RiskOp, RiskRegister, folds, read_program
from robotrl.errors import DataError

RISK_FILE = "risk.onnx"
_Run = Callable[[], object]
_PAIRS: dict[RiskOp, np.ufunc] = {
    RiskOp.ADD: np.add,
    RiskOp.SUB: np.subtract,
    RiskOp.MUL: np.multiply,
    RiskOp.MAX: np.maximum,
    RiskOp.MIN: np.minimum,
}
"""Minimum and maximum of numpy keep NaN."""
_FURTHEST = 120.0
"""Beyond it a sigmoid is 0 or 1 in float32."""
_PER_LN2 = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
"""ln 2 in two parts, of which the first has so few bits that its small multiples are exact."""
_TERMS = tuple(1.0 / math.factorial(i) for i in range(11, -1, -1))
"""Taylor series of exp, highest power first: to 1e-13 within ln 2 / 2 of 0."""


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)) in float64, to 1e-12, by arithmetic alone: mathematical libraries differ in their last bits."""
    if math.isnan(x):
        return x
    x = min(max(-x, -_FURTHEST), _FURTHEST)
    doublings = round(x * _PER_LN2)
    rest = (x - doublings * _LN2_HIGH) - doublings * _LN2_LOW
    power = 0.0
    for term in _TERMS:
        power = power * rest + term
    return 1.0 / (1.0 + math.ldexp(power, doublings))


class RiskGraph:
    """A risk graph as calls of numpy on arrays that it keeps: one thread may use it at a time.

    Every operation and its order are defined (see `RiskOp`), and none is left to a library for matrices, so that the
    C++ servo finds the same bits.

    Args:
        data: the file's content; scanned before (`robotrl.deploy.bundle.onnx_scan`).
        measured: S.
        actions: A.
        name: name of the file, for errors.

    Attributes:
        program: the graph as registers.

    Raises:
        DataError: not readable, an operator that no perceptron has, or inputs and outputs of other shapes.
    """

    def __init__(self, data: bytes, measured: int, actions: int, name: str = RISK_FILE) -> None:
        self.program = read_program(data, measured, actions, name)
        self._rows: list[np.ndarray] = [np.zeros(measured, np.float32), np.zeros(actions, np.float32)]
        self._runs: list[_Run] = []
        for register in self.program.registers:
            if register.values is not None:
                self._rows.append(register.values)
                continue
            self._rows.append(np.zeros(register.width, np.float32))
            self._runs.append(self._run(register, self._rows[-1]))
        found = self(np.zeros(measured, np.float32), np.zeros(actions, np.float32))
        if not 0.0 <= found <= 1.0:
            raise DataError(f"{name}: gives a risk of {found} for zeros: expected 0 to 1")

    def __call__(self, measured: np.ndarray, action: np.ndarray) -> float:
        """Risk of an action (A,) where (S,) is measured, 0 to 1; NaN where a number is NaN. Both count as float32."""
        self._rows[0][:] = measured
        self._rows[1][:] = action
        # numbers may be as large as float32 takes
        with np.errstate(over="ignore", invalid="ignore"):
            for run in self._runs:
                run()
        return float(self._rows[self.program.result][0])

    def _run(self, register: RiskRegister, out: np.ndarray) -> _Run:
        """Function that fills a register."""
        given = [self._rows[i] for i in register.of]
        if register.op in _PAIRS:
            return partial(_PAIRS[register.op], *given, out=out)
        if register.op == RiskOp.JOIN:
            return partial(np.concatenate, given, out=out)
        if register.op == RiskOp.SIGMOID:
            return partial(_sigmoids, given[0], out)
        return _product(given, out)


def _sigmoids(x: np.ndarray, out: np.ndarray) -> None:
    out[:] = [sigmoid(number) for number in x.tolist()]


def _product(given: list[np.ndarray], out: np.ndarray) -> _Run:
    """Function that multiplies a row by a matrix, and adds the bias."""
    x, weights = given[0][:, None], given[1].reshape(len(given[0]), len(out))
    bias = given[2] if len(given) > 2 else None
    products = np.empty_like(weights)
    halves = [(products[: count - half], products[half:count]) for count, half in folds(len(products))]

    def run() -> None:
        np.multiply(weights, x, out=products)
        for head, tail in halves:
            np.add(head, tail, out=head)
        if bias is None:
            out[:] = products[0]
        else:
            np.add(products[0], bias, out=out)

    return run
