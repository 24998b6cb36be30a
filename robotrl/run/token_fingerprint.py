"""What a policy that says tokens or chooses stores beside its fingerprint actions: the logits from which it took them.

Its actions are those of the likeliest bins, which stay where they are when all weights move by a hundredth. Logits do
not: with one thread or two, or by other kernels, they were seen to move by 1e-5 of their spread at most, with all
weights off by 1 % of theirs by 7e-2 at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from robotrl.errors import DataError, NumericsError
from robotrl.spec import HasTokens

TOLERANCE = 1e-3
"""Of the logits' spread; large networks on another processor round more than those that were measured."""
ELSEWHERE_TOLERANCE = 1e-2
"""The same of what another kind of device gave: some round what goes into a convolution to 10 bits."""
HALF_TOLERANCE = 3e-2
"""The same where some weights have 16 bits: the last of 8 bits of what is passed on may turn over."""
WIDENED_TOLERANCE = 0.2
"""The same where weights had 16 bits when they were saved and have 32 now, which moved them by 6e-2."""
LEAST_SPREAD = 0.1
"""Of the largest logit: one that all bins share is rounded, too, and says nothing."""


@runtime_checkable
class HasScores(Protocol):
    """A policy that chooses by scores."""

    def scores(self, ctx: Any) -> Tensor:
        """(B, H, sum of choices) of contexts."""
        ...


def said_of(policy: Any, obs: Mapping[str, Tensor], raw_action: Tensor) -> dict[str, Any]:
    """What is stored of a policy that says tokens or chooses; nothing of another.

    Args:
        policy: any policy.
        obs: the fingerprint's input; its first row is looked at.
        raw_action: (B, H, A) normalised, what the policy does there.

    Raises:
        NumericsError: a logit is not finite.
    """
    if not isinstance(policy, HasTokens | HasScores):
        return {}
    tokens = (policy.to_tokens(raw_action[:1]) if isinstance(policy, HasTokens) else raw_action[:1]).cpu()
    logits = _logits(policy, obs, tokens)
    if not torch.isfinite(logits).all():
        raise NumericsError("the policy's logits on a fixed input are not finite; the last checkpoint is intact")
    return {"tokens": tokens, "logits": logits, "half": _is_half(policy)}


def check_said(policy: Any, fingerprint: Mapping[str, Any], same_kind: bool, where: str) -> None:
    """Hold a loaded policy's logits against those stored, if there are any: checkpoints of before have none.

    Args:
        policy: with all its weights.
        fingerprint: with "obs" and what `said_of` gave.
        same_kind: whether it is on the kind of device on which that was.
        where: what to call the source in errors.

    Raises:
        DataError: they differ by more than another machine's arithmetic.
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
    """(1, H, A, bins) of given tokens (1, H, A) on the first row; of a policy that chooses its scores there."""
    device = next(policy.parameters()).device
    ctx = policy.encode({key: x[:1].to(device) for key, x in obs.items()})
    logits = policy.token_logits(ctx, tokens.to(device)) if isinstance(policy, HasTokens) else policy.scores(ctx)
    return logits.float().clone().cpu()


def _is_half(policy: Any) -> bool:
    return any(x.dtype in (torch.bfloat16, torch.float16) for x in policy.parameters())
