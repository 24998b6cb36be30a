"""Graphs that go wrong in the place of a bundle's own, and bundles that are sealed again after an edit."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.describe import entry
from robotrl.deploy.bundle.manifest import MANIFEST_FILE


def reseal(bundle: Path, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """Make sizes, hashes and identity right again, as a careless tool would; nothing is checked."""
    path = bundle / MANIFEST_FILE
    data = json.loads(path.read_text())
    for name in data["files"]:
        made = entry((bundle / name).read_bytes())
        data["files"][name] = {"bytes": made.bytes, "sha256": made.sha256}
    if change is not None:
        change(data)
    data.pop("bundle_id", None)
    data["bundle_id"] = hashlib.sha256(strict.canonical(data)).hexdigest()
    path.write_text(json.dumps(data))
    return bundle


def with_nodes(bundle: Path, nodes: Callable[[str], list[onnx.NodeProto]], **constants: np.ndarray) -> Path:
    """Let a bundle's graph add "zero", a number that `nodes` compute from the first observation, to its actions."""
    model = onnx.load(str(bundle / "policy.onnx"))
    graph = model.graph
    out, observation = graph.output[0].name, graph.input[0].name
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == out:
                    names[i] = "before"
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    graph.node.extend([*nodes(observation), helper.make_node("Add", ["before", "zero"], [out])])
    (bundle / "policy.onnx").write_bytes(model.SerializeToString())
    return reseal(bundle)


def _first_number(observation: str) -> list[onnx.NodeProto]:
    """The first element of the observation beyond 100, as a whole number `n`; 0 for what a policy usually sees."""
    return [
        helper.make_node("Flatten", [observation], ["flat"]),
        helper.make_node("Gather", ["flat", "first"], ["one"], axis=1),
        helper.make_node("Reshape", ["one", "scalar"], ["value"]),
        helper.make_node("Sub", ["value", "hundred"], ["beyond"]),
        helper.make_node("Relu", ["beyond"], ["size"]),
        helper.make_node("Cast", ["size"], ["n"], to=TensorProto.INT64),
    ]


_CONSTANTS = {
    "first": np.zeros(1, np.int64),
    "scalar": np.ones(1, np.int64),
    "hundred": np.float32([100.0]),
}


def fails_beyond(bundle: Path) -> Path:
    """A graph that cannot be computed where the first element of the observation is above 102."""
    return with_nodes(
        bundle,
        lambda observation: [
            *_first_number(observation),
            helper.make_node("Gather", ["table", "n"], ["looked_up"]),
            helper.make_node("ReduceSum", ["looked_up"], ["zero"], keepdims=0),
        ],
        table=np.zeros(2, np.float32),
        **_CONSTANTS,
    )


def grows(bundle: Path, power: int, chain: int = 1, least: int = 0) -> Path:
    """A graph that multiplies square matrices whose side is n to a power, so many times one after the other.

    n is at least `least`.
    """

    def nodes(observation: str) -> list[onnx.NodeProto]:
        made = [*_first_number(observation), helper.make_node("Max", ["n", "least"], ["n0"])]
        made += [helper.make_node("Mul", [f"n{i}", "n0"], [f"n{i + 1}"]) for i in range(power - 1)]
        side = f"n{power - 1}"
        made += [
            helper.make_node("Concat", [side, side], ["sides"], axis=0),
            helper.make_node("Expand", ["nothing", "sides"], ["m0"]),
        ]
        made += [helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(chain)]
        return [*made, helper.make_node("ReduceSum", [f"m{chain}"], ["zero"], keepdims=0)]

    return with_nodes(bundle, nodes, nothing=np.zeros((1, 1), np.float32), least=np.array([least]), **_CONSTANTS)


def chain_for(seconds: float, side: int) -> int:
    """Number of products of square matrices that take so long here, one after the other, on one thread."""
    product = helper.make_graph(
        [helper.make_node("MatMul", ["m", "m"], ["out"])],
        "product",
        [helper.make_tensor_value_info("m", TensorProto.FLOAT, [side, side])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [side, side])],
    )
    model = helper.make_model(product, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    taken, matrix = [], {"m": np.zeros((side, side), np.float32)}
    for _ in range(20):
        begun = time.perf_counter()
        session.run(None, matrix)
        taken.append(time.perf_counter() - begun)
    # the fastest: a busy core makes inference slower still
    return math.ceil(seconds / min(taken))


def endless(bundle: Path) -> Path:
    """A graph with a loop of 2^62 turns."""

    def nodes(observation: str) -> list[onnx.NodeProto]:
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["going"], ["goes_on"]),
                helper.make_node("Add", ["carried", "carried"], ["next"]),
            ],
            "body",
            [
                helper.make_tensor_value_info("turn", TensorProto.INT64, []),
                helper.make_tensor_value_info("going", TensorProto.BOOL, []),
                helper.make_tensor_value_info("carried", TensorProto.FLOAT, []),
            ],
            [
                helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("next", TensorProto.FLOAT, []),
            ],
        )
        del observation
        return [helper.make_node("Loop", ["turns", "yes", "start"], ["zero"], body=body)]

    return with_nodes(bundle, nodes, turns=np.array(2**62), yes=np.array(True), start=np.array(0.0, np.float32))


def huge_constant(bundle: Path) -> Path:
    """A graph that makes a constant of 4 TB, as soon as it is loaded."""

    def nodes(observation: str) -> list[onnx.NodeProto]:
        del observation
        return [
            helper.make_node("ConstantOfShape", ["sides"], ["huge"]),
            helper.make_node("ReduceSum", ["huge"], ["zero"], keepdims=0),
        ]

    return with_nodes(bundle, nodes, sides=np.array([10**6, 10**6]))
