"""The scan of ONNX files, against the onnx package, which is not needed at run time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle.onnx_scan import scan
from robotrl.errors import DataError


def model(**changes: Any) -> onnx.ModelProto:
    """y = x + w, with room for something forbidden."""
    weights = numpy_helper.from_array(np.ones(3, np.float32), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"], domain=changes.get("domain", ""))
    graph = helper.make_graph(
        [node, *changes.get("nodes", [])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [changes.get("weights", weights)],
        sparse_initializer=changes.get("sparse"),
    )
    opsets = [helper.make_opsetid("", 20), *changes.get("opsets", [])]
    return helper.make_model(graph, opset_imports=opsets, functions=changes.get("functions", []), ir_version=10)


def external() -> TensorProto:
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    onnx.external_data_helper.set_external_data(tensor, "../../etc/passwd")
    return tensor


def marked_external() -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    return tensor


def sparse() -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.zeros(1, np.int64), "i"), [3])


def nested(inner: onnx.NodeProto) -> onnx.NodeProto:
    """`inner` two levels down, in the branch of an If inside the branch of an If."""
    branch = helper.make_graph([inner], "b", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])])
    outer = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    again = helper.make_graph([outer], "b2", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])])
    return helper.make_node("If", ["c"], ["z"], then_branch=again, else_branch=again)


def function() -> onnx.FunctionProto:
    node = helper.make_node("Relu", ["a"], ["b"])
    return helper.make_function("", "F", ["a"], ["b"], [node], [helper.make_opsetid("", 20)])


FORBIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "external data": ({"weights": external()}, "external data"),
    "marked external": ({"weights": marked_external()}, "external data"),
    "sparse initializer": ({"sparse": [sparse()]}, "a sparse initializer"),
    "custom domain": ({"domain": "com.evil"}, "the domain 'com.evil'"),
    "imported domain": ({"opsets": [helper.make_opsetid("com.evil", 1)]}, "the domain 'com.evil'"),
    "local function": ({"functions": [function()]}, "a model-local function"),
    "external in attribute": ({"nodes": [helper.make_node("Constant", [], ["k"], value=external())]}, "external data"),
    "sparse in attribute": (
        {"nodes": [helper.make_node("Constant", [], ["k"], sparse_value=sparse())]},
        "a sparse tensor",
    ),
    "nested external": (
        {"nodes": [nested(helper.make_node("Constant", [], ["z"], value=external()))]},
        "external data",
    ),
    "nested domain": ({"nodes": [nested(helper.make_node("Op", [], ["z"], domain="x"))]}, "the domain 'x'"),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_what_is_forbidden_is_found(kind: str) -> None:
    changes, says = FORBIDDEN[kind]
    with pytest.raises(DataError, match=says):
        scan(model(**changes).SerializeToString(), "policy.onnx")


def test_facts_agree_with_the_onnx_package(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = kit.made("flow", tmp_path_factory.getbasetemp())[0] / "policy.onnx"
    for proto in (onnx.load(path), model()):
        facts = scan(proto.SerializeToString(), "policy.onnx")
        assert facts.ir_version == proto.ir_version
        assert facts.opset == max(o.version for o in proto.opset_import)
        assert facts.nodes == len(proto.graph.node)
        raw = sum(len(t.raw_data) for t in proto.graph.initializer)
        constants = [a.t for n in proto.graph.node for a in n.attribute if a.HasField("t")]
        assert facts.weights_bytes == raw + sum(len(t.raw_data) for t in constants)


def test_other_formats_are_refused() -> None:
    with pytest.raises(DataError, match="onnxruntime's own format"):
        scan(b"\x00\x00\x00\x00ORTM" + bytes(50), "policy.onnx")
    with pytest.raises(DataError, match="not an ONNX model"):
        scan(b"", "policy.onnx")


def test_deep_nesting_ends_in_an_error() -> None:
    inner = b""
    for _ in range(2000):  # graph { node { attribute { g { ...
        for tag in (6 << 3 | 2, 5 << 3 | 2, 1 << 3 | 2):
            inner = bytes([tag]) + _size(len(inner)) + inner
    with pytest.raises(DataError, match="nested deeper"):
        scan(bytes([7 << 3 | 2]) + _size(len(inner)) + inner, "policy.onnx")


def _size(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_noise_never_does_worse_than_an_error(data: bytes) -> None:
    try:
        scan(data, "policy.onnx")
    except DataError:
        return
    # What the scan accepts, the real parser accepts.
    onnx.ModelProto().ParseFromString(data)


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(sorted(FORBIDDEN)), data=st.data())
def test_damage_does_not_hide_what_is_forbidden(kind: str, data: st.DataObject) -> None:
    """After a changed byte either the scan refuses, or the real parser no longer sees the forbidden thing."""
    whole = model(**FORBIDDEN[kind][0]).SerializeToString()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    try:
        scan(damaged, "policy.onnx")
    except DataError:
        return
    parsed = onnx.ModelProto()
    try:
        parsed.ParseFromString(damaged)
    except DecodeError:
        return
    assert not _forbidden(parsed)


def _forbidden(proto: onnx.ModelProto) -> bool:
    def tensor(t: TensorProto) -> bool:
        return t.data_location == TensorProto.EXTERNAL or len(t.external_data) > 0

    def graph(g: onnx.GraphProto) -> bool:
        if g.sparse_initializer or any(tensor(t) for t in g.initializer):
            return True
        for node in g.node:
            if node.domain not in ("", "ai.onnx"):
                return True
            for a in node.attribute:
                if a.HasField("sparse_tensor") or a.sparse_tensors or (a.HasField("t") and tensor(a.t)):
                    return True
                if any(tensor(t) for t in a.tensors) or any(graph(s) for s in a.graphs) or graph(a.g):
                    return True
        return False

    domains = any(o.domain not in ("", "ai.onnx") for o in proto.opset_import)
    return domains or len(proto.functions) > 0 or graph(proto.graph)


def test_a_real_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = (Path(kit.made("flow", tmp_path_factory.getbasetemp())[0]) / "policy.onnx").read_bytes()
    refused = 0
    for at in range(0, len(whole), 397):
        try:
            scan(whole[:at], "policy.onnx")
        except DataError:
            refused += 1
    # A cut can fall exactly between two top-level fields; the size and hash in the manifest catch that.
    assert refused >= len(range(0, len(whole), 397)) - 2
