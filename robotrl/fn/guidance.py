"""Losses of learning from suggested actions (Found-RL), as pure functions of tensors.

A suggestion is an action that somebody else, a scripted teacher or a vision-language model, would have taken. Rows
without one have `has` 0 and count nothing; their other values only have to be finite.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.fn.q_targets import advantage_weight


def value_margin_loss(suggested: Tensor, taken: Tensor, has: Tensor, margin: float) -> Tensor:
    """Value-margin regularization: the squared distance of Q(s, a_suggested) from Q(s, a) + margin.

    The mean over rows, summed over the critics as their other losses are. No gradient flows into Q(s, a).

    Args:
        suggested: (E, B) values of suggested actions.
        taken: (E, B) values of the actions that were taken.
        has: (B,) 1 where there is a suggestion, else 0.
        margin: by how much a suggestion should be worth more.
    """
    return (has * (suggested - taken.detach() - margin) ** 2).mean(1).sum()


class ActionGuidance(NamedTuple):
    """Result of `action_guidance_loss`."""

    loss: Tensor
    share: Tensor
    """Share of rows that were guided."""


def action_guidance_loss(
    log_prob: Tensor, advantage: Tensor, has: Tensor, temperature: float, largest: float
) -> ActionGuidance:
    """Advantage-weighted guidance: -w log pi(a_suggested | s) where a suggestion is better than the policy's action.

    w is exp(advantage / temperature), at most `largest`. The mean is over all rows, so few suggestions weigh little.

    Args:
        log_prob: (B,) of suggested actions under the policy.
        advantage: (B,) value of the suggested action minus that of the policy's; no gradient flows into it.
        has: (B,) 1 where there is a suggestion, else 0.
        temperature: above 0.
        largest: largest weight.
    """
    advantage = advantage.detach()
    guided = has * (advantage > 0).to(has.dtype)
    weight = guided * advantage_weight(advantage, 1 / temperature, largest)
    return ActionGuidance(-(weight * log_prob).mean(), guided.mean())


def held_line(env_steps: float, held: float, end: float) -> float:
    """1 until `held` env steps, then linear to 0 at `end`."""
    if env_steps >= end:
        return 0.0
    return 1.0 if env_steps <= held else (end - env_steps) / (end - held)


def warped_cosine(env_steps: float, end: float, warp: float) -> float:
    """Half-cosine from 1 at 0 env steps to 0 at `end`, of the share to the power `warp`; above 1 it begins slowly."""
    share = min(env_steps / end, 1.0)
    return 0.5 * (1 + math.cos(math.pi * share**warp))


def present(suggestion: Tensor) -> tuple[Tensor, Tensor]:
    """Split suggestions with NaN where there is none.

    Args:
        suggestion: (B, H, A).

    Returns:
        (B, H, A) with 0 in place of NaN, and (B,) 1 where a suggestion is complete, else 0.
    """
    finite = torch.isfinite(suggestion)
    return torch.where(finite, suggestion, 0.0), finite.flatten(1).all(1).to(suggestion.dtype)
