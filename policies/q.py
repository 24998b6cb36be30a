"""Ensembles of action values: all members in one batched product, and how their answers become one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robotrl.errors import check_at_least, unknown
from robotrl.policies.networks.mlp import ACTIVATIONS, Activation


class EnsembleLinear(nn.Module):
    """As many linear layers as members, each with weights of its own.

    Args:
        members: E.
        inputs: width of the input.
        outputs: width of the output.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # the start of torch's own linear layer, for each member
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
            # a compiler makes one loop of this and the activation before it; a product with one column is a slow call
            out = (x * self.weight.transpose(1, 2)).sum(-1, keepdim=True)
        else:
            out = torch.bmm(x, self.weight)
        return out + self.bias


class EnsembleNorm(nn.Module):
    """Layer normalisation (Ba et al. 2016) with a scale and an offset for each member.

    Args:
        members: E.
        width: of what is normalised.
    """

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(members, 1, width))
        self.offset = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """(E, B, width) to the same."""
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.scale + self.offset


class QEnsemble(nn.Module):
    """E networks from a context and a chunk of normalised actions to a value.

    Args:
        context_width: D, how many numbers of a policy's context it reads; see `HasChain.context_width`.
        horizon: H of the chunks.
        action_width: A.
        members: E, 1 or more.
        hidden: widths of the hidden layers.
        layer_norm: normalise before each activation, which keeps values of unseen actions bounded (Ball et al. 2023).
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
    """The least of all members, (E, B) to (B,): clipped double Q-learning (Fujimoto et al. 2018)."""
    return values.amin(0)


def average(values: Tensor) -> Tensor:
    """The mean of all members, (E, B) to (B,)."""
    return values.mean(0)


def smallest_of(values: Tensor, members: Tensor) -> Tensor:
    """The least of a random subset of members (Chen et al. 2021, REDQ, eq. 2).

    Args:
        values: (E, B).
        members: (B, n) int64, which members count in each row.

    Returns:
        (B,).
    """
    return values.gather(0, members.T).amin(0)


def draw_members(members: int, count: int, updates: int, batch: int, generator: torch.Generator) -> Tensor:
    """Subsets for `smallest_of`, one for each update.

    Args:
        members: E.
        count: n, distinct members in a subset, 1 to E.
        updates: U.
        batch: M rows of an update, which share their subset.
        generator: of the draw.

    Returns:
        (U M, n) int64.
    """
    chosen = torch.rand((updates, members), generator=generator).argsort(1)[:, :count]
    return chosen.repeat_interleave(batch, 0)
