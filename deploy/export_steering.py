"""Export of a policy's steering to a graph of its own, apart from the policy that it steers. Needs torch."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from robotrl.deploy.bundle.bundle import STEERED_NOISE
from robotrl.deploy.bundle.describe import HasDeploy
from robotrl.deploy.bundle.manifest import STEER_FILE, BundleSteering
from robotrl.deploy.bundle.onnx_scan import scan
from robotrl.deploy.export_reflex import ToBytes
from robotrl.deploy.export_stacks import flattened, stacked_shape
from robotrl.errors import CapabilityError
from robotrl.spec import Spec


class SteeringSettings(Protocol):
    """Settings of a noise actor."""

    bound: float


@runtime_checkable
class HasSteering(Protocol):
    """A frozen base policy, and an actor that chooses its noise."""

    base: HasDeploy
    cfg: SteeringSettings
    observation_spec: dict[str, Spec]
    base_noise: tuple[int, int]
    noise_shape: tuple[int, int] | None

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) of the base policy."""
        ...

    def chosen_noise(self, ctx: Tensor, noise: Tensor | None) -> Tensor:
        """Noise (B, H, A) of the base policy, drawn with `noise` where `noise_shape` is not None."""
        ...


@runtime_checkable
class ScalesNoise(Protocol):
    """A policy that scales the noise that it is deployed with."""

    deploy_noise: float


class ExportedSteering(NamedTuple):
    """Section of the manifest, and the steering graph."""

    section: BundleSteering
    graph: bytes


class _SteeringGraph(nn.Module):
    """The chosen noise with positional tensors, for the ONNX exporter."""

    def __init__(self, policy: HasSteering) -> None:
        super().__init__()
        self.policy = policy
        self._keys = tuple(policy.observation_spec)

    def forward(self, *arrays: Tensor) -> Tensor:
        policy, count = self.policy, len(self._keys)
        ctx = policy.encode(flattened(policy.observation_spec, dict(zip(self._keys, arrays[:count], strict=True))))
        chosen = policy.chosen_noise(ctx, arrays[count] if len(arrays) > count else None)
        return chosen.clamp(-policy.cfg.bound, policy.cfg.bound)


def steering_of(policy: object) -> HasSteering:
    """The steered policy.

    Raises:
        CapabilityError: the policy is not steered, or its base scales the noise of its graph.
    """
    if not isinstance(policy, HasSteering):
        raise CapabilityError(
            f"policy {type(policy).__name__} has no steering: expected a run of --algo dsrl or dsrl-na for a steering"
            " graph"
        )
    if isinstance(policy.base, ScalesNoise) and policy.base.deploy_noise != 1:
        raise CapabilityError(
            f"base.deploy_noise is {policy.base.deploy_noise}: expected 1 of a policy with a steering graph, whose"
            " noise its own graph takes as it is"
        )
    return policy


def exported_steering(policy: HasSteering, to_bytes: ToBytes) -> ExportedSteering:
    """Export the steering of a policy, in evaluation mode on the CPU.

    Args:
        policy: the steered policy.
        to_bytes: see there.
    """
    names = list(policy.observation_spec)
    arrays = [torch.zeros(1, *stacked_shape(spec)) for spec in policy.observation_spec.values()]
    draws = policy.noise_shape is not None
    if draws:
        names.append("noise")
        arrays.append(torch.zeros(1, *policy.base_noise))
    graph = to_bytes(_SteeringGraph(policy), tuple(arrays), names, [STEERED_NOISE])
    scan(graph, STEER_FILE)
    return ExportedSteering(BundleSteering(float(policy.cfg.bound), draws), graph)
