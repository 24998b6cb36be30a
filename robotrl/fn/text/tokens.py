"""Arithmetic on the logits of autoregressive policies with binned actions."""

from __future__ import annotations

import torch
from torch import Tensor


def log_prob(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Log-probabilities (...) of tokens (...) under logits (..., bins) that are divided by a temperature."""
    return (logits / temperature).log_softmax(dim=-1).gather(-1, tokens[..., None])[..., 0]


def entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy (...) in nats of tokens under logits (..., bins) that are divided by a temperature."""
    log_share = (logits / temperature).log_softmax(dim=-1)
    return -(log_share.exp() * log_share).sum(dim=-1)


def median(share: Tensor) -> Tensor:
    """Return the median bin (...) of probabilities (..., bins)."""
    return (share.cumsum(dim=-1) < 0.5 * share.sum(dim=-1, keepdim=True)).sum(dim=-1)


def spread(tokens: Tensor, bins: int, std: float) -> Tensor:
    """Label smoothing: target probabilities (..., bins) around tokens (...), Gaussian over bins, or one-hot at 0."""
    at = torch.arange(bins, device=tokens.device)
    if std == 0.0:
        return (at == tokens[..., None]).float()
    return (-0.5 * ((at - tokens[..., None]) / std) ** 2).softmax(dim=-1)


def cross_entropy(logits: Tensor, wanted: Tensor, valid: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, H, A, bins) and target probabilities (B, H, A, bins) where `valid` (B, H)."""
    each = -(wanted * logits.log_softmax(dim=-1)).sum(dim=-1).mean(dim=-1)
    weight = valid.to(each.dtype)
    return (each * weight).sum() / weight.sum().clamp(min=1)
