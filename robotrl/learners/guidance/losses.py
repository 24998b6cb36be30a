"""Losses of suggested actions for learners with critics of actions, and the schedules of their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.fn.guidance import action_guidance_loss, held_line, present, value_margin_loss, warped_cosine
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.recorder import COLUMN, SUGGESTED
from robotrl.learners.off_policy import ActionNormalizer
from robotrl.policies.q import QEnsemble, smallest
from robotrl.replay.types import Transitions

MARGIN_COEF, ACTION_COEF = "margin_coef", "action_coef"
"""Names of the weights in the engine's carry."""


class GuidanceTerm(NamedTuple):
    """A weighted loss, and scalars to log."""

    loss: Tensor
    info: dict[str, Tensor]


def suggested_rows(transitions: Transitions, unit: ActionNormalizer, reach: float) -> Tensor:
    """Suggested chunks (B, H, A) of a batch, normalized; with NaN where there is none.

    A chunk has the suggestions for its steps, in the states that the policy came to. A step without one keeps that of
    the step before; without one for its first step, the chunk has none.
    """
    chunk = unit(transitions.extras[COLUMN]).clamp(-reach, reach)
    for k in range(1, chunk.shape[1]):
        chunk[:, k] = torch.where(chunk[:, k].isnan(), chunk[:, k - 1], chunk[:, k])
    return chunk


def coefficients(cfg: GuidanceCfg, env_steps: int) -> dict[str, float]:
    """Weights of both losses after some env steps."""
    line = held_line(env_steps, cfg.margin_hold_env_steps, cfg.margin_end_env_steps)
    end = cfg.action_end_env_steps
    curve = 1.0 if end is None else warped_cosine(env_steps, end, cfg.action_warp)
    return {MARGIN_COEF: cfg.margin_weight * line, ACTION_COEF: cfg.action_weight * curve}


def carry_of(cfg: GuidanceCfg) -> dict[str, float]:
    """First carry of an engine; empty without guidance."""
    return coefficients(cfg, 0) if cfg.on else {}


def set_coefficients(carry: dict[str, Tensor], cfg: GuidanceCfg, env_steps: int) -> None:
    """Set the weights in an engine's carry; does nothing without guidance."""
    if cfg.on:
        for name, value in coefficients(cfg, env_steps).items():
            carry[name].fill_(value)


def critic_guidance(
    cfg: GuidanceCfg, critic: QEnsemble, ctx: Tensor, batch: dict[str, Tensor], values: Tensor, coef: Tensor
) -> GuidanceTerm:
    """Value-margin regularization of the critics.

    Args:
        cfg: settings.
        critic: the critics in training.
        ctx: (B, D).
        batch: rows with "suggested" (B, H, A).
        values: (E, B) of the actions that were taken.
        coef: weight.
    """
    chunk, has = present(batch[SUGGESTED])
    suggested = critic(ctx, chunk)
    loss = value_margin_loss(suggested, values, has, cfg.margin)
    gap = (has * (suggested.detach().mean(0) - values.detach().mean(0))).sum() / has.sum().clamp(min=1)
    return GuidanceTerm(coef * loss, {"margin_loss": loss, "suggested": has.mean(), "suggested_q_gap": gap})


def actor_guidance(
    cfg: GuidanceCfg,
    log_prob: Callable[[Tensor], Tensor],
    critic: QEnsemble,
    ctx: Tensor,
    batch: dict[str, Tensor],
    q_pi: Tensor,
    coef: Tensor,
) -> GuidanceTerm:
    """Advantage-weighted guidance of the policy.

    Args:
        cfg: settings.
        log_prob: log-densities (B, H, A) of normalized chunks (B, H, A) under the policy in training.
        critic: the critics, which do not learn from it.
        ctx: (B, D), detached.
        batch: rows with "suggested" (B, H, A).
        q_pi: (E, B) values of the policy's own actions.
        coef: weight.
    """
    chunk, has = present(batch[SUGGESTED])
    with torch.no_grad():
        advantage = smallest(critic(ctx, chunk)) - smallest(q_pi)
    out = action_guidance_loss(log_prob(chunk).flatten(1).sum(1), advantage, has, cfg.temperature, cfg.max_weight)
    return GuidanceTerm(coef * out.loss, {"action_guidance_loss": out.loss, "guided": out.share})
