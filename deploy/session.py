"""onnxruntime session for real-time control: one thread, no spinning, preallocated buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort

from robotrl.deploy.bounded import within
from robotrl.deploy.buffers import GraphBuffers, InferenceError, InferenceSession, output_names
from robotrl.deploy.bundle.bundle import STEERED_NOISE, Bundle, GoldenTicks
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.errors import DataError, short

BUILD_LIMIT_S = 60.0
"""Time limit of onnxruntime for loading a graph, in seconds."""


class BoundGraph:
    """A graph on onnxruntime that reads and writes given arrays.

    The default session options would use all cores with spinning, which takes time from the servo process; one thread
    without spinning has much lower tail latency.

    Args:
        graph: a verified ONNX file.
        file: its name, for errors.
        inputs: array of each input, float32; they stay the same.
        outputs: the same of each output.

    Raises:
        DataError: onnxruntime refuses the graph, or it has other inputs and outputs.
    """

    def __init__(
        self, graph: bytes, file: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 4  # errors are raised with a message of one line
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            self._session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has an exception class for each status code
            raise DataError(f"{file}: onnxruntime refuses it: {_first_line(error)}") from error
        _compare("input", self._session.get_inputs(), inputs)
        _compare("output", self._session.get_outputs(), outputs)
        self._file = file
        self._options = ort.RunOptions()
        self._options.log_severity_level = 4
        # onnxruntime looks this up at each run; if it is missing, that takes half as long as a small policy
        self._options.add_run_config_entry("gpu_graph_id", "-1")
        self._binding = self._session.io_binding()
        for name, array in inputs.items():
            self._binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            self._binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        # their memory must live as long as the binding
        self._arrays = (dict(inputs), dict(outputs))

    def run(self) -> None:
        """Compute the outputs from the inputs.

        Raises:
            InferenceError: onnxruntime cannot compute it, or `cancel` was called meanwhile.
        """
        self._options.terminate = False
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # RuntimeError, MemoryError and onnxruntime's own classes
            raise InferenceError(f"{self._file}: onnxruntime cannot compute it: {_first_line(error)}") from error

    def cancel(self) -> None:
        """Cancel a `run` of another thread, after its current operator."""
        self._options.terminate = True


class GraphSession(GraphBuffers):
    """The policy graph on onnxruntime, with its input and output buffers (see `InferenceSession`).

    Args:
        graph: a verified ONNX file.
        manifest: its description.

    Raises:
        DataError: onnxruntime refuses the graph, or its inputs and outputs differ from the manifest.
    """

    engine = "onnxruntime"

    def __init__(self, graph: bytes, manifest: Manifest) -> None:
        super().__init__(manifest)
        self._graph = BoundGraph(graph, manifest.graphs.policy, self.inputs, self.outputs)

    def run(self) -> None:
        """See `BoundGraph.run`."""
        self._graph.run()

    def cancel(self) -> None:
        """Cancel a `run` of another thread, after its current operator."""
        self._graph.cancel()


class SteeredSession(GraphSession):
    """The policy graph with the steering graph before it, which chooses its noise.

    `inputs["noise"]` is what the steering graph draws with, and is not read by one that draws nothing;
    `outputs["steered_noise"]` is the noise that it chose.

    Args:
        graph: the verified policy graph.
        steer: the verified steering graph.
        manifest: their description, with steering.

    Raises:
        DataError: onnxruntime refuses a graph, or its inputs and outputs differ from the manifest.
    """

    steered = True

    def __init__(self, graph: bytes, steer: bytes, manifest: Manifest) -> None:
        super().__init__(graph, manifest)
        # the one that chooses writes where the other one reads
        outputs = {STEERED_NOISE: self.inputs["noise"]}
        self.inputs["noise"] = np.zeros_like(self.inputs["noise"])
        self.outputs |= outputs
        draws = manifest.steer is not None and manifest.steer.draws
        inputs = {name: array for name, array in self.inputs.items() if draws or name != "noise"}
        self._steer = BoundGraph(steer, str(manifest.graphs.steer), inputs, outputs)

    def run(self) -> None:
        """Choose the noise, and compute the policy from it; see `BoundGraph.run`."""
        self._steer.run()
        self._graph.run()

    def cancel(self) -> None:
        """Cancel a `run` of another thread, after its current operator."""
        self._steer.cancel()
        self._graph.cancel()


def built(bundle: Bundle, kind: type[GraphSession] = GraphSession, steer: bool = True) -> GraphSession:
    """Create the session of a bundle's policy graph, and of its steering graph where it has one.

    Args:
        bundle: the verified bundle.
        kind: class of the session without steering.
        steer: use the steering graph.

    Raises:
        DataError: it cannot be created, or not in time.
    """
    chooser = bundle.steer if steer else None
    try:
        if chooser is not None:
            return within(BUILD_LIMIT_S, lambda: SteeredSession(bundle.graph, chooser, bundle.manifest))
        return within(BUILD_LIMIT_S, lambda: kind(bundle.graph, bundle.manifest))
    except TimeoutError as error:
        name = bundle.manifest.graphs.policy
        raise DataError(f"{name}: onnxruntime is not ready with it after {BUILD_LIMIT_S:g} s: refused") from error


def _compare(side: str, found: Sequence[Any], arrays: Mapping[str, np.ndarray]) -> None:
    graph = [(node.name, list(node.shape), node.type) for node in found]
    wanted = [(name, list(array.shape), "tensor(float)") for name, array in arrays.items()]
    if sorted(graph) != sorted(wanted):
        shown, expected = short(repr(sorted(graph)), 200), short(repr(sorted(wanted)), 200)
        raise DataError(f"the graph's {side}s are {shown}: expected {expected} as the manifest says")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


class TickOutputs(NamedTuple):
    """Outputs of the graph on recorded inputs."""

    actions: np.ndarray
    """(n, H, A)."""
    normalized_action: np.ndarray
    """(n, H, A)."""
    next_states: dict[str, np.ndarray]
    """(n, ...) by the input of recurrent state that each feeds."""
    steered_noise: np.ndarray | None = None
    """(n, H, A) noise that the steering graph chose; None where none was computed here."""


def run_ticks(session: InferenceSession, ticks: GoldenTicks, manifest: Manifest) -> TickOutputs:
    """Run the graph on recorded inputs, one inference for each tick.

    Args:
        session: the graph. One that has no steering is given the noise that was chosen, where the ticks have it.
        ticks: recorded inputs; its outputs are not used.
        manifest: the graph's description.
    """
    count, output = len(ticks.actions), output_names(manifest)
    actions, raw = np.empty_like(ticks.actions), np.empty_like(ticks.normalized_action)
    after = {name: np.empty_like(array) for name, array in ticks.states.items()}
    fed = {port.feeds: port.name for port in manifest.io.outputs if port.feeds is not None}
    noise = ticks.noise if session.steered or ticks.steered_noise is None else ticks.steered_noise
    chosen = session.outputs.get(STEERED_NOISE)
    all_chosen = None if chosen is None else np.empty((count, *chosen.shape[1:]), np.float32)
    for i in range(count):
        for name, array in ticks.observations.items():
            session.inputs[name][0] = array[i]
        if noise is not None:
            session.inputs["noise"][0] = noise[i]
        for name, array in ticks.states.items():
            session.inputs[name][0] = array[i]
        session.run()
        actions[i] = session.outputs[output["actions"]][0]
        raw[i] = session.outputs[output["raw_action"]][0]
        for name, array in after.items():
            array[i] = session.outputs[fed[name]][0]
        if all_chosen is not None and chosen is not None:
            all_chosen[i] = chosen[0]
    return TickOutputs(actions, raw, after, all_chosen)


def check_golden(session: InferenceSession, bundle: Bundle) -> float:
    """Run the golden ticks and compare with the recorded outputs.

    Those of a bundle with a steering graph are of both graphs, and each is compared: the noise that was chosen, and the
    actions. Where steering is off, the policy graph computes the actions from the recorded noise.

    Returns:
        The largest difference as a fraction of the action range.

    Raises:
        DataError: a tick differs by more than the bundle's tolerance; the tick and the element are named.
        InferenceError: a tick cannot be computed.
    """
    manifest, golden = bundle.manifest, bundle.golden
    actions, raw, after, chosen = run_ticks(session, golden, manifest)
    tolerance = manifest.golden.tolerance
    scale = manifest.action_range
    worst = 0.0
    raw_scale = np.maximum(1.0, np.abs(golden.normalized_action))
    pairs = [("actions", actions, golden.actions, scale), ("raw_action", raw, golden.normalized_action, raw_scale)]
    if chosen is not None and golden.steered_noise is not None and manifest.steer is not None:
        # first: what follows is computed from it
        pairs.insert(0, (STEERED_NOISE, chosen, golden.steered_noise, np.asarray(2 * manifest.steer.bound)))
    for what, found, wanted, unit in pairs:
        error = np.abs(found.astype(np.float64) - wanted.astype(np.float64)) / unit
        # Written so that a NaN in `found` counts as a difference.
        if not bool((error <= tolerance).all()):
            tick, step, element = (int(i[0]) for i in np.nonzero(~(error <= tolerance)))
            raise DataError(
                f"{manifest.golden.file}: tick {tick}, {what}[{step}] {manifest.action.names[element]!r} is "
                f"{found[tick, step, element]!s} here: recorded {wanted[tick, step, element]!s}, "
                f"tolerance {tolerance:g} of the range; this machine does not compute what was exported"
            )
        worst = max(worst, float(error.max()))
    for name, found in after.items():
        wanted = golden.next_states[name]
        error = np.abs(found.astype(np.float64) - wanted.astype(np.float64)) / np.maximum(1.0, np.abs(wanted))
        if not bool((error <= tolerance).all()):
            tick, element = (int(i[0]) for i in np.nonzero(~(error <= tolerance).reshape(len(error), -1)))
            raise DataError(
                f"{manifest.golden.file}: tick {tick}, element {element} of what state {name!r} becomes is"
                f" {found[tick].flat[element]!s} here: recorded {wanted[tick].flat[element]!s}, tolerance"
                f" {tolerance:g}; this machine does not compute what was exported"
            )
        worst = max(worst, float(error.max()))
    return worst
