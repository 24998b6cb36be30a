"""An ONNX graph as nodes and tensors, read without the onnx package.

Reads what a scanned file (`robotrl.deploy.bundle.onnx_scan`) may hold: dense tensors of float32 and int64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from robotrl.deploy.bundle.protobuf import ProtobufField, ProtobufReader
from robotrl.errors import DataError

Attribute = float | int | str | list[int] | list[float] | np.ndarray
_FLOAT, _INT64 = 1, 7
_DTYPES = {_FLOAT: np.dtype("<f4"), _INT64: np.dtype("<i8")}


class GraphNode(NamedTuple):
    """One operator."""

    kind: str
    inputs: tuple[str, ...]
    """Names of tensors; "" for an optional one that is absent."""
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]


class OnnxGraph(NamedTuple):
    """A graph, with its operators in the order in which they can be computed."""

    nodes: tuple[GraphNode, ...]
    constants: dict[str, np.ndarray]
    inputs: dict[str, tuple[int, ...]]
    """Shapes by name; an axis without a fixed length is 0."""
    outputs: tuple[str, ...]


def joined(first: OnnxGraph, second: OnnxGraph, output: str, into: str) -> OnnxGraph:
    """One graph that computes two, where an output of the first is an input of the second.

    Their other inputs are shared by name.

    Args:
        first: the graph that is computed first.
        second: the other one, whose names stay, but for that input.
        output: name of the first one's output, which becomes one of the whole.
        into: name of the second one's input.
    """

    def of_first(name: str) -> str:
        return name if name in first.inputs or name in ("", output) else f"first/{name}"

    def of_second(name: str) -> str:
        return output if name == into else name

    nodes = [
        *(
            node._replace(inputs=tuple(map(of_first, node.inputs)), outputs=tuple(map(of_first, node.outputs)))
            for node in first.nodes
        ),
        *(node._replace(inputs=tuple(map(of_second, node.inputs))) for node in second.nodes),
    ]
    constants = {of_first(name): array for name, array in first.constants.items()} | second.constants
    return OnnxGraph(tuple(nodes), constants, second.inputs | first.inputs, (*second.outputs, output))


def read_graph(data: bytes, name: str) -> OnnxGraph:
    """Read the graph of a model.

    Args:
        data: the file's content.
        name: its name, for errors.

    Raises:
        DataError: not readable, or a tensor is of another type.
    """
    reader = _GraphReader(name)
    found = [reader.graph(field.data) for field in reader.fields(memoryview(data)) if field.number == 7]
    if len(found) != 1:
        raise reader.damaged(f"it holds {len(found)} graphs")
    return found[0]


class _GraphReader(ProtobufReader):
    """Reads the messages of a model; field numbers are those of onnx.proto."""

    def graph(self, data: memoryview) -> OnnxGraph:
        nodes: list[GraphNode] = []
        constants: dict[str, np.ndarray] = {}
        inputs: dict[str, tuple[int, ...]] = {}
        outputs: list[str] = []
        for field in self.fields(data):
            match field.number:
                case 1:
                    nodes.append(self.node(self.message(field, "node")))
                case 5:
                    label, array = self.tensor(self.message(field, "initializer"))
                    constants[label] = array
                case 11:
                    label, shape = self.value(self.message(field, "input"))
                    inputs[label] = shape
                case 12:
                    outputs.append(self.value(self.message(field, "output"))[0])
                case _:
                    pass
        return OnnxGraph(tuple(nodes), constants, inputs, tuple(outputs))

    def node(self, data: memoryview) -> GraphNode:
        inputs: list[str] = []
        outputs: list[str] = []
        kind, attributes = "", dict[str, Attribute]()
        for field in self.fields(data):
            match field.number:
                case 1:
                    inputs.append(self.text(field, "input"))
                case 2:
                    outputs.append(self.text(field, "output"))
                case 4:
                    kind = self.text(field, "op_type")
                case 5:
                    label, value = self.attribute(self.message(field, "attribute"))
                    if value is not None:
                        attributes[label] = value
                case _:
                    pass
        return GraphNode(kind, tuple(inputs), tuple(outputs), attributes)

    def attribute(self, data: memoryview) -> tuple[str, Attribute | None]:
        label, value = "", None
        numbers: list[int] = []
        floats: list[float] = []
        for field in self.fields(data):
            match field.number:
                case 1:
                    label = self.text(field, "name")
                case 2:
                    value = self.single(field, "f")
                case 3:
                    value = self.whole(field, "i")
                case 4:
                    value = self.text(field, "s")
                case 5:
                    value = self.tensor(self.message(field, "t"))[1]
                case 7:
                    floats += self.floats(field)
                case 8:
                    numbers += self.wholes(field, "ints")
                case _:
                    pass
        return label, numbers or floats or value

    def floats(self, field: ProtobufField) -> list[float]:
        """Values of a repeated field of floats, packed or not."""
        found: list[float] = np.frombuffer(field.data, "<f4").tolist()
        return found

    def value(self, data: memoryview) -> tuple[str, tuple[int, ...]]:
        """Name and shape of a graph's input or output."""
        label, shape = "", tuple[int, ...]()
        for field in self.fields(data):
            if field.number == 1:
                label = self.text(field, "name")
            elif field.number == 2:
                for kind in self.fields(self.message(field, "type")):
                    if kind.number == 1:
                        shape = self.shape(self.message(kind, "tensor_type"))
        return label, shape

    def shape(self, data: memoryview) -> tuple[int, ...]:
        lengths: list[int] = []
        for field in self.fields(data):
            if field.number != 2:
                continue
            for axis in self.fields(self.message(field, "shape")):
                length = 0
                for part in self.fields(self.message(axis, "dim")):
                    if part.number == 1:
                        length = self.whole(part, "dim_value")
                lengths.append(length)
        return tuple(lengths)

    def tensor(self, data: memoryview) -> tuple[str, np.ndarray]:
        label, kind = "", 0
        shape: list[int] = []
        raw: bytes | None = None
        floats: list[float] = []
        numbers: list[int] = []
        for field in self.fields(data):
            match field.number:
                case 1:
                    shape += self.wholes(field, "dims")
                case 2:
                    kind = self.varint(field, "data_type")
                case 4:
                    floats += self.floats(field)
                case 7:
                    numbers += self.wholes(field, "int64_data")
                case 8:
                    label = self.text(field, "name")
                case 9:
                    raw = bytes(self.message(field, "raw_data"))
                case _:
                    pass
        if kind not in _DTYPES:
            raise DataError(f"{self.name}: tensor {label!r} is of type {kind}: expected float32 or int64")
        dtype, size = _DTYPES[kind], math.prod(shape)
        if raw is not None:
            if len(raw) != size * dtype.itemsize:
                raise self.damaged(f"tensor {label!r} has {len(raw)} bytes for shape {tuple(shape)}")
            return label, np.frombuffer(raw, dtype).reshape(shape)
        values = np.asarray(floats if kind == _FLOAT else numbers, dtype)
        if len(values) != size:
            raise self.damaged(f"tensor {label!r} has {len(values)} numbers for shape {tuple(shape)}")
        return label, values.reshape(shape)
