"""The C++ engine against onnxruntime and numpy, its tape's checks, and the build."""

from __future__ import annotations

import ctypes
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.native import build
from robotrl.deploy.native.lowering import NotLowered, lower
from robotrl.deploy.native.onnx_graph import read_graph
from robotrl.deploy.native.session import NativeSession, engine_library, native_session
from robotrl.deploy.native.tape import paneled
from robotrl.deploy.runtime import Controller
from robotrl.deploy.session import GraphSession
from robotrl.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.made("flow", tmp_path_factory.getbasetemp())[0]


def test_a_bundle_computes_as_on_onnxruntime(flow: Path) -> None:
    native, usual = Controller.load(flow, runtime="native"), Controller.load(flow)
    assert (native.engine, usual.engine) == ("native", "onnxruntime")
    assert native.golden_error < 1e-6
    rng = np.random.default_rng(0)
    for decision in range(50):
        obs = {"state": rng.normal(size=4).astype(np.float32), "touch": rng.normal(size=1).astype(np.float32)}
        found = native.infer(obs, decision)
        assert np.abs(found - usual.infer(obs, decision)).max() < 2e-6
        assert found.tobytes() == native.infer(obs, decision).tobytes()


X = np.float32([[-3.0, -0.5, 0.0, 0.25, 1.0, 30.0]])


def computed(nodes: list[onnx.NodeProto], x: np.ndarray = X, **constants: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The result of onnxruntime and of the engine for a graph from "x" to "y"."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    text = model.SerializeToString()
    tape = lower(read_graph(text, "g"), [("x", x.shape)], ["y"])
    wanted = ort.InferenceSession(text, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    library, why = engine_library(), ctypes.create_string_buffer(100)
    engine = library.engine_open(tape, len(tape), why, 100)
    assert engine, why.value
    found = np.zeros(wanted.shape, np.float32)
    assert library.engine_bind(engine, 0, 0, x.ctypes.data, x.size) == 0
    assert library.engine_bind(engine, 1, 0, found.ctypes.data, found.size) == 0
    assert library.engine_run(engine) > 0
    library.engine_close(engine)
    return wanted, found


def one(kind: str, *inputs: str, **attributes: object) -> list[onnx.NodeProto]:
    return [helper.make_node(kind, ["x", *inputs], ["y"], **attributes)]


RNG = np.random.default_rng(3)
WIDE = RNG.normal(size=(6, 150)).astype(np.float32)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        *(
            (one(kind), {})
            for kind in ("Sigmoid", "Tanh", "Relu", "Exp", "Neg", "Abs", "Erf", "Gelu", "Softplus", "Elu")
        ),
        *((one(kind), {}) for kind in ("Sin", "Cos", "Reciprocal", "Softmax", "Identity")),
        *((one(kind, "b"), {"b": WIDE[2, :6]}) for kind in ("Add", "Sub", "Mul", "Div", "Max")),
        (one("Min", "b"), {"b": np.float32(0.5)}),
        (one("MatMul", "b"), {"b": WIDE}),
        (one("Gemm", "b", "c", transB=1), {"b": WIDE[:, :6].T.copy(), "c": WIDE[0, :6]}),
        (one("LayerNormalization", "b", "c", epsilon=1e-3), {"b": WIDE[0, :6], "c": WIDE[1, :6]}),
        (one("Clip", "b", "c"), {"b": np.float32(-1), "c": np.float32(2)}),
        (one("ReduceMean", "b"), {"b": np.int64([-1])}),
        (one("Slice", "b", "c", "d", "e"), {"b": [1], "c": [100], "d": [1], "e": [2]}),
        (one("Gather", "b", axis=1), {"b": np.int64([5, 0, 0, 3])}),
        (one("Tile", "b"), {"b": np.int64([3, 2])}),
        (one("Expand", "b"), {"b": np.int64([4, 6])}),
        (one("Concat", "b", axis=1), {"b": WIDE[:1, :3]}),
        (one("Pad", "b"), {"b": np.int64([0, 2, 1, 3])}),
        (one("Pad", "b", "c", "d"), {"b": np.int64([1, 0]), "c": np.float32(0.25), "d": np.int64([1])}),
        (
            [
                helper.make_node("Reshape", ["x", "two"], ["r"]),
                helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
                helper.make_node("MatMul", ["t", "r"], ["m"]),
                helper.make_node("Mul", ["m", "half"], ["y"]),
            ],
            {"two": np.int64([2, 3]), "half": np.float32(0.5)},
        ),
        (
            [
                helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
                helper.make_node("Sigmoid", ["a"], ["s"]),
                helper.make_node("Mul", ["s", "a"], ["g"]),
                helper.make_node("Sub", ["g", "b"], ["y"]),
            ],
            {},
        ),
    ],
)
def test_each_operator_is_onnxruntimes(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> None:
    wanted, found = computed(nodes, **constants)
    assert found == pytest.approx(wanted, rel=3e-6, abs=3e-7, nan_ok=True)


def test_functions_keep_nan_and_are_right_far_out() -> None:
    x = np.concatenate([np.linspace(-100, 100, 20001), [np.nan, 1e-30, -0.0, 3e38, -3e38]]).astype(np.float32)[None]
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        gate = 1 / (1 + np.exp(-wide))
    silu = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    for nodes, wanted in ((one("Sigmoid"), gate), (one("Tanh"), np.tanh(wide)), (silu, wide * gate)):
        found = computed(nodes, x)[1]
        known = ~np.isnan(wide)
        error = np.abs(found[known] - wanted[known]) / np.maximum(np.abs(wanted[known]), 1e-6)
        assert error.max() < 1e-6, nodes[-1].op_type
        assert np.isnan(found[~known]).all()


def test_panels_hold_all_weights() -> None:
    weights = np.arange(3 * 81, dtype=np.float32).reshape(3, 81)
    flat = paneled(weights)
    # one panel of 64, two of 16, the last one filled with zeros
    assert len(flat) == 3 * (64 + 16 + 16)
    assert flat[:64].tolist() == weights[0, :64].tolist() and flat[64:128].tolist() == weights[1, :64].tolist()
    assert flat[192:208].tolist() == weights[0, 64:80].tolist()
    assert flat[240:256].tolist() == [weights[0, 80], *[0.0] * 15]


def test_an_operator_without_a_loop_is_left_to_onnxruntime(
    flow: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = graphs.fails_beyond(Path(shutil.copytree(flow, tmp_path / "bundle")))
    session = native_session(open_bundle(made))
    assert session is not None and session.engine == "onnxruntime, native noise"
    assert "onnxruntime computes" in caplog.text and "lacks operator" in caplog.text
    with pytest.raises(NotLowered, match="operator"):
        NativeSession(open_bundle(made))
    assert Controller.load(made, runtime="native").engine == "onnxruntime, native noise"


def test_a_damaged_tape_is_refused(flow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(flow)
    manifest = bundle.manifest
    inputs = [(port.name, (1, *port.shape)) for port in manifest.io.inputs]
    tape = lower(read_graph(bundle.graph, "g"), inputs, [port.name for port in manifest.io.outputs])

    def refused(changed: bytes) -> str:
        monkeypatch.setattr("robotrl.deploy.native.session.lower", lambda *_: changed)
        with pytest.raises(DataError) as caught:
            NativeSession(bundle)
        return str(caught.value)

    assert "damaged" in refused(tape[:-1] + bytes([tape[-1] ^ 1]))
    assert "no tape" in refused(tape[:20])
    rng = np.random.default_rng(0)
    records_at = 16 + 40 + 16 * (len(inputs) + 2)
    words = struct.unpack_from("<5q", tape, 16)[2]
    outcomes = set()
    for _ in range(200):
        # any number of the records replaced: refused, or an engine that stays within its memory
        changed = bytearray(tape)
        struct.pack_into("<i", changed, records_at + 4 * int(rng.integers(words)), int(rng.integers(-(2**31), 2**31)))
        struct.pack_into("<I", changed, 8, zlib.crc32(changed[16:]))
        monkeypatch.setattr("robotrl.deploy.native.session.lower", lambda *_, found=bytes(changed): found)
        try:
            NativeSession(bundle).run()
            outcomes.add("ran")
        except DataError as error:
            outcomes.add(str(error).partition("refuses it: ")[2])
    assert any("leaves the memory" in outcome for outcome in outcomes)


def test_the_golden_ticks_are_checked_on_the_engine(flow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: NativeSession) -> None:
        self.timed_run()
        self.outputs["actions"] += 0.01

    monkeypatch.setattr(NativeSession, "run", wrong)
    with pytest.raises(DataError, match="this machine does not compute what was exported"):
        Controller.load(flow, runtime="native")


def test_a_missing_or_failing_compiler_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"'no-such-compiler' was not found: expected g\+\+ .*\(apt install g\+\+\)"):
        build.native_runtime()
    failing = tmp_path / "g++"
    failing.write_text("#!/bin/sh\necho 'x.cpp:1: error: too old' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=r"g\+\+ cannot build .*\.cpp: x\.cpp:1: error: too old"):
        build.native_runtime()
    assert list((tmp_path / "cache" / "robotrl").iterdir()) == []


def test_a_computer_without_a_compiler_takes_a_build_of_this_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = build.native_runtime()
    copied = Path(shutil.copytree(built.engine.parent, tmp_path / "native"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("ROBOTRL_NATIVE", str(copied))
    assert build.native_runtime().servo == copied / built.servo.name
    (copied / "sources.sha256").write_text("of another version")
    with pytest.raises(ConfigError, match=r"ROBOTRL_NATIVE is .*: built by another version of robotrl"):
        build.native_runtime()
    monkeypatch.setenv("ROBOTRL_NATIVE", str(tmp_path))
    with pytest.raises(ConfigError, match="expected a folder that robotrl build native made"):
        build.native_runtime()


def test_a_graph_of_the_session_is_checked_like_onnxruntimes(flow: Path) -> None:
    bundle = open_bundle(flow)
    native, usual = NativeSession(bundle), GraphSession(bundle.graph, bundle.manifest)
    assert {name: array.shape for name, array in native.inputs.items()} == {
        name: array.shape for name, array in usual.inputs.items()
    }
