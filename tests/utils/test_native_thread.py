"""A process that gives up on a native call ends with its exit code, whenever that call returns."""

from __future__ import annotations

import subprocess
import sys

INFERS = """
import sys, time
import numpy as np, onnxruntime as ort
from onnx import TensorProto, helper
from robotrl.utils.native_thread import NativeThread, exit_past_native_threads

size = 200
a, b = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in "ab")
graph = helper.make_graph([helper.make_node("MatMul", ["a", "a"], ["b"])], "g", [a], [b])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

def infer():
    while True:  # one of these inferences returns while Python shuts down
        session.run(None, {"a": np.ones((size, size), np.float32)})

NativeThread(infer, "infer").start()
time.sleep(0.2)
print("given up", end="")
"""


def ended(lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)


def test_an_inference_that_returns_at_shutdown_does_not_abort_the_process() -> None:
    done = ended(INFERS + "exit_past_native_threads(2)")
    assert (done.returncode, done.stdout, done.stderr) == (2, "given up", "")


def test_without_such_a_thread_nothing_ends() -> None:
    lines = "from robotrl.utils.native_thread import exit_past_native_threads\nexit_past_native_threads(3)\nprint(1)"
    done = ended(lines)
    assert (done.returncode, done.stdout) == (0, "1\n")
