"""Export of a policy's reflex to the risk graph of its bundle, with a check against numpy. Needs torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.deploy.bundle.manifest import BundleReflex
from robotrl.deploy.bundle.onnx_scan import scan
from robotrl.deploy.bundle.risk_graph import RISK_FILE, RiskGraph
from robotrl.deploy.bundle.risk_program import ACTION, MEASURED
from robotrl.deploy.export_stacks import measured_spec
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.spec import Spec

AGREEMENT = 1e-5
"""Largest accepted difference of a risk between torch and numpy."""
STATE = "state"
"""Observation of which the critic reads some elements."""


class ReflexSettings(Protocol):
    """Settings of a reflex."""

    threshold: float
    recovery: tuple[float, ...]
    columns: tuple[str, ...]
    servo_dt_s: float | None


@runtime_checkable
class HasRisk(Protocol):
    """A policy with a risk critic and the settings of its reflex."""

    risk: nn.Module
    cfg: ReflexSettings
    observation_spec: dict[str, Spec]
    action_spec: Spec


class ExportedReflex(NamedTuple):
    """Section of the manifest, and the risk graph."""

    section: BundleReflex
    graph: bytes


class _Risk(nn.Module):
    """A critic's probability with positional tensors, for the ONNX exporter."""

    def __init__(self, critic: nn.Module) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, measured: Tensor, action: Tensor) -> Tensor:
        return torch.sigmoid(self.critic(measured, action))


ToBytes = Callable[[nn.Module, tuple[Tensor, ...], list[str], list[str]], bytes]
"""Function (module, example inputs, input names, output names) that exports to ONNX."""


def exported(policy: object, observations: Mapping[str, np.ndarray], to_bytes: ToBytes) -> ExportedReflex:
    """Export the reflex of a policy.

    Args:
        policy: the policy with the critic.
        observations: recorded observations (n, ...) by key, for the check.
        to_bytes: see there.

    Raises:
        CapabilityError: the policy has no reflex.
        ConfigError: it does not say at which rate its critic learned.
        NumericsError: numpy computes another risk than torch; no bundle is written.
    """
    if not isinstance(policy, HasRisk):
        raise CapabilityError(f"policy {type(policy).__name__} has no reflex: expected a run of --algo reflex")
    cfg = policy.cfg
    if cfg.servo_dt_s is None:
        raise ConfigError("policy.servo_dt_s is None: expected the seconds between two servo ticks of its training")
    critic = _Risk(copy.deepcopy(policy.risk).to("cpu")).eval().requires_grad_(False)
    names, spec = measured_spec(policy.observation_spec[STATE]).names, policy.action_spec
    measured = observations[STATE][:, [names.index(name) for name in cfg.columns]]
    rows = torch.zeros(1, measured.shape[1]), torch.zeros(1, len(spec.names))
    graph = to_bytes(critic, rows, [MEASURED, ACTION], ["risk"])
    scan(graph, RISK_FILE)
    rng = np.random.default_rng(0)
    action = rng.uniform(spec.low, spec.high, (len(measured), len(spec.names))).astype(np.float32)
    _compare(critic, RiskGraph(graph, measured.shape[1], len(spec.names)), measured, action)
    section = BundleReflex(cfg.threshold, tuple(map(float, cfg.recovery)), STATE, cfg.columns, cfg.servo_dt_s)
    return ExportedReflex(section, graph)


def _compare(critic: nn.Module, graph: RiskGraph, measured: np.ndarray, action: np.ndarray) -> None:
    with torch.inference_mode():
        expected = critic(torch.from_numpy(measured), torch.from_numpy(action)).numpy()
    found = np.array([graph(seen, asked) for seen, asked in zip(measured, action, strict=True)])
    error = float(np.abs(found - expected).max())
    if not error <= AGREEMENT:
        raise NumericsError(
            f"{RISK_FILE}: numpy's risk differs from torch's by {error:.3g}: expected at most {AGREEMENT:g}; no bundle"
            " was written"
        )
