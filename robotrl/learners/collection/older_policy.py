"""Correction for decisions of an older policy by the decoupled objective: one stage for all on-policy methods.

The clip range of a ratio is around the policy before the update, the proximal policy, whose log-probabilities are
computed anew. The decisions are those of the policy that acted, so each ratio is weighted by the proximal policy's
probability over that of the policy that acted (Hilton et al. 2021, 2110.00641; AReaL, Fu et al. 2025, 2505.24298).

A method forms the weight as it forms its ratio, from the same log-probabilities: one for a chunk (PPO, VLA-RL), a whole
chain (ReinFlow, Flow-Noise), a denoising step (DPPO, Flow-SDE, Flow-GRPO) or a token (GRPO), with the same mean over
elements. So weight times ratio is the method's ratio to the policy that acted. Where each step or token is an action
with a ratio of its own, the surrogate leaves out the ratios of the actions before it, as PPO leaves out those of
earlier decisions; their product would be exact, and have a variance that grows exponentially with their number. AReaL
weights tokens one by one, too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.fn.loss import behavior_weight

WEIGHT = "behavior_weight"
"""Row of an update: weights of its ratios; 1 for decisions of the learner's own policy."""
LARGEST_WEIGHT = 5.0
"""Largest weight of a ratio: AReaL's. Its code drops the tokens above it; here their weight is held to it."""


class BehaviorCorrection(NamedTuple):
    """Result of `correction`."""

    weight: Tensor
    """(B, ...) weights, above 0, at most the largest one."""
    scalars: dict[str, float]
    """Scalars to log: mean weight, estimated KL of the policy that acted from the proximal one, share of weights at the
    largest one."""


@torch.no_grad()
def correction(
    proximal: Tensor, behavior: Tensor, largest: float = LARGEST_WEIGHT, counted: Tensor | None = None
) -> BehaviorCorrection:
    """Weights of the ratios of an older policy's decisions, and what they say about how old it is.

    Args:
        proximal: (B, ...) log-probabilities under the policy before the update, one for each ratio.
        behavior: (B, ...) the same under the policy that acted.
        largest: largest weight.
        counted: (B, ...) bool, the ratios that the scalars are about; None: all.
    """
    weight = behavior_weight(proximal, behavior, largest)
    there = torch.ones_like(weight, dtype=torch.bool) if counted is None else counted
    scalars = {
        "behavior_weight": float(weight[there].mean()),
        "behavior_kl": float((behavior - proximal)[there].mean()),
        "behavior_capped": float((weight >= largest)[there].float().mean()),
    }
    return BehaviorCorrection(weight, scalars)
