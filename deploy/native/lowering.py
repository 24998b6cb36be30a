"""Lowering of a policy graph to a tape: shapes and views vanish, and operators on numbers remain.

A tensor that is computed is an array of places, one for each of its elements; so reshaping, slicing, joining and
transposing are numpy's own operations on these arrays, and cost nothing when the graph runs, except where an operator
needs its input in one piece. Batches are of one row, as in every bundle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from robotrl.deploy.native.onnx_graph import GraphNode, OnnxGraph
from robotrl.deploy.native.tape import BinaryFunction, Tape, TapeOp, UnaryFunction, paneled

CONSTANT_MOST = 1 << 28
"""Most floats of constants: 1 GiB."""


class NotLowered(Exception):
    """The graph holds an operator that the engine has no loop for; the message names it."""


class PlacedValues:
    """A tensor that is computed: the place of each element, an array of its shape.

    Places count from the first value; those of constants are known once all constants are.
    """

    def __init__(self, places: np.ndarray) -> None:
        self.places = places

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.places.shape


Tensor = np.ndarray | PlacedValues

_UNARY = {
    "Sigmoid": UnaryFunction.SIGMOID,
    "Tanh": UnaryFunction.TANH,
    "Relu": UnaryFunction.RELU,
    "Silu": UnaryFunction.SILU,
    "Exp": UnaryFunction.EXP,
    "Log": UnaryFunction.LOG,
    "Sqrt": UnaryFunction.SQRT,
    "Neg": UnaryFunction.NEG,
    "Abs": UnaryFunction.ABS,
    "Erf": UnaryFunction.ERF,
    "Gelu": UnaryFunction.GELU,
    "Softplus": UnaryFunction.SOFTPLUS,
    "Reciprocal": UnaryFunction.RECIPROCAL,
    "Sin": UnaryFunction.SIN,
    "Cos": UnaryFunction.COS,
    "Elu": UnaryFunction.ELU,
}
_BINARY = {
    "Add": BinaryFunction.ADD,
    "Sub": BinaryFunction.SUB,
    "Mul": BinaryFunction.MUL,
    "Div": BinaryFunction.DIV,
    "Max": BinaryFunction.MAX,
    "Min": BinaryFunction.MIN,
}
_ON_NUMBERS: dict[BinaryFunction, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    BinaryFunction.ADD: np.add,
    BinaryFunction.SUB: np.subtract,
    BinaryFunction.MUL: np.multiply,
    BinaryFunction.DIV: np.divide,
    BinaryFunction.MAX: np.maximum,
    BinaryFunction.MIN: np.minimum,
}


def lower(graph: OnnxGraph, inputs: list[tuple[str, tuple[int, ...]]], outputs: list[str]) -> bytes:
    """The tape of a graph.

    Args:
        graph: the graph.
        inputs: names and shapes, with the batch axis of 1, in the order in which the engine takes them.
        outputs: names in the order in which it gives them.

    Raises:
        NotLowered: an operator, or a form of it, has no loop.
    """
    return _Lowering(graph, inputs, outputs).tape.packed()


class _Lowering:
    """Lowers one graph; each method of an operator takes its node and returns its results."""

    def __init__(self, graph: OnnxGraph, inputs: list[tuple[str, tuple[int, ...]]], outputs: list[str]) -> None:
        self.tape = Tape()
        self.ops: list[tuple[TapeOp, list[int], set[int]]] = []
        """Records, and which of their numbers are offsets of constants."""
        self.tensors: dict[str, Tensor] = dict(graph.constants)
        if sum(array.size for array in graph.constants.values()) > CONSTANT_MOST:
            raise NotLowered(f"more than {CONSTANT_MOST} weights")
        for name, shape in inputs:
            self.tensors[name] = self.new(shape)
        for node in with_silu(graph):
            self.node(node)
        for name, _ in inputs:
            self.tape.inputs.append(self.extent(self.tensors[name]))
        for name in outputs:
            if name not in self.tensors:
                raise NotLowered(f"output {name!r} is never computed")
            self.tape.outputs.append(self.extent(self.tensors[name]))
        shift = self.tape.constant_floats
        for kind, numbers, of_constants in self.ops:
            fixed = [number + self.shift(kind, i, of_constants, shift) for i, number in enumerate(numbers)]
            self.tape.records += [kind, len(fixed), *fixed]
        self.tape.inputs = [(at + shift, count) for at, count in self.tape.inputs]
        self.tape.outputs = [(at + shift, count) for at, count in self.tape.outputs]

    @staticmethod
    def shift(kind: TapeOp, i: int, of_constants: set[int], shift: int) -> int:
        """Offset of number `i` of a record: values lie behind the constants."""
        places: dict[TapeOp, tuple[int, ...]] = {
            TapeOp.MATRIX: (0, 1),
            TapeOp.UNARY: (1, 2),
            TapeOp.BINARY: (1, 2, 3),
            TapeOp.SCALAR: (1, 2, 3),
            TapeOp.COPY: (0, 1),
            TapeOp.LAYER_NORM: (0, 1),
            TapeOp.SOFTMAX: (0, 1),
            TapeOp.PRODUCT: (0, 1, 2),
            TapeOp.MEAN: (0, 1),
        }
        at = i != 1 if kind == TapeOp.GATHER else i in places[kind]
        return shift if at and i not in of_constants else 0

    # values

    def new(self, shape: tuple[int, ...]) -> PlacedValues:
        """A tensor in one piece."""
        count = math.prod(shape)
        return PlacedValues((self.tape.value(count) + np.arange(count)).reshape(shape))

    def extent(self, tensor: Tensor) -> tuple[int, int]:
        """Place and floats of a tensor, in one piece among the values."""
        if isinstance(tensor, np.ndarray):
            made = self.new(tensor.shape)
            count = math.prod(tensor.shape)
            self.emit(TapeOp.COPY, [self.tape.constant(tensor), self.at(made), count], {0})
            return self.at(made), count
        return self.dense(tensor), tensor.places.size

    @staticmethod
    def at(tensor: PlacedValues) -> int:
        return int(tensor.places.flat[0])

    def dense(self, tensor: PlacedValues) -> int:
        """Place of a tensor's elements one after the other, copied where they are not."""
        flat = tensor.places.ravel()
        steps = np.flatnonzero(np.diff(flat) != 1) + 1
        if not len(steps):
            return int(flat[0])
        made = self.at(self.new((len(flat),)))
        runs = np.split(flat, steps)
        if len(runs) * 8 <= len(flat):
            to = made
            for run in runs:
                self.emit(TapeOp.COPY, [int(run[0]), to, len(run)])
                to += len(run)
        else:
            self.emit(TapeOp.GATHER, [made, len(flat), *(int(place) for place in flat)])
        return made

    def emit(self, kind: TapeOp, numbers: list[int], of_constants: set[int] | None = None) -> None:
        self.ops.append((kind, numbers, of_constants or set()))

    def operand(self, tensor: Tensor) -> tuple[int, bool]:
        """Place of a tensor in one piece, and whether it is a constant."""
        if isinstance(tensor, np.ndarray):
            return self.tape.constant(tensor), True
        return self.dense(tensor), False

    # nodes

    def node(self, node: GraphNode) -> None:
        found = self.results(node)
        if len(found) < len([name for name in node.outputs if name]):
            raise self.unknown(node, f"{len(node.outputs)} outputs")
        for name, tensor in zip(node.outputs, found, strict=False):
            self.tensors[name] = tensor

    def results(self, node: GraphNode) -> list[Tensor]:
        kind = node.kind
        if kind in _BINARY:
            out = self.tensor(node, 0)
            for i in range(1, len(node.inputs)):
                out = self.binary(_BINARY[kind], out, self.tensor(node, i))
            return [out]
        if kind in _UNARY:
            return [self.unary(node, self.computed(node, 0), _UNARY[kind])]
        method = _METHODS.get(kind)
        if method is None:
            raise NotLowered(f"operator {kind}")
        return method(self, node)

    def tensor(self, node: GraphNode, i: int) -> Tensor:
        name = node.inputs[i] if i < len(node.inputs) else ""
        if name not in self.tensors:
            raise self.unknown(node, f"input {name!r} before it is computed")
        return self.tensors[name]

    def given(self, node: GraphNode, i: int) -> bool:
        return i < len(node.inputs) and node.inputs[i] != ""

    def computed(self, node: GraphNode, i: int) -> PlacedValues:
        found = self.tensor(node, i)
        if isinstance(found, np.ndarray):
            raise self.unknown(node, "a constant input")
        return found

    def fixed(self, node: GraphNode, i: int) -> np.ndarray:
        found = self.tensor(node, i)
        if not isinstance(found, np.ndarray):
            raise self.unknown(node, f"input {i} that is computed")
        return found

    @staticmethod
    def unknown(node: GraphNode, what: str) -> NotLowered:
        return NotLowered(f"operator {node.kind} with {what}")

    def unary(self, node: GraphNode, x: PlacedValues, function: UnaryFunction) -> Tensor:
        if function == UnaryFunction.GELU and node.attributes.get("approximate", "none") != "none":
            raise self.unknown(node, "approximate tanh")
        if function == UnaryFunction.ELU and node.attributes.get("alpha", 1.0) != 1.0:
            raise self.unknown(node, "another alpha than 1")
        out = self.new(x.shape)
        self.emit(TapeOp.UNARY, [function, self.dense(x), self.at(out), out.places.size])
        return out

    def binary(self, function: BinaryFunction, a: Tensor, b: Tensor) -> Tensor:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return _ON_NUMBERS[function](a, b)
        shape = np.broadcast_shapes(a.shape, b.shape)
        if math.prod(b.shape) == 1:
            (at, fixed_a), (scalar, fixed_b) = self.operand(_spread(a, shape)), self.operand(b)
            kind = TapeOp.SCALAR
        else:
            (at, fixed_a), (scalar, fixed_b) = self.operand(_spread(a, shape)), self.operand(_spread(b, shape))
            kind = TapeOp.BINARY
        constants = {i for i, fixed in ((1, fixed_a), (2, fixed_b)) if fixed}
        out = self.new(shape)
        self.emit(kind, [function, at, scalar, self.at(out), out.places.size], constants)
        return out

    def matrix(self, node: GraphNode, x: PlacedValues, weights: np.ndarray, bias: np.ndarray | None) -> Tensor:
        k, n = weights.shape
        if x.shape[-1] != k:
            raise self.unknown(node, f"{x.shape[-1]} inputs for {k} weights")
        out = self.new((*x.shape[:-1], n))
        numbers = [self.dense(x), self.at(out), math.prod(x.shape[:-1]), k, n]
        place = -1 if bias is None else self.tape.constant(np.broadcast_to(bias.reshape(-1), (n,)))
        self.emit(TapeOp.MATRIX, [*numbers, self.tape.constant(paneled(weights)), place], {5, 6})
        return out

    def gemm(self, node: GraphNode) -> list[Tensor]:
        if node.attributes.get("transA", 0):
            raise self.unknown(node, "transA")
        weights = self.fixed(node, 1).astype(np.float32)
        if node.attributes.get("transB", 0):
            weights = weights.T
        bias = self.fixed(node, 2) if self.given(node, 2) else None
        alpha, beta = (node.attributes.get(name, 1.0) for name in ("alpha", "beta"))
        if (alpha, beta) != (1.0, 1.0) or weights.ndim != 2:
            raise self.unknown(node, f"alpha {alpha}, beta {beta}")
        if bias is not None and (bias.ndim > 2 or (bias.ndim == 2 and bias.shape[0] != 1)):
            raise self.unknown(node, f"a bias of shape {bias.shape}")
        return [self.matrix(node, self.computed(node, 0), weights, bias)]

    def mat_mul(self, node: GraphNode) -> list[Tensor]:
        a, b = self.tensor(node, 0), self.tensor(node, 1)
        if isinstance(a, PlacedValues) and isinstance(b, np.ndarray) and b.ndim == 2:
            return [self.matrix(node, a, b.astype(np.float32), None)]
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a.places.ndim < 2 or b.places.ndim < 2:
            raise self.unknown(node, "constants on the left, or vectors")
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        left = PlacedValues(np.broadcast_to(a.places, (*batch, m, k)))
        right = PlacedValues(np.broadcast_to(b.places, (*batch, k, n)))
        out = self.new((*batch, m, n))
        self.emit(TapeOp.PRODUCT, [self.dense(left), self.dense(right), self.at(out), math.prod(batch), m, k, n])
        return [out]

    def layer_norm(self, node: GraphNode) -> list[Tensor]:
        x, scale = self.computed(node, 0), self.fixed(node, 1)
        if int(_number(node, "axis", -1)) not in (-1, x.places.ndim - 1):
            raise self.unknown(node, "another axis than the last")
        bias = self.tape.constant(self.fixed(node, 2)) if self.given(node, 2) else -1
        width = x.shape[-1]
        epsilon = int(np.float32(_number(node, "epsilon", 1e-5)).view(np.int32))
        out = self.new(x.shape)
        numbers = [self.dense(x), self.at(out), x.places.size // width, width, self.tape.constant(scale), bias, epsilon]
        self.emit(TapeOp.LAYER_NORM, numbers)
        return [out]

    def softmax(self, node: GraphNode) -> list[Tensor]:
        x = self.computed(node, 0)
        if int(_number(node, "axis", -1)) not in (-1, x.places.ndim - 1):
            raise self.unknown(node, "another axis than the last")
        out = self.new(x.shape)
        self.emit(TapeOp.SOFTMAX, [self.dense(x), self.at(out), x.places.size // x.shape[-1], x.shape[-1]])
        return [out]

    def mean(self, node: GraphNode) -> list[Tensor]:
        x = self.computed(node, 0)
        axes = self.fixed(node, 1).tolist() if self.given(node, 1) else node.attributes.get("axes")
        if axes not in ([-1], [x.places.ndim - 1]):
            raise self.unknown(node, f"axes {axes}")
        shape = (*x.shape[:-1], 1) if _number(node, "keepdims", 1) else x.shape[:-1]
        out = self.new(shape)
        self.emit(TapeOp.MEAN, [self.dense(x), self.at(out), x.places.size // x.shape[-1], x.shape[-1]])
        return [out]

    def clip(self, node: GraphNode) -> list[Tensor]:
        out = self.tensor(node, 0)
        if self.given(node, 1):
            out = self.binary(BinaryFunction.MAX, out, self.fixed(node, 1))
        return [self.binary(BinaryFunction.MIN, out, self.fixed(node, 2)) if self.given(node, 2) else out]

    # views

    def same(self, node: GraphNode) -> list[Tensor]:
        return [self.tensor(node, 0)]

    def view(self, node: GraphNode, i: int, change: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        """Apply a numpy operation that moves elements."""
        found = self.tensor(node, i)
        return change(found) if isinstance(found, np.ndarray) else PlacedValues(change(found.places))

    def reshape(self, node: GraphNode) -> list[Tensor]:
        before = self.tensor(node, 0).shape
        wanted = [int(length) for length in self.fixed(node, 1)]
        if not _number(node, "allowzero", 0):
            wanted = [before[i] if length == 0 else length for i, length in enumerate(wanted)]
        return [self.view(node, 0, lambda array: array.reshape(wanted))]

    def flatten(self, node: GraphNode) -> list[Tensor]:
        axis = int(_number(node, "axis", 1))
        shape = self.tensor(node, 0).shape
        rows = math.prod(shape[:axis])
        return [self.view(node, 0, lambda array: array.reshape(rows, -1))]

    def transpose(self, node: GraphNode) -> list[Tensor]:
        order = node.attributes.get("perm")
        axes = [int(axis) for axis in order] if isinstance(order, list) else None
        return [self.view(node, 0, lambda array: np.transpose(array, axes))]

    def squeeze(self, node: GraphNode) -> list[Tensor]:
        axes = tuple(int(axis) for axis in self.fixed(node, 1)) if self.given(node, 1) else None
        return [self.view(node, 0, lambda array: np.squeeze(array, axes))]

    def unsqueeze(self, node: GraphNode) -> list[Tensor]:
        axes = tuple(int(axis) for axis in self.fixed(node, 1))
        return [self.view(node, 0, lambda array: np.expand_dims(array, axes))]

    def expand(self, node: GraphNode) -> list[Tensor]:
        wanted = tuple(int(length) for length in self.fixed(node, 1))
        shape = np.broadcast_shapes(self.tensor(node, 0).shape, wanted)
        return [self.view(node, 0, lambda array: np.broadcast_to(array, shape))]

    def tile(self, node: GraphNode) -> list[Tensor]:
        repeats = [int(count) for count in self.fixed(node, 1)]
        return [self.view(node, 0, lambda array: np.tile(array, repeats))]

    def gather(self, node: GraphNode) -> list[Tensor]:
        axis, index = int(_number(node, "axis", 0)), self.fixed(node, 1)
        return [self.view(node, 0, lambda array: np.take(array, index, axis))]

    def slices(self, node: GraphNode) -> list[Tensor]:
        starts, ends = ([int(n) for n in self.fixed(node, i)] for i in (1, 2))
        axes = [int(n) for n in self.fixed(node, 3)] if self.given(node, 3) else list(range(len(starts)))
        steps = [int(n) for n in self.fixed(node, 4)] if self.given(node, 4) else [1] * len(starts)
        if any(step < 1 for step in steps):
            raise self.unknown(node, "a negative step")
        index: list[slice] = [slice(None)] * len(self.tensor(node, 0).shape)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            index[axis] = slice(start, end, step)
        return [self.view(node, 0, lambda array: array[tuple(index)])]

    def split(self, node: GraphNode) -> list[Tensor]:
        axis, length = int(_number(node, "axis", 0)), len(node.outputs)
        width = self.tensor(node, 0).shape[axis]
        even = [-(-width // length)] * (length - 1)
        sizes = [int(n) for n in self.fixed(node, 1)] if self.given(node, 1) else [*even, width - sum(even)]
        ends = np.cumsum(sizes)[:-1]
        found = self.tensor(node, 0)
        if isinstance(found, np.ndarray):
            return list(np.split(found, ends, axis))
        return [PlacedValues(part) for part in np.split(found.places, ends, axis)]

    def concat(self, node: GraphNode) -> list[Tensor]:
        axis = int(_number(node, "axis", 0))
        parts = [self.tensor(node, i) for i in range(len(node.inputs))]
        constant = [part for part in parts if isinstance(part, np.ndarray)]
        if len(constant) == len(parts):
            return [np.concatenate(constant, axis)]
        return [PlacedValues(np.concatenate([self.places_of(part) for part in parts], axis))]

    def pad(self, node: GraphNode) -> list[Tensor]:
        """Elements before and after those of each axis, all of one number."""
        mode = node.attributes.get("mode", "constant")
        counts = [int(n) for n in self.fixed(node, 1)]
        if mode != "constant" or min(counts, default=0) < 0:
            raise self.unknown(node, f"mode {mode} or fewer elements")
        x = self.tensor(node, 0)
        axes = [int(n) for n in self.fixed(node, 3)] if self.given(node, 3) else list(range(len(x.shape)))
        wide = [(0, 0)] * len(x.shape)
        for axis, before, after in zip(axes, counts[: len(axes)], counts[len(axes) :], strict=True):
            wide[axis] = (before, after)
        number = self.fixed(node, 2).astype(np.float32) if self.given(node, 2) else np.zeros((), np.float32)
        if isinstance(x, np.ndarray):
            return [np.pad(x, wide, constant_values=number.item())]
        place = int(self.places_of(number.reshape(1))[0])
        return [PlacedValues(np.pad(x.places, wide, constant_values=place))]

    def places_of(self, tensor: Tensor) -> np.ndarray:
        """Places of a tensor; a constant is copied to the values."""
        if isinstance(tensor, PlacedValues):
            return tensor.places
        at, count = self.extent(tensor)
        return (at + np.arange(count)).reshape(tensor.shape)

    def constant(self, node: GraphNode) -> list[Tensor]:
        value = node.attributes.get("value")
        if not isinstance(value, np.ndarray):
            raise self.unknown(node, "no tensor")
        return [value]


_METHODS: dict[str, Callable[[_Lowering, GraphNode], list[Tensor]]] = {
    "Gemm": _Lowering.gemm,
    "MatMul": _Lowering.mat_mul,
    "LayerNormalization": _Lowering.layer_norm,
    "Softmax": _Lowering.softmax,
    "ReduceMean": _Lowering.mean,
    "Clip": _Lowering.clip,
    "Identity": _Lowering.same,
    "Dropout": _Lowering.same,
    "Reshape": _Lowering.reshape,
    "Flatten": _Lowering.flatten,
    "Transpose": _Lowering.transpose,
    "Squeeze": _Lowering.squeeze,
    "Unsqueeze": _Lowering.unsqueeze,
    "Expand": _Lowering.expand,
    "Gather": _Lowering.gather,
    "Tile": _Lowering.tile,
    "Slice": _Lowering.slices,
    "Split": _Lowering.split,
    "Concat": _Lowering.concat,
    "Pad": _Lowering.pad,
    "Constant": _Lowering.constant,
}


def with_silu(graph: OnnxGraph) -> list[GraphNode]:
    """The nodes, with x * sigmoid(x) as one operator "Silu" where nothing else reads the sigmoid."""
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    readers.update(graph.outputs)
    sigmoids = {
        node.outputs[0]: node.inputs[0]
        for node in graph.nodes
        if node.kind == "Sigmoid" and readers[node.outputs[0]] == 1
    }
    found: list[GraphNode] = []
    for node in graph.nodes:
        if node.kind == "Mul" and len(node.inputs) == 2:
            for x, gate in (node.inputs, node.inputs[::-1]):
                if sigmoids.get(gate) == x:
                    found = [known for known in found if known.outputs != (gate,)]
                    node = GraphNode("Silu", (x,), node.outputs, {})
                    break
        found.append(node)
    return found


def _spread(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor broadcast to a shape."""
    if isinstance(tensor, np.ndarray):
        return np.broadcast_to(tensor, shape)
    return PlacedValues(np.broadcast_to(tensor.places, shape))


def _number(node: GraphNode, name: str, default: float) -> float:
    value = node.attributes.get(name, default)
    if not isinstance(value, int | float):
        raise NotLowered(f"operator {node.kind} with attribute {name} that is no number")
    return float(value)
