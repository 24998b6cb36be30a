"""Chunks as a robot executes them, in a policy's own units."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from robotrl.spec import Spec
from robotrl.transforms import composed_affine


class ExecutedChunk(nn.Module):
    """Clips a policy's normalized chunks to the action bounds, and cuts off what is not executed.

    In the units of the bounds these are -1 and 1; a policy whose actions are normalized otherwise has other ones.

    Args:
        policy: the policy, whose horizon, action spec and transforms are read.
    """

    low: Tensor
    """(A,) lower bounds of an action in the policy's units."""
    high: Tensor
    """(A,) upper bounds."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self._horizon: int = policy.horizon
        spec: Spec = policy.action_spec
        affine = composed_affine(policy.transforms, "action", spec.shape[0])
        scale, offset = torch.tensor(affine.scale), torch.tensor(affine.offset)
        for name, bound in (("low", spec.low), ("high", spec.high)):
            self.register_buffer(name, (torch.tensor(bound) - offset) / scale, persistent=False)

    def forward(self, chunk: Tensor) -> Tensor:
        """Executed part (B, H, A) of normalized chunks (B, H', A'), clipped."""
        return chunk[..., : self._horizon, : len(self.low)].clamp(self.low, self.high)

    def clip(self, chunk: Tensor) -> Tensor:
        """Normalized chunks (B, H', A'), clipped; elements that no action has are left alone."""
        more = (0, chunk.shape[-1] - len(self.low))
        low = nn.functional.pad(self.low, more, value=-math.inf)
        return chunk.clamp(low, nn.functional.pad(self.high, more, value=math.inf))
