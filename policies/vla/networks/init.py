"""Weights to begin with, for small networks that are trained from nothing.

The published networks are made to be loaded. Their classes begin with a deviation of 0.02 everywhere, which suits
widths of thousands and months of training: at a width of a hundred a picture enters the language model fifty times as
faint as a word, and what one patch shows is lost behind the first layer. Here every map keeps the size of what goes
through it, positions are as plain as contents, and patches begin blind to a uniform background.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

RESIDUAL = ("o_proj", "down_proj", "out_proj", "attn.proj", "mlp.fc2")
"""Ends of the names of maps that are added to what goes past them."""
HEADS = ("lm_head", "action_out_proj")
"""Ends of the names of the last maps, which begin as they are: small."""
AFTER_GELU = ("projector.fc2", "projector.fc3")
"""Ends of the names of maps whose input a GELU has shrunk, and that no norm follows."""
CONNECTOR = "modality_projection.proj"
"""End of the name of the map from patches to embeddings, in SmolVLA."""
SPARSE = 3.0
"""Gain of patches: what is to be seen covers about a tenth of one."""


@torch.no_grad()
def begin(net: nn.Module, layers: int, words: float = 1.0, pictures: float = 1.0) -> None:
    """Give a network its first weights.

    Args:
        net: with the parameter names of OpenVLA, SmolVLA or pi0; norms are left as they are.
        layers: of its language model; what is added in each of them is so much smaller that the sum keeps its size.
        words: what the network multiplies embeddings of words with before it uses them ...
        pictures: ... and those of pictures.
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
    """Of a linear map."""
    if name.endswith(RESIDUAL):
        return (2 * layers) ** -0.5
    if name.endswith(AFTER_GELU):
        return 2**0.5
    return 1 / pictures if name.endswith(CONNECTOR) else 1.0


def _patches(module: nn.Conv2d) -> None:
    """Filters that sum to zero over the patch, for each colour, so that a uniform patch is nothing."""
    nn.init.normal_(module.weight, std=SPARSE * module.weight[0].numel() ** -0.5)
    module.weight -= module.weight.mean(dim=(2, 3), keepdim=True)
    _no_bias(module)


def _no_bias(module: nn.Module) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if name == "bias":
            nn.init.zeros_(parameter)


def positions(side: int, width: int) -> Tensor:
    """(1, side * side, width) sines and cosines of row and column, row by row.

    Wavelengths go from twice the picture to two patches.

    Args:
        side: patches of a side.
        width: a multiple of 4.
    """
    turns = torch.linspace(0, math.log2(max(side, 2)), width // 4).exp2() / side
    angle = math.pi * (torch.arange(side)[:, None] + 0.5) * turns
    one = torch.cat([angle.sin(), angle.cos()], dim=1)
    down, across = one[:, None].expand(-1, side, -1), one[None].expand(side, -1, -1)
    return torch.cat([down, across], dim=2).reshape(1, side * side, width)
