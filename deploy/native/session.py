"""The policy graph on the C++ engine, in the place of an onnxruntime session."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import numpy as np
import onnxruntime as ort

from robotrl.deploy.buffers import NATIVE_NOISE, GraphBuffers, InferenceError, host_transforms
from robotrl.deploy.bundle.bundle import STEERED_NOISE, Bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.native.build import native_runtime
from robotrl.deploy.native.lowering import NotLowered, lower
from robotrl.deploy.native.noise import NativeNoise
from robotrl.deploy.native.onnx_graph import joined, read_graph
from robotrl.deploy.session import GraphSession, built
from robotrl.errors import DataError
from robotrl.spec import is_picture

LOGGER = logging.getLogger(__name__)
_REASON_BYTES = 256


class NativeSession(GraphBuffers):
    """The policy graph on the C++ engine, with its input and output buffers (see `InferenceSession`).

    The steering graph of a bundle that has one becomes a part of the same program, computed first.

    Args:
        bundle: the verified bundle.
        steer: use the steering graph, where the bundle has one.

    Raises:
        NotLowered: the graph holds an operator that the engine has no loop for.
        ConfigError: the engine cannot be built.
        DataError: the engine refuses the tape.
    """

    engine = "native"
    tape: bytes
    """The program that the engine runs."""

    def __init__(self, bundle: Bundle, steer: bool = True) -> None:
        manifest = bundle.manifest
        super().__init__(manifest)
        chooser = bundle.steer if steer else None
        inputs = [(name, array.shape) for name, array in self.inputs.items()]
        self._file = manifest.graphs.policy
        graph = read_graph(bundle.graph, self._file)
        if chooser is not None:
            self.steered = True
            self.outputs[STEERED_NOISE] = np.zeros_like(self.inputs["noise"])
            graph = joined(read_graph(chooser, str(manifest.graphs.steer)), graph, STEERED_NOISE, "noise")
        self.tape = lower(graph, inputs, list(self.outputs))
        self._library = engine_library()
        why = ctypes.create_string_buffer(_REASON_BYTES)
        self._engine = self._library.engine_open(self.tape, len(self.tape), why, _REASON_BYTES)
        if not self._engine:
            raise DataError(f"{self._file}: the native engine refuses it: {why.value.decode()}")
        for output, arrays in enumerate((self.inputs, self.outputs)):
            for i, array in enumerate(arrays.values()):
                if self._library.engine_bind(self._engine, output, i, array.ctypes.data, array.size) != 0:
                    raise DataError(f"{self._file}: the graph has other sizes than its manifest")

    def __del__(self) -> None:
        engine = self.__dict__.get("_engine")
        if engine:
            self._library.engine_close(engine)

    def run(self) -> None:
        """Compute `outputs` from `inputs`.

        Raises:
            InferenceError: `cancel` was called meanwhile.
        """
        self.timed_run()

    def timed_run(self) -> int:
        """As `run`; returns the nanoseconds that the engine took, without this call's own.

        Raises:
            InferenceError: `cancel` was called meanwhile.
        """
        spent = int(self._library.engine_run(self._engine))
        if spent < 0:
            raise InferenceError(f"{self._file}: the native engine was cancelled")
        return spent

    def noise(self, shape: tuple[int, ...], seed: int) -> NativeNoise:
        """See `GraphBuffers.noise`; its bits are those of the C++ process that infers."""
        return NativeNoise(shape, seed, self._library)

    def cancel(self) -> None:
        """Cancel a `run` of another thread, after its current operator."""
        self._library.engine_cancel(self._engine)


class NativeNoiseSession(GraphSession):
    """The policy graph on onnxruntime, with the noise of the C++ process that infers."""

    engine = NATIVE_NOISE

    def noise(self, shape: tuple[int, ...], seed: int) -> NativeNoise:
        """See `GraphBuffers.noise`."""
        return NativeNoise(shape, seed, engine_library())


def native_session(bundle: Bundle, steer: bool = True) -> NativeSession | NativeNoiseSession | None:
    """The session of a bundle: the engine's, or that of onnxruntime, which is logged.

    None is for bundles whose graph the engine lacks a loop for, and which the C++ process cannot serve either: it runs
    one graph of onnxruntime.

    Args:
        bundle: the verified bundle.
        steer: use the steering graph, where the bundle has one.

    Raises:
        ConfigError: the engine cannot be built.
        DataError: the engine or onnxruntime refuses the graph.
    """
    try:
        return NativeSession(bundle, steer)
    except NotLowered as missing:
        LOGGER.warning("onnxruntime computes %s: the native engine lacks %s", bundle.path, missing)
    of_one_graph = needs_numbers_alone(bundle.manifest) and not (steer and bundle.steer is not None)
    if not of_one_graph or onnxruntime_library() is None:
        return None
    session = built(bundle, NativeNoiseSession, steer)
    assert isinstance(session, NativeNoiseSession)
    return session


def needs_numbers_alone(manifest: Manifest) -> bool:
    """True if a C++ process can serve a bundle.

    Its inputs are numbers, all transforms are inside the graph, and it has no recurrent state.
    """
    outside = host_transforms(manifest.transforms.inputs) or host_transforms(manifest.transforms.outputs)
    of_numbers = not any(is_picture(port.spec) or port.words for port in manifest.observations)
    return of_numbers and outside is None and not manifest.states


def onnxruntime_library() -> Path | None:
    """The library of C functions that onnxruntime's package carries; None where it carries none."""
    found = sorted(Path(ort.__file__).parent.glob("capi/libonnxruntime.so*"))
    return found[0] if found else None


def engine_library() -> ctypes.CDLL:
    """The engine's library, with the types of its functions.

    Raises:
        ConfigError: it cannot be built.
    """
    library = ctypes.CDLL(str(native_runtime().engine))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.engine_open.argtypes = [ctypes.c_char_p, size, ctypes.c_char_p, size]
    library.engine_open.restype = pointer
    library.engine_bind.argtypes = [pointer, ctypes.c_int, size, pointer, ctypes.c_int64]
    library.engine_bind.restype = ctypes.c_int
    library.engine_run.argtypes = [pointer]
    library.engine_run.restype = ctypes.c_int64
    word = ctypes.c_uint64
    library.engine_noise.argtypes = [word, word, word, pointer, ctypes.c_int64]
    library.engine_noise.restype = None
    library.engine_cancel.argtypes = library.engine_close.argtypes = [pointer]
    library.engine_cancel.restype = library.engine_close.restype = None
    return library
