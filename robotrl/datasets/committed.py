"""Cloning of policies that know the actions under way: rows as they are when an observation is some steps old.

With a delay of d steps the policy sees the observation at t and the actions t to t + d - 1, which are decided, and
gives those from t + d on. In training the delay of each row is drawn (arXiv 2512.05964). There the committed actions
are clean tokens of the chunk itself; here they are observations beside it, and the chunk holds the free actions alone.
The distribution that is learned is the same, and the denoising chain stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robotrl.spec import COMMITTED, COMMITTED_MASK


def delayed_rows(chunk: Tensor, valid: Tensor, delay: Tensor, steps: int) -> dict[str, Tensor]:
    """Rows of a minibatch whose actions are executed `delay` steps after the observation.

    Args:
        chunk: (M, H + D, A) recorded actions from the observation on, in the sim's units.
        valid: (M, H + D) bool, False past an episode's end.
        delay: (M,) int64, 0 to D.
        steps: D, 1 or more.

    Returns:
        "chunk" (M, H, A) and "valid" (M, H), from the first free action on, and the observations of the committed ones,
        which are 0 where there is none; see `robotrl.spec.committed_specs`.
    """
    horizon = chunk.shape[1] - steps
    at = delay[:, None] + torch.arange(horizon, device=chunk.device)
    mask = torch.arange(steps, device=chunk.device) < delay[:, None]
    committed = torch.where(mask[..., None], chunk[:, :steps], 0.0)
    return {
        "chunk": chunk.gather(1, at[..., None].expand(-1, -1, chunk.shape[2])),
        "valid": valid.gather(1, at),
        f"obs/{COMMITTED}": committed.flatten(1),
        f"obs/{COMMITTED_MASK}": mask.to(chunk.dtype),
    }
