"""Distillation losses on a student's own tokens: reverse KL, forward KL and label cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from robotrl.fn.text import tokens


def reverse_kl(logits: Tensor, teacher_logits: Tensor, sampled: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Policy-gradient estimate of KL(student || teacher) on tokens sampled from the student (VLA-OPD).

    The advantage of a token is d = log t - log s; the loss is -mean(d log s) with d held fixed. If teacher and student
    agree, the gradient is exactly zero.

    Args:
        logits: (B, ..., bins) of the student, through which gradients flow.
        teacher_logits: logits of the teacher, of the same shape.
        sampled: (B, ...) tokens of the student.
        weight: (B, ...) weight of each token in the sum that is averaged over B.
        temperature: of both.
    """
    student_log_prob = tokens.log_prob(logits, sampled, temperature)
    with torch.no_grad():
        reward = tokens.log_prob(teacher_logits, sampled, temperature) - student_log_prob
    return _mean(-reward * student_log_prob, weight)


def forward_kl(logits: Tensor, teacher_logits: Tensor, sampled: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) over all bins, without the teacher's constant entropy; mode-covering."""
    del sampled
    wanted = (teacher_logits / temperature).softmax(dim=-1)
    return _mean(-(wanted * (logits / temperature).log_softmax(dim=-1)).sum(dim=-1), weight)


def labels(logits: Tensor, teacher_logits: Tensor, sampled: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the teacher's most likely tokens, as in DAgger."""
    del sampled
    return _mean(-tokens.log_prob(logits, teacher_logits.argmax(dim=-1), temperature), weight)


def _mean(each: Tensor, weight: Tensor) -> Tensor:
    return (weight * each).flatten(1).sum(dim=1).mean()
