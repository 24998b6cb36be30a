"""Muon: matrices move along their orthogonalized momentum (Jordan et al. 2024).

Adam scales each element of a gradient separately. For a matrix between hidden states, the gradient is nearly of low
rank, and a few directions dominate the others. Muon moves equally far in all directions of the gradient. It is meant
for matrices between hidden states; embeddings, output layers of language models, biases and scales stay with Adam. With
the scale of Liu et al. 2025 (2502.16982), a step's elements have the root mean square that Adam's typically have, so
that one learning rate fits both.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
"""Decay of the mean of gradients."""
STEPS = 5
"""Newton-Schulz iterations."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of the iteration X -> a X + (b X Xt + c (X Xt)^2) X, Jordan's: with the greatest slope at 0, so
that singular values of any size come near 1 (0.7 to 1.2) in few steps; they do not converge to it."""
RMS = 0.2
"""Root mean square of a step's elements, per unit of the learning rate."""


def orthogonal(matrix: Tensor) -> Tensor:
    """Return (m, n) approximately the nearest orthogonal matrix: nearly all singular values are about 1.

    Args:
        matrix: (m, n); zeros give zeros. The products are computed in bfloat16.
    """
    a, b, c = QUINTIC
    x = matrix.to(torch.bfloat16)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    # the iteration is for singular values up to 1, and the norm bounds them
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


def direction(momentum: Tensor, gradient: Tensor) -> Tensor:
    """Return (m, n) the step direction of a matrix (to be subtracted), per unit of the learning rate.

    Args:
        momentum: (m, n) mean of the gradients, including the current one.
        gradient: (m, n) current gradient, for Nesterov's look-ahead.
    """
    return RMS * math.sqrt(max(gradient.shape)) * orthogonal(gradient.lerp(momentum, MOMENTUM))


def hidden_matrices(network: nn.Module) -> frozenset[str]:
    """Return the names of a network's parameters for Muon: weights of linear layers, except language-model outputs.

    Args:
        network: its language models name their own output layer (`get_output_embeddings`).
    """
    named: list[Any] = [part for part in network.modules() if hasattr(part, "get_output_embeddings")]
    last = {id(part.get_output_embeddings()) for part in named}
    return frozenset(
        f"{name}.weight" if name else "weight"
        for name, part in network.named_modules()
        if isinstance(part, nn.Linear) and id(part) not in last
    )
