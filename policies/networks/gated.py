"""Gated recurrent unit, in operations that a robot's runtime computes one decision at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GatedUnit(nn.Module):
    """Gated recurrent unit (GRU, Cho et al. 2014), with the equations of `torch.nn.GRUCell`.

    With x the input and m the memory, gates r and z are sigmoids, and

        n = tanh(W x + b + r (U m + c))          next m = n + z (m - n)

    The part of the gates that depends on the input alone is computed for all steps of a segment at once. Recurrent
    weights start orthogonal, biases at 0.

    Args:
        inputs: width of the input.
        width: M, width of the memory; each element stays between -1 and 1.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.inputs = nn.Linear(inputs, 3 * width)
        self.recurrent = nn.Linear(width, 3 * width)
        with torch.no_grad():
            for gate in self.recurrent.weight.chunk(3):
                nn.init.orthogonal_(gate)
            self.inputs.bias.zero_()
            self.recurrent.bias.zero_()

    def gates(self, x: Tensor) -> Tensor:
        """Part of the gates (..., 3 M), in the order r, z, n, that inputs (..., D) alone determine."""
        return self.inputs(x).to(x.dtype)

    def forward(self, gates: Tensor, memory: Tensor) -> Tensor:
        """Next memory (B, M) from the inputs' part of the gates (B, 3 M) and the memory (B, M)."""
        # under autocast the layer returns bf16: the memory keeps its own dtype
        r, z, n = gates.chunk(3, dim=-1)
        own_r, own_z, own_n = self.recurrent(memory).to(memory.dtype).chunk(3, dim=-1)
        new = torch.tanh(n + torch.sigmoid(r + own_r) * own_n)
        return new + torch.sigmoid(z + own_z) * (memory - new)
