"""Recurrent state of a policy between its inferences. Needs numpy alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robotrl.deploy.buffers import InferenceError, InferenceSession
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.errors import ConfigError, DataError

State = dict[str, np.ndarray]
"""Arrays by the name of the graph's input of role "state_in", without the batch axis."""


class RecurrentState:
    """State in the buffers of a session: outputs of role "state_out" feed inputs of role "state_in".

    An episode begins with zeros. The state changes where `advance` is called, and nowhere else. A bundle without
    recurrence has none, and every call does nothing.

    Args:
        manifest: the bundle's manifest.
        session: what computes its graph.
    """

    def __init__(self, manifest: Manifest, session: InferenceSession) -> None:
        self._inputs = {port.name: session.inputs[port.name][0] for port in manifest.states}
        self._outputs = {
            port.feeds: session.outputs[port.name][0] for port in manifest.io.outputs if port.feeds is not None
        }

    def reset(self) -> None:
        """Begin an episode."""
        for array in self._inputs.values():
            array[...] = 0.0

    def advance(self) -> None:
        """Take over the state that the last inference computed.

        Raises:
            InferenceError: it is not finite; the state is unchanged.
        """
        following = self.following()
        for name, array in self._inputs.items():
            array[...] = following[name]

    def present(self) -> State:
        """Copy of the state that the next inference is given."""
        return {name: array.copy() for name, array in self._inputs.items()}

    def following(self) -> State:
        """Copy of the state that the last inference computed.

        Raises:
            InferenceError: it is not finite.
        """
        found = {name: self._outputs[name].copy() for name in self._inputs}
        for name, array in found.items():
            if not np.isfinite(array).all():
                raise InferenceError(f"the policy's state {name!r} is not finite after this observation")
        return found

    def put(self, state: Mapping[str, np.ndarray] | None) -> None:
        """Have the next inference begin at a state; None begins an episode.

        Raises:
            ConfigError: it has other arrays than the bundle's.
        """
        if state is None:
            self.reset()
            return
        found = {name: np.shape(array) for name, array in state.items()}
        expected = {name: array.shape for name, array in self._inputs.items()}
        if found != expected:
            raise ConfigError(f"state has arrays of {found}: expected {expected}, or none at the start of an episode")
        for name, array in self._inputs.items():
            array[...] = state[name]


def refuse_state(manifest: Manifest, who: str) -> None:
    """Refuse a bundle of a recurrent policy where nothing keeps its state.

    Args:
        manifest: the bundle's manifest.
        who: what would run it, for the error.

    Raises:
        DataError: the bundle has recurrent state.
    """
    if manifest.states:
        names = ", ".join(repr(port.name) for port in manifest.states)
        raise DataError(
            f"this bundle has recurrent state ({names}), which {who} does not keep between inferences: expected"
            " robotrl deploy on the robot's own machine, or a policy without memory"
        )
