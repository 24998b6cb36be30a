"""Feature cache: outputs of a policy's frozen parts, computed once per observation and read in every epoch.

A policy with a frozen vision encoder (LoRA adapters elsewhere) encodes each image once instead of once per epoch; one
with a frozen vision-language model (pi0 with a trained action expert) caches its whole context. The cache needs memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robotrl.engine.autocast import in_bf16
from robotrl.errors import CapabilityError, ConfigError
from robotrl.spec import Cache, HasCache, Spec
from robotrl.utils.batched import arrays_in_parts
from robotrl.utils.devices import CPU


class FeatureCache:
    """Function from observations to their cached features.

    Args:
        policy: the policy in training.
        what: part to cache; "none" leaves observations as they are.
        rows: observations encoded per batch.
        bf16: whether networks compute in bfloat16.

    Raises:
        CapabilityError: the policy cannot work from cached features.
        ConfigError: the part to cache is trainable.
    """

    def __init__(self, policy: Any, what: Cache, rows: int, bf16: bool) -> None:
        self._policy, self._what, self._rows, self._bf16 = policy, what, rows, bf16
        if what != "none":
            check_frozen(policy, what)

    def __call__(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the cached features of observations (B, ...), on their device; arrays unknown to the policy stay.

        B may be 0: one of several processes may have no data, and still needs the same keys.
        """
        if self._what == "none":
            return dict(obs)
        if not len(next(iter(obs.values()))):
            one = self({key: x.new_zeros((1, *x.shape[1:])) for key, x in obs.items()})
            return {key: x[:0] for key, x in one.items()}
        here, there = next(iter(obs.values())).device, next(self._policy.parameters()).device

        def cached(some: dict[str, Tensor]) -> dict[str, Tensor]:
            found = self._policy.cached({key: x.to(there) for key, x in some.items()}, self._what)
            return {key: x.to(here) for key, x in found.items()}

        with torch.no_grad(), in_bf16(self._bf16, there):
            return arrays_in_parts(cached, obs, self._rows)


def check_frozen(policy: Any, what: Cache) -> None:
    """Raise an error if the part to cache is trainable.

    Raises:
        CapabilityError: the policy cannot work from cached features.
        ConfigError: the part to cache is trainable.
    """
    if not isinstance(policy, HasCache):
        raise CapabilityError(f"policy {type(policy).__name__} lacks HasCache: cache is {what!r}, expected none")
    network: Any = policy
    device = next(network.parameters()).device
    with torch.enable_grad():
        found = policy.cached(blank(network.observation_spec, 1, device), what)
    if any(x.requires_grad for x in found.values()):
        others = "none or image-features" if what == "context" else "none"
        raise ConfigError(
            f"cache is {what!r}, and what would be kept learns: expected {others}, or that it is frozen"
            " (policy.trained expert, or lora.targets elsewhere, e.g. language_model)"
        )


def blank(specs: Mapping[str, Spec], rows: int, device: torch.device = CPU) -> dict[str, Tensor]:
    """Return observations (B, ...) of zeros."""
    return {
        key: torch.zeros((rows, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)
        for key, spec in specs.items()
    }
