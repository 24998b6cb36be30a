"""A controller whose graph is computed by a policy server: all else stays on the robot's machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robotrl.deploy.buffers import GraphBuffers, output_names
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.remote.client import RemotePolicy
from robotrl.deploy.runtime import FIRST_LIMIT_S, Controller
from robotrl.deploy.state import refuse_state


@dataclass(frozen=True)
class RemotePolicyCfg:
    """A policy server.

    Args:
        url: "ws://HOST:PORT" or "wss://HOST:PORT".
        token: its token, if it asks for one.
        tls_ca: certificate to trust for wss:// instead of the system's authorities.
    """

    url: str
    token: str | None = None
    tls_ca: Path | None = None


class RemoteSession(GraphBuffers):
    """The policy graph on a server, with buffers here (see `InferenceSession`).

    Args:
        policy: the connection.
        manifest: the bundle's description.

    Attributes:
        limit_s: time limit of a `run`, in seconds.
    """

    engine = "server"

    def __init__(self, policy: RemotePolicy, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.steered = manifest.steer is not None
        self.limit_s = FIRST_LIMIT_S
        self._policy = policy
        self._keys = [port.name for port in manifest.read]
        self._names = output_names(manifest)

    def run(self) -> None:
        """Compute `outputs` from `inputs`.

        Raises:
            RemoteError: the server gave no usable answer in time, or `cancel` was called meanwhile.
        """
        inputs = {name: self.inputs[name][0] for name in self._keys}
        noise: np.ndarray | None = self.inputs["noise"][0] if "noise" in self.inputs else None
        answer = self._policy.compute(inputs, noise, self.limit_s)
        self.outputs[self._names["actions"]][0] = answer.actions
        self.outputs[self._names["raw_action"]][0] = answer.normalized_action

    def cancel(self) -> None:
        """Cancel a `run` of another thread at once."""
        self._policy.cancel()


@contextlib.contextmanager
def remote_controller(bundle: str | os.PathLike[str], cfg: RemotePolicyCfg, *, seed: int = 0) -> Generator[Controller]:
    """A controller of a bundle that lies here, and whose inferences a server computes.

    The bundle is verified here, and its limits are those that hold. The server must run the same bundle, and its golden
    ticks are computed by the server and compared here before anything moves.

    Args:
        bundle: the bundle's directory.
        cfg: the server.
        seed: seed of the sampler's noise, which is drawn here.

    Raises:
        DataError: the bundle is refused or has recurrent state, or the server does not compute what was exported.
        ConfigError: the address, certificate or seed is invalid.
        RemoteError: the server cannot be reached, does not let this client in, or runs another bundle.
    """
    opened = open_bundle(bundle)
    manifest = opened.manifest
    refuse_state(manifest, "a policy server")
    with RemotePolicy(cfg.url, token=cfg.token, tls_ca=cfg.tls_ca, bundle_id=manifest.bundle_id, seed=seed) as policy:
        session = RemoteSession(policy, manifest)
        controller = Controller(opened, seed, session)
        # an answer after that is of no use: the observation is stale
        session.limit_s = manifest.timing.max_observation_age_s
        yield controller
