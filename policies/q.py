"""Q ensembles: all critics in one batched product, and reductions of their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from robotrl.errors import check_at_least, unknown
from robotrl.policies.networks.mlp import ACTIVATIONS, Activation


class EnsembleLinear(nn.Module):
    """E linear layers with separate weights.

    Args:
        members: E, number of critics.
        inputs: width of the input.
        outputs: width of the output.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # the initialization of `nn.Linear`, for each member
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(E, B, inputs), or (B, inputs) for all members alike, to (E, B, outputs)."""
        members, inputs, outputs = self.weight.shape
        if x.dim() == 2:
            # one wide product is faster than many narrow ones
            wide = self.weight.transpose(0, 1).reshape(inputs, members * outputs)
            out = (x @ wide).view(-1, members, outputs).transpose(0, 1)
        elif outputs == 1:
            # the compiler fuses this with the activation before it; a matrix product with one column is slow
            out = (x * self.weight.transpose(1, 2)).sum(-1, keepdim=True)
        else:
            out = torch.bmm(x, self.weight)
        return out + self.bias


class EnsembleNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) with a scale and an offset for each member.

    Args:
        members: E, number of critics.
        width: number of normalized features.
    """

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, width))
        self.offset = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """(E, B, width) to the same."""
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.scale + self.offset


class QEnsemble(nn.Module):
    """E critics: Q(s, a) of a context and a chunk of normalised actions.

    Args:
        context_width: D, the leading part of a policy's context that it reads; see `HasChain.context_width`.
        horizon: H of the chunks.
        action_width: A.
        members: E, number of critics, 1 or more.
        hidden: widths of the hidden layers.
        layer_norm: normalize before each activation, which bounds values of unseen actions (Ball et al. 2023).
        activation: between the layers.

    Raises:
        ConfigError: no member, or an unknown activation.
    """

    def __init__(
        self,
        context_width: int,
        horizon: int,
        action_width: int,
        members: int = 2,
        hidden: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        check_at_least("algo.num_critics", members, 1)
        if activation not in ACTIVATIONS:
            raise unknown("activation", str(activation), ACTIVATIONS)
        self.members, self.context_width = members, context_width
        widths = [context_width + horizon * action_width, *hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers.append(EnsembleLinear(members, before, after))
            layers += [EnsembleNorm(members, after)] if layer_norm else []
            layers.append(ACTIVATIONS[activation]())
        self.layers = nn.Sequential(*layers, EnsembleLinear(members, widths[-1], 1))

    def forward(self, ctx: Tensor, chunk: Tensor) -> Tensor:
        """Values (E, B) of contexts (B, D) and normalised chunks (B, H, A)."""
        x = torch.cat([ctx[:, : self.context_width], chunk.flatten(1)], dim=1)
        return self.layers(x).squeeze(-1).to(ctx.dtype)


def smallest(values: Tensor) -> Tensor:
    """Minimum over the ensemble, (E, B) to (B,): clipped double Q-learning (Fujimoto et al. 2018)."""
    return values.amin(0)


def average(values: Tensor) -> Tensor:
    """Mean over the ensemble, (E, B) to (B,)."""
    return values.mean(0)


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"mean": average, "min": smallest}
"""Reductions of an ensemble's values by the names that settings have."""


def smallest_of(values: Tensor, members: Tensor) -> Tensor:
    """Minimum over a random subset of the ensemble (Chen et al. 2021, REDQ, eq. 2).

    Args:
        values: (E, B).
        members: (B, n) int64, the subset of each row.

    Returns:
        (B,).
    """
    return values.gather(0, members.T).amin(0)


def draw_members(members: int, count: int, updates: int, batch: int, generator: torch.Generator) -> Tensor:
    """Draw random subsets for `smallest_of`, one for each update.

    Args:
        members: E, number of critics.
        count: n, distinct members in a subset, 1 to E.
        updates: U.
        batch: M rows of an update, which share their subset.
        generator: random generator.

    Returns:
        (U M, n) int64.
    """
    chosen = torch.rand((updates, members), generator=generator).argsort(1)[:, :count]
    return chosen.repeat_interleave(batch, 0)
