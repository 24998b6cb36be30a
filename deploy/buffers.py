"""Input and output buffers of a policy graph, wherever the graph is computed. Needs numpy alone."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.noise import CounterNoise
from robotrl.errors import ConfigError, RobotrlError
from robotrl.transforms import Transform, numpy_backend

NATIVE_NOISE = "onnxruntime, native noise"
"""Name of onnxruntime where the noise is drawn in C++."""
Runtime = Literal["python", "native"]
"""Language that runs a bundle: Python with onnxruntime, or C++ for servo and engine (see `robotrl.deploy.native`)."""


class InferenceError(RobotrlError):
    """The policy graph could not be computed: it failed on this observation, or was cancelled."""


class Noise(Protocol):
    """Noise of a sampler, addressed by decision index."""

    def draw(self, decision: int) -> np.ndarray:
        """The noise of one decision, float32."""
        ...


class GraphBuffers:
    """The inputs and outputs of a policy graph, each array with the batch axis of 1.

    All observations are views of one array, `observation`, so that one pass checks whether they are finite.

    Args:
        manifest: description of the graph.

    Attributes:
        steered: see `InferenceSession`.
    """

    steered: bool = False

    def __init__(self, manifest: Manifest) -> None:
        self.observation = np.zeros(sum(math.prod(port.shape) for port in manifest.observations), np.float32)
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs = {port.name: np.zeros((1, *port.shape), np.float32) for port in manifest.io.outputs}
        at = 0
        for port in manifest.io.inputs:
            if port.role == "observation":
                size = math.prod(port.shape)
                self.inputs[port.name] = self.observation[at : at + size].reshape(1, *port.shape)
                at += size
            else:
                self.inputs[port.name] = np.zeros((1, *port.shape), np.float32)

    def noise(self, shape: tuple[int, ...], seed: int) -> Noise:
        """See `InferenceSession.noise`."""
        return CounterNoise(shape, seed)


class InferenceSession(Protocol):
    """A policy graph that can be computed: here by onnxruntime, or by a server.

    Fill `inputs[name]`, call `run`, read `outputs[name]`. The arrays stay the same for the life of the session; the
    next `run` overwrites the outputs.
    """

    engine: str
    """Name of what computes it: "onnxruntime", "native" (the C++ engine), "onnxruntime, native noise" or "server"; bits
    are those of one name."""
    steered: bool
    """A steering graph chooses the policy's noise: `inputs["noise"]` is what it draws with, and not the policy's."""
    observation: np.ndarray
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]

    def run(self) -> None:
        """Compute `outputs` from `inputs`.

        Raises:
            InferenceError: it cannot be computed, or `cancel` was called meanwhile.
        """
        ...

    def cancel(self) -> None:
        """Cancel a `run` of another thread."""
        ...

    def noise(self, shape: tuple[int, ...], seed: int) -> Noise:
        """Standard normal noise of a shape, as this engine draws it.

        Args:
            shape: of one draw, e.g. (H, A).
            seed: 0 or more.
        """
        ...


def check_steer(manifest: Manifest, steer: bool) -> None:
    """Check that steering is there to be switched off.

    Raises:
        ConfigError: `steer` is False, and the bundle has no steering graph.
    """
    if not steer and manifest.steer is None:
        raise ConfigError(
            "steer is False: this bundle has no steering graph, expected one that was exported with --steer-graph"
        )


def output_names(manifest: Manifest) -> dict[str, str]:
    """Names of the graph's outputs by role."""
    return {port.role: port.name for port in manifest.io.outputs}


def host_transforms(transforms: tuple[Transform, ...]) -> Any:
    """A function that applies the transforms marked `host`, or None if there are none."""
    chosen = [t for t in transforms if t.where == "host"]
    return numpy_backend(chosen) if chosen else None
