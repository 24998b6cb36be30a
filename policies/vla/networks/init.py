"""Weight initialization for small VLA networks trained from scratch.

The published networks are meant to be loaded. Their classes initialize all weights with std 0.02, which suits widths of
thousands and long training. At a width of a hundred, image embeddings would be fifty times smaller than word
embeddings, and a patch's content would be lost after the first layer. Here each linear map preserves the scale of its
input, position embeddings have the scale of the contents, and patch embeddings ignore a uniform background.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

RESIDUAL = ("o_proj", "down_proj", "out_proj", "attn.proj", "mlp.fc2")
"""Name suffixes of linear maps whose output is added to the residual stream."""
HEADS = ("lm_head", "action_out_proj")
"""Name suffixes of output layers, which keep their small default initialization."""
AFTER_GELU = ("projector.fc2", "projector.fc3")
"""Name suffixes of maps after a GELU (which reduces the scale) and without a later norm."""
CONNECTOR = "modality_projection.proj"
"""Name suffix of SmolVLA's map from patches to embeddings."""
SPARSE = 3.0
"""Gain of the patch embedding: relevant objects cover about a tenth of a patch."""


@torch.no_grad()
def begin(net: nn.Module, layers: int, words: float = 1.0, pictures: float = 1.0) -> None:
    """Initialize a network's weights, in place.

    Args:
        net: with the parameter names of OpenVLA, SmolVLA or pi0; norms are left unchanged.
        layers: layers of its language model; residual outputs are scaled down so that their sum keeps its scale.
        words: factor by which the network multiplies word embeddings ...
        pictures: ... and image embeddings.
    """
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d):
            _patches(module)
        elif isinstance(module, nn.Embedding):
            if name.endswith("position_embedding"):
                module.weight.copy_(positions(math.isqrt(module.num_embeddings), module.embedding_dim)[0])
            else:
                nn.init.normal_(module.weight, std=1 / words)
        elif isinstance(module, nn.Linear) and not name.endswith(HEADS):
            nn.init.normal_(module.weight, std=_gain(name, layers, pictures) * module.in_features**-0.5)
            _no_bias(module)
    for name, parameter in net.named_parameters():
        if name.endswith("pos_embed"):
            parameter.copy_(positions(math.isqrt(parameter.shape[1]), parameter.shape[2]))


def _gain(name: str, layers: int, pictures: float) -> float:
    """Gain of a linear map."""
    if name.endswith(RESIDUAL):
        return (2 * layers) ** -0.5
    if name.endswith(AFTER_GELU):
        return 2**0.5
    return 1 / pictures if name.endswith(CONNECTOR) else 1.0


def _patches(module: nn.Conv2d) -> None:
    """Filters with zero sum over the patch for each color, so that a uniform patch gives zero."""
    nn.init.normal_(module.weight, std=SPARSE * module.weight[0].numel() ** -0.5)
    module.weight -= module.weight.mean(dim=(2, 3), keepdim=True)
    _no_bias(module)


def _no_bias(module: nn.Module) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if name == "bias":
            nn.init.zeros_(parameter)


def positions(side: int, width: int) -> Tensor:
    """Position embeddings (1, side * side, width): sines and cosines of row and column, row by row.

    Wavelengths range from twice the image to two patches.

    Args:
        side: patches per side.
        width: a multiple of 4.
    """
    turns = torch.linspace(0, math.log2(max(side, 2)), width // 4).exp2() / side
    angle = math.pi * (torch.arange(side)[:, None] + 0.5) * turns
    one = torch.cat([angle.sin(), angle.cos()], dim=1)
    down, across = one[:, None].expand(-1, side, -1), one[None].expand(side, -1, -1)
    return torch.cat([down, across], dim=2).reshape(1, side * side, width)
