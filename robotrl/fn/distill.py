"""Distillation on a student's own tokens: three divergences between a teacher's and a student's distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from robotrl.fn.text import tokens


def reverse_kl(logits: Tensor, taught: Tensor, said: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """A policy-gradient estimate of KL(student || teacher) on tokens that the student drew (VLA-OPD).

    Each token is worth how much likelier the teacher finds it, d = log t - log s; the loss is -mean(d log s) with d
    held fixed. Where teacher and student agree, the gradient is exactly zero.

    Args:
        logits: (B, ..., bins) of the student, through which gradients flow.
        taught: the same of the teacher.
        said: (B, ...) tokens.
        weight: (B, ...) of each token in the sum that is averaged over B.
        temperature: of both.
    """
    ours = tokens.log_prob(logits, said, temperature)
    with torch.no_grad():
        worth = tokens.log_prob(taught, said, temperature) - ours
    return _mean(-worth * ours, weight)


def forward_kl(logits: Tensor, taught: Tensor, said: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) over all bins, but for the teacher's entropy, which is constant; covers all it may say."""
    del said
    wanted = (taught / temperature).softmax(dim=-1)
    return _mean(-(wanted * (logits / temperature).log_softmax(dim=-1)).sum(dim=-1), weight)


def labels(logits: Tensor, taught: Tensor, said: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the teacher's likeliest tokens, as DAgger has it."""
    del said
    return _mean(-tokens.log_prob(logits, taught.argmax(dim=-1), temperature), weight)


def _mean(each: Tensor, weight: Tensor) -> Tensor:
    return (weight * each).flatten(1).sum(dim=1).mean()
