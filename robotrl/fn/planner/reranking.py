"""Choice among scored candidates: its log-probability, its entropy, and an entropy bonus with a gate (RAD-2)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from robotrl.fn.q_targets import temperature_loss


class ChoiceTerms(NamedTuple):
    """Result of `choice_terms`."""

    log_prob: Tensor
    """(B,) log-probability of the chosen candidate."""
    entropy: Tensor
    """(B,) entropy of the choice, nats: 0 to log M."""


def choice_terms(logits: Tensor, choice: Tensor) -> ChoiceTerms:
    """Log-probability and entropy of a choice by the softmax over candidates.

    Args:
        logits: (B, M) scores.
        choice: (B,) int64, the chosen candidates.
    """
    log_probs = logits.log_softmax(dim=-1)
    chosen = log_probs.gather(1, choice[:, None])[:, 0]
    return ChoiceTerms(chosen, -(log_probs.exp() * log_probs).sum(dim=-1))


class GatedEntropy(NamedTuple):
    """Result of `gated_entropy`."""

    loss: Tensor
    """Scalar: the bonus, negative, plus the temperature's own loss."""
    active: Tensor
    """Scalar: 1 while the mean entropy is below its target, else 0."""


def gated_entropy(entropy: Tensor, log_alpha: Tensor, target: float) -> GatedEntropy:
    """Entropy bonus that is active only while the mean entropy is below its target, with a learned temperature.

    The bonus is alpha times the mean entropy; no gradient flows from it into alpha. Alpha rises while the entropy is
    below the target, and falls otherwise (Haarnoja et al. 2018b, eq. 17).

    Args:
        entropy: (B,) nats.
        log_alpha: scalar, the logarithm of the temperature.
        target: nats.
    """
    mean = entropy.mean()
    active = (mean.detach() < target).to(mean.dtype)
    bonus = log_alpha.exp().detach() * active * mean
    return GatedEntropy(temperature_loss(log_alpha, -entropy, target) - bonus, active)
