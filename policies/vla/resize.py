"""Resizing of images to a network's square input, as in the published policies."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad


def resize_with_pad(pictures: Tensor, side: int, centered: bool) -> Tensor:
    """Resize with the aspect ratio kept and pad with black: images (B, side, side, 3), 0 to 255.

    Bilinear without antialiasing, as published.

    Args:
        pictures: (B, h, w, 3) uint8; returned unchanged if they have the right size.
        side: side of the output, in pixels.
        centered: pad on both sides (openpi), not on the left and the top (lerobot's SmolVLA).
    """
    height, width = pictures.shape[1:3]
    if height == width == side:
        return pictures
    ratio = max(height, width) / side
    size = int(height / ratio), int(width / ratio)
    channels = pictures.permute(0, 3, 1, 2).to(torch.float32)
    resized = interpolate(channels, size=size, mode="bilinear", align_corners=False)
    above, left = side - size[0], side - size[1]
    if centered:
        above, left = above // 2, left // 2
    around = (left, side - size[1] - left, above, side - size[0] - above)
    return pad(resized, around).permute(0, 2, 3, 1)
