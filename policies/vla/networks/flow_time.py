"""Time encoding of flow VLAs: sines and cosines with geometrically spaced periods.

Their published time runs from 1 (noise) to 0 (action), ours the other way; the networks convert it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def time_features(t: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """Time features (B, width) of published times (B,), computed in float64, returned in `t`'s dtype.

    Args:
        t: 1 for noise, 0 for the action.
        width: even; the first half are sines.
        min_period: shortest period.
        max_period: longest.
    """
    # Python floats, since an exporter may compute in single precision what torch computes in double
    parts = [index / max(width // 2 - 1, 1) for index in range(width // 2)]
    rates = [2 * math.pi / (min_period * (max_period / min_period) ** part) for part in parts]
    angle = torch.tensor(rates, dtype=torch.float64, device=t.device) * t.to(torch.float64)[:, None]
    return torch.cat([angle.sin(), angle.cos()], dim=1).to(t.dtype)
