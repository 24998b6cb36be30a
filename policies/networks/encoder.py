"""From pictures and lists to features: a small convolutional network for each camera, shared layers for rows."""

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
    """Convolutions of stride 2 over one camera's pictures, then a layer, LayerNorm and tanh (as DrQ-v2, 2107.09645).

    Args:
        shape: (h, w, channels) of a picture: three colours, or as many layers as a map has.
        channels: of the convolutions; each halves height and width.
        features: width of what comes out.
        pool: "flatten" takes all that the last convolution gives, "softmax" the expected place of each of its channels
            (Finn et al. 2016), which is far less and says where, not what.
        norm: "layer" takes out the mean and the deviation of all that a convolution gives of a picture, and learns a
            gain and an offset for each channel (LayerNorm, Ba et al. 2016, over channels, height and width).

    Raises:
        ConfigError: no convolution, a width below 1, more convolutions than the picture can be halved, or unknown pool
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
        height, width, colours = shape
        if min(height, width) < 2 ** len(channels):
            raise ConfigError(
                f"policy.image_channels has {len(channels)} entries: expected fewer for pictures of {height} x {width},"
                " each halves them"
            )
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([colours, *channels]):
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
        """(B, h, w, channels), 0 to 255, bytes or floats, to (B, features)."""
        x = pictures.permute(0, 3, 1, 2).to(self.grid.dtype) / 255 - 0.5
        x = self.layers(x).flatten(2)
        if self._pool == "softmax":
            x = x.softmax(-1) @ self.grid.T
        return self.head(x.flatten(1)).to(self.grid.dtype)


def mask_of(key: str) -> str:
    """Key of the array that says which rows of a list are there."""
    return f"{key}_mask"


class SetEncoder(nn.Module):
    """The same two layers over each row of a list, then the largest of each feature (Zaheer et al. 2017, Deep Sets).

    What is learned of one row holds for all of them; a plain layer over rows laid end to end learns each apart.

    Args:
        width: D of a row.
        features: of each row, and of the list.
    """

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, features), nn.ReLU(), nn.Linear(features, features), nn.ReLU())

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """(B, features) of rows (B, K, D), of which those count where `mask` (B, K) is not 0; zeros of none."""
        return (self.layers(rows) * (mask != 0)[..., None]).amax(dim=1).to(rows.dtype)
