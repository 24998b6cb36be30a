"""Reflex of the servo: at each of its ticks, the bundle's risk graph judges the policy's action on what is measured.

The C++ servo has the same in `native/src/risk.cpp`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.risk_graph import RiskGraph
from robotrl.errors import ConfigError, DataError

_RATE_TOLERANCE = 0.01


class RiskGuard:
    """The reflex of one bundle.

    Args:
        manifest: the bundle's manifest, with a reflex.
        graph: content of its risk graph.

    Attributes:
        threshold: risk above which the recovery is sent, 0 to 1.
        recovery_action: (A,) float32.
        observation: key of the observation that the graph reads.
        columns: (S,) the elements of it, in the graph's order.
        risk: the graph, a function of those elements (S,) and an action (A,).

    Raises:
        DataError: the graph cannot be computed, or the manifest has no reflex.
    """

    def __init__(self, manifest: Manifest, graph: bytes) -> None:
        reflex = manifest.reflex
        if reflex is None:
            raise DataError("manifest.reflex is null: expected one beside a risk graph")
        self.threshold = reflex.threshold
        self.recovery_action = np.asarray(reflex.recovery, np.float32)
        self.observation = reflex.observation
        names = next(port.names for port in manifest.observations if port.name == reflex.observation)
        self.columns = np.array([names.index(name) for name in reflex.columns])
        self.risk = RiskGraph(graph, len(self.columns), len(self.recovery_action), str(manifest.graphs.risk))

    def recovery(self, obs: Mapping[str, np.ndarray], action: np.ndarray) -> np.ndarray | None:
        """The recovery action (A,) where an action (A,) is risky or its risk no number; None where it may be sent.

        Args:
            obs: the bundle's observations of numbers.
            action: the policy's action. One that is not finite is left to the safety chain.
        """
        return self.judge(obs[self.observation][self.columns], action)

    def judge(self, measured: np.ndarray, action: np.ndarray) -> np.ndarray | None:
        """The same, from the elements (S,) that the graph reads, in its order."""
        if action.shape != self.recovery_action.shape or not np.isfinite(action).all():
            return None
        return None if self.risk(measured, action) <= self.threshold else self.recovery_action


def guard_of(manifest: Manifest, graph: bytes | None) -> RiskGuard | None:
    """The reflex of a bundle; None if it has none."""
    return None if graph is None else RiskGuard(manifest, graph)


def packed(graph: bytes | None) -> str | None:
    """A risk graph as text, for the settings of a process."""
    return None if graph is None else base64.b64encode(graph).decode()


def unpacked(text: str | None) -> bytes | None:
    """Inverse of `packed`."""
    return None if text is None else base64.b64decode(text)


def check_rate(manifest: Manifest, steps: int) -> None:
    """Check that a servo evaluates a bundle's reflex at the rate at which its critic learned.

    Args:
        manifest: the bundle's manifest.
        steps: servo ticks in a control period.

    Raises:
        ConfigError: it does not.
    """
    reflex = manifest.reflex
    if reflex is None:
        return
    period = manifest.timing.control_period_s
    if abs(steps * reflex.period_s - period) > _RATE_TOLERANCE * period:
        raise ConfigError(
            f"servo_hz is {steps / period:g}: the bundle's reflex learned at {1 / reflex.period_s:g} Hz, expected that"
        )
