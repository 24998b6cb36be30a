"""Muon: the matrices inside a network move by their momentum made orthogonal (Jordan et al. 2024).

Adam scales each number of a gradient for itself. Where a matrix maps one hidden state to another, what counts is the
map: its gradient is nearly of low rank, and a few directions drown the others. Muon moves all directions that the
gradient has by as much. It is for matrices between hidden states; embeddings, what says tokens, biases and scales have
another geometry, and stay with Adam. Scaled as in Liu et al. 2025 (2502.16982), a step's numbers have the root mean
square that Adam's typically have, so one learning rate does for both.
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
"""Coefficients a, b, c of the iteration X -> a X + (b X Xt + c (X Xt)^2) X, Jordan's: of greatest slope at 0, so that
singular values of any size come near 1 (0.7 to 1.2) in few steps; they do not converge to it."""
RMS = 0.2
"""Root mean square of the numbers of a step, for each unit of the learning rate."""


def orthogonal(matrix: Tensor) -> Tensor:
    """(m, n) nearly the orthogonal matrix nearest to a matrix: its singular values, but for the smallest, about 1.

    Args:
        matrix: (m, n); of zeros, the result is of zeros, too. The products are made in bfloat16.
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
    """(m, n) what a matrix moves against, for each unit of the learning rate.

    Args:
        momentum: (m, n) mean of the gradients, this one's included.
        gradient: (m, n) that of now; the mean is looked ahead from by it (Nesterov).
    """
    return RMS * math.sqrt(max(gradient.shape)) * orthogonal(gradient.lerp(momentum, MOMENTUM))


def hidden_matrices(network: nn.Module) -> frozenset[str]:
    """Names of the parameters of a network that Muon is for: weights of linear layers, but what says tokens.

    Args:
        network: parts of it that are language models name their own last layer (`get_output_embeddings`).
    """
    named: list[Any] = [part for part in network.modules() if hasattr(part, "get_output_embeddings")]
    last = {id(part.get_output_embeddings()) for part in named}
    return frozenset(
        f"{name}.weight" if name else "weight"
        for name, part in network.named_modules()
        if isinstance(part, nn.Linear) and id(part) not in last
    )
