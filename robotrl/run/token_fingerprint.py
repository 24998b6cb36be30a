"""Fingerprint of policies with discrete outputs (action tokens, categorical actions): their logits on a fixed input.

The argmax does not change when all weights change by one percent, so actions alone are no fingerprint. Logits do
change: with another number of threads or other kernels by at most 1e-5 of their spread (measured), with all weights off
    by 1 %
by at least 7e-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from robotrl.errors import DataError, NumericsError
from robotrl.spec import HasTokens

TOLERANCE = 1e-3
"""Tolerance as a fraction of the logits' spread; large networks on other processors round more than measured here."""
ELSEWHERE_TOLERANCE = 1e-2
"""The same for a fingerprint from another device type: some round the inputs of a convolution to 10 bits."""
HALF_TOLERANCE = 3e-2
"""The same with bf16 weights: activations have 8 bits, of which the last may differ."""
WIDENED_TOLERANCE = 0.2
"""The same with weights that were bf16 when saved and are float32 now, which changed the logits by 6e-2."""
LEAST_SPREAD = 0.1
"""Minimum spread, as a fraction of the largest logit: a constant offset of all bins is also subject to rounding."""


@runtime_checkable
class HasScores(Protocol):
    """A policy for categorical actions, with one score per choice."""

    def scores(self, ctx: Any) -> Tensor:
        """(B, H, sum of choices) scores of contexts."""
        ...


def tokens_to_store(policy: Any, obs: Mapping[str, Tensor], normalized_action: Tensor) -> dict[str, Any]:
    """Logits and tokens to store for a policy with discrete outputs; empty for other policies.

    Args:
        policy: any policy.
        obs: the fingerprint's input; only its first row is used.
        normalized_action: (B, H, A) normalized actions of the policy on this input.

    Raises:
        NumericsError: a logit is not finite.
    """
    if not isinstance(policy, HasTokens | HasScores):
        return {}
    tokens = (policy.to_tokens(normalized_action[:1]) if isinstance(policy, HasTokens) else normalized_action[:1]).cpu()
    logits = _logits(policy, obs, tokens)
    if not torch.isfinite(logits).all():
        raise NumericsError("the policy's logits on a fixed input are not finite; the last checkpoint is intact")
    return {"tokens": tokens, "logits": logits, "half": _is_half(policy)}


def check_stored_tokens(policy: Any, fingerprint: Mapping[str, Any], same_kind: bool, where: str) -> None:
    """Compare a loaded policy's logits with the stored ones; checkpoints of earlier versions have none.

    Args:
        policy: the policy with all its weights.
        fingerprint: stored fingerprint with "obs" and the result of `tokens_to_store`.
        same_kind: whether the device type is the one of the stored fingerprint.
        where: name of the source in errors.

    Raises:
        DataError: they differ by more than the tolerance.
    """
    if "logits" not in fingerprint:
        return
    stored = fingerprint["logits"]
    off = float((_logits(policy, fingerprint["obs"], fingerprint["tokens"]) - stored).abs().max())
    spread = float(torch.maximum(stored.std(), LEAST_SPREAD * stored.abs().max()))
    allowed = _tolerance(same_kind, fingerprint["half"], _is_half(policy)) * spread
    if not off <= allowed:
        raise DataError(
            f"{where}: the policy's fingerprint logits differ by {off:.2e} from those stored: expected {allowed:.2e} at"
            " most: the weights are not those that were saved, or the code that builds the policy has changed"
        )


def _tolerance(same_kind: bool, was_half: bool, is_half: bool) -> float:
    here = TOLERANCE if same_kind else ELSEWHERE_TOLERANCE
    if was_half != is_half:
        return max(here, WIDENED_TOLERANCE)
    return max(here, HALF_TOLERANCE) if is_half else here


@torch.no_grad()
def _logits(policy: Any, obs: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits (1, H, A, bins) of given tokens (1, H, A) on the first row; for categorical actions the scores."""
    device = next(policy.parameters()).device
    ctx = policy.encode({key: x[:1].to(device) for key, x in obs.items()})
    logits = policy.token_logits(ctx, tokens.to(device)) if isinstance(policy, HasTokens) else policy.scores(ctx)
    return logits.float().clone().cpu()


def _is_half(policy: Any) -> bool:
    return any(x.dtype in (torch.bfloat16, torch.float16) for x in policy.parameters())
