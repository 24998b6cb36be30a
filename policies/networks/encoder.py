"""Encoders of observations: a small convolutional network for images, Deep Sets for masked lists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError, unknown

Pool = Literal["flatten", "softmax"]
POOLS = ("flatten", "softmax")
ImageNorm = Literal["none", "layer"]
NORMS = ("none", "layer")


class ImageEncoder(nn.Module):
    """Image encoder: convolutions of stride 2, then a linear layer, LayerNorm and tanh (as DrQ-v2, 2107.09645).

    Args:
        shape: (h, w, channels) of an image: three colors, or the layers of a map.
        channels: of the convolutions; each halves height and width.
        features: width of the output.
        pool: "flatten" keeps all outputs of the last convolution; "softmax" keeps the expected position of each channel
            (spatial softmax, Finn et al. 2016), which is far smaller and holds positions only.
        norm: "layer" normalizes each convolution's output over channels, height and width (LayerNorm, Ba et al. 2016),
            with a learned gain and offset for each channel.

    Raises:
        ConfigError: no convolution, a width below 1, more convolutions than the image can be halved, or an unknown pool
            or norm.
    """

    grid: Tensor

    def __init__(
        self, shape: tuple[int, ...], channels: Sequence[int], features: int, pool: Pool, norm: ImageNorm = "none"
    ) -> None:
        super().__init__()
        if pool not in POOLS:
            raise unknown("policy.image_pool", str(pool), POOLS)
        if norm not in NORMS:
            raise unknown("policy.image_norm", str(norm), NORMS)
        if not channels or min(*channels, features) < 1:
            raise ConfigError(
                f"policy.image_channels is {tuple(channels)}, policy.image_features is {features}:"
                " expected one convolution or more, and widths of 1 or more"
            )
        height, width, colors = shape
        if min(height, width) < 2 ** len(channels):
            raise ConfigError(
                f"policy.image_channels has {len(channels)} entries: expected fewer for pictures of {height} x {width},"
                " each halves them"
            )
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([colors, *channels]):
            layers.append(nn.Conv2d(before, after, 3, stride=2, padding=1))
            if norm == "layer":
                layers.append(nn.GroupNorm(1, after))
            layers.append(nn.ReLU())
            height, width = (height + 1) // 2, (width + 1) // 2
        self.layers = nn.Sequential(*layers)
        self._pool = pool
        rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).flatten(1)
        self.register_buffer("grid", grid, persistent=False)
        flat = 2 * channels[-1] if pool == "softmax" else height * width * channels[-1]
        self.head = nn.Sequential(nn.Linear(flat, features), nn.LayerNorm(features), nn.Tanh())

    def forward(self, pictures: Tensor) -> Tensor:
        """Features (B, features) of images (B, h, w, channels), 0 to 255, uint8 or float."""
        x = pictures.permute(0, 3, 1, 2).to(self.grid.dtype) / 255 - 0.5
        x = self.layers(x).flatten(2)
        if self._pool == "softmax":
            x = x.softmax(-1) @ self.grid.T
        return self.head(x.flatten(1)).to(self.grid.dtype)


def mask_of(key: str) -> str:
    """Key of the mask that marks the valid rows of a list."""
    return f"{key}_mask"


class SetEncoder(nn.Module):
    """Set encoder: two shared layers on each row of a list, then max pooling (Deep Sets, Zaheer et al. 2017).

    All rows share their weights; a layer on the flattened list would learn each row separately.

    Args:
        width: D, width of a row.
        features: width of each layer and of the output.
    """

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, features), nn.ReLU(), nn.Linear(features, features), nn.ReLU())

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """(B, features) of the rows (B, K, D) whose `mask` (B, K) is not 0; zeros if there is none."""
        return (self.layers(rows) * (mask != 0)[..., None]).amax(dim=1).to(rows.dtype)
