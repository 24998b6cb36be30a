"""Loss of chunk critics, whose target is the value of what the acting rule would do next.

A target that acts otherwise than the robot is the commonest silent error of these methods: a policy that executes the
best of n samples needs the best of n in its target, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from robotrl.errors import check_at_least, unknown
from robotrl.fn.candidates.select import Value
from robotrl.fn.q_targets import bootstrap, ensemble_mse
from robotrl.learners.critics.cal_ql import CalQl, cal_ql_loss
from robotrl.policies.networks.mlp import ACTIVATIONS, Activation
from robotrl.policies.q import REDUCTIONS, QEnsemble

Choose = Callable[[], Tensor]
"""Value (B,) of the chunk that the acting rule would execute next, by the averaged critics."""
Reduction = Literal["mean", "min"]
"""Value of a chunk by an ensemble; the names of `REDUCTIONS`."""
Scalar = tuple[Tensor, dict[str, Tensor]]
"""A loss, and scalars to log."""


def reduced(critic: QEnsemble, reduction: Reduction, weights: Mapping[str, Tensor] | None = None) -> Value:
    """Value of a chunk by an ensemble.

    Args:
        critic: the ensemble.
        reduction: a name of `REDUCTIONS`.
        weights: its weights; None takes its own.
    """
    reduce = REDUCTIONS[reduction]
    if weights is None:
        return lambda ctx, chunk: reduce(critic(ctx, chunk))
    given = dict(weights)
    return lambda ctx, chunk: reduce(functional_call(critic, given, (ctx, chunk)))


def chunk_critic_loss(
    critic: QEnsemble, batch: Mapping[str, Tensor], ctx: Tensor, choose: Choose, cal_ql: CalQl | None = None
) -> Scalar:
    """Squared error to the return of a chunk and the value of the next one, sum over critics.

    Args:
        critic: the critics in training.
        batch: rows with "executed" (B, H, A), the chunk as it was executed, "reward" (B,) discounted within the chunk,
            and "discount" (B,), gamma to its number of env steps and 0 where the task ended the episode.
        ctx: (B, D) contexts before the chunk.
        choose: the acting rule.
        cal_ql: adds the term of Cal-QL; None: none.
    """
    with torch.no_grad():
        wanted = bootstrap(batch["reward"], batch["discount"], choose())
    values = critic(ctx, batch["executed"])
    loss = ensemble_mse(values, wanted)
    info = {
        "critic_loss": loss,
        "q": values.mean(),
        "q_spread": values.std(0, correction=0).mean(),
        "target": wanted.mean(),
    }
    if cal_ql is None:
        return loss, info
    term = cal_ql_loss(critic, ctx, values, cal_ql)
    return loss + term, info | {"cal_ql_loss": term}


@dataclass(frozen=True)
class CriticSizes:
    """Sizes of a chunk critic, as settings state them and stored critics keep them."""

    num_critics: int
    critic_hidden: tuple[int, ...]
    critic_activation: Activation
    layer_norm: bool

    @classmethod
    def of(cls, cfg: Any) -> CriticSizes:
        """Sizes of an algorithm's settings."""
        return cls(cfg.num_critics, tuple(cfg.critic_hidden), cfg.critic_activation, cfg.layer_norm)


def check_critic(cfg: Any) -> None:
    """Check the critics' settings, of an algorithm with `reduction`.

    Raises:
        ConfigError: a setting is out of range; names the field, its value and the expectation.
    """
    check_at_least("algo.num_critics", cfg.num_critics, 1)
    if cfg.reduction not in REDUCTIONS:
        raise unknown("algo.reduction", str(cfg.reduction), REDUCTIONS)
    if cfg.critic_activation not in ACTIVATIONS:
        raise unknown("algo.critic_activation", str(cfg.critic_activation), ACTIVATIONS)
