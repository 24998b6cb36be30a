"""Security scan of an ONNX file before it is executed, without the onnx package.

An ONNX file can refer to other files (external data), use operators of other domains and contain sparse tensors; each
has been used in attacks. The scan walks the protobuf fields of the model and refuses these, and anything that does not
parse.
"""

from __future__ import annotations

from typing import NamedTuple

from robotrl.deploy.bundle.protobuf import ProtobufReader
from robotrl.errors import DataError, short

MAX_DEPTH = 16
ENDLESS = ("Loop", "Scan", "SequenceMap")
"""Operators that repeat a graph an unknown number of times; an exported policy has none."""
STANDARD_DOMAINS = ("", "ai.onnx")

_ORT_FORMAT_MARK = b"ORTM"


class Facts(NamedTuple):
    """Results of the scan."""

    ir_version: int
    opset: int
    nodes: int
    weights_bytes: int
    """Bytes of tensor data held in the file."""


def scan(data: bytes, name: str) -> Facts:
    """Check that a model is self-contained and standard.

    Args:
        data: the file's content.
        name: its name, for errors.

    Raises:
        DataError: not a well-formed ONNX protobuf, or it holds external data, sparse tensors, functions, training
            graphs, operators outside the standard domain, or operators that repeat a graph.
    """
    if data[4:8] == _ORT_FORMAT_MARK:
        raise DataError(f"{name}: is in onnxruntime's own format: expected ONNX")
    walker = _Walker(name)
    walker.model(memoryview(data))
    if walker.ir_version < 1 or walker.opset < 1 or walker.graphs != 1:
        raise DataError(
            f"{name}: not an ONNX model (IR version {walker.ir_version}, opset {walker.opset}, "
            f"{walker.graphs} graphs): the file is damaged or of another kind"
        )
    return Facts(walker.ir_version, walker.opset, walker.nodes, walker.weights_bytes)


class _Walker(ProtobufReader):
    """Walks the fields of a model, counts them, and raises on refused contents."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ir_version = 0
        self.opset = 0
        self.graphs = 0
        self.nodes = 0
        self.weights_bytes = 0

    def model(self, data: memoryview) -> None:
        for field in self.fields(data):
            match field.number:
                case 1:
                    self.ir_version = self.varint(field, "ir_version")
                case 7:
                    self.graphs += 1
                    self.graph(self.message(field, "graph"), 0)
                case 8:
                    self.opset_import(self.message(field, "opset_import"))
                case 20:
                    raise self.refused("a training graph", "export for inference")
                case 25:
                    raise self.refused("a model-local function", "a graph of standard operators")
                case _:
                    pass

    def opset_import(self, data: memoryview) -> None:
        domain, version = "", 0
        for field in self.fields(data):
            if field.number == 1:
                domain = self.text(field, "domain")
            elif field.number == 2:
                version = self.varint(field, "version")
        self.domain(domain)
        self.opset = max(self.opset, version)

    def graph(self, data: memoryview, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise DataError(f"{self.name}: graphs nested deeper than {MAX_DEPTH} levels")
        for field in self.fields(data):
            match field.number:
                case 1:
                    self.node(self.message(field, "node"), depth)
                case 5:
                    self.tensor(self.message(field, "initializer"))
                case 15:
                    raise self.refused("a sparse initializer", "dense tensors")
                case _:
                    pass

    def node(self, data: memoryview, depth: int) -> None:
        self.nodes += 1
        for field in self.fields(data):
            if field.number == 7:
                self.domain(self.text(field, "domain"))
            elif field.number == 4:
                kind = self.text(field, "op_type")
                if kind in ENDLESS:
                    raise self.refused(f"the operator {kind}, which may never end", "operators that run once")
            elif field.number == 5:
                self.attribute(self.message(field, "attribute"), depth)

    def attribute(self, data: memoryview, depth: int) -> None:
        for field in self.fields(data):
            match field.number:
                case 5 | 10:
                    self.tensor(self.message(field, "tensor"))
                case 6 | 11:
                    self.graph(self.message(field, "graph"), depth + 1)
                case 22 | 23:
                    raise self.refused("a sparse tensor", "dense tensors")
                case _:
                    pass

    def tensor(self, data: memoryview) -> None:
        for field in self.fields(data):
            if field.number == 13 or (field.number == 14 and self.varint(field, "data_location") != 0):
                raise self.refused("external data", "all weights inside the file")
            if field.number == 9:
                self.weights_bytes += len(self.message(field, "raw_data"))

    def domain(self, domain: str) -> None:
        if domain not in STANDARD_DOMAINS:
            raise self.refused(f"operators of the domain {short(repr(domain))}", "the standard domain only")

    def refused(self, what: str, expected: str) -> DataError:
        return DataError(f"{self.name}: holds {what}: expected {expected}")
