"""ReinFlow's noise network: the std of the noise added at each denoising step in training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robotrl.policies.networks.mlp import Mlp, TimeFeatures


class NoiseNet(nn.Module):
    """Bounded standard deviation of each element of a chunk, from context and denoising time (ReinFlow 2505.22094).

    A tanh output interpolates the log-std between the logarithms of two bounds, so that the noise can neither vanish
    nor grow without limit. The network is not used at deployment.

    Args:
        context_width: D', the leading part of the context that it reads; see `HasChain.context_width`.
        horizon: H.
        action_width: A.
        low: smallest standard deviation, above 0, in normalised action units.
        high: largest, above `low`.
        hidden: widths of the hidden layers.
    """

    log_bounds: Tensor

    def __init__(
        self,
        context_width: int,
        horizon: int,
        action_width: int,
        low: float,
        high: float,
        hidden: Sequence[int] = (64, 64),
    ) -> None:
        super().__init__()
        self.context_width, self.horizon, self.action_width = context_width, horizon, action_width
        self.time = TimeFeatures(16)
        self.net = Mlp(context_width + 16, hidden, horizon * action_width, last_gain=0.1)
        self.register_buffer("log_bounds", torch.zeros(2))
        self.set_bounds(low, high)

    def set_bounds(self, low: float, high: float) -> None:
        """Set other bounds, in place.

        Raises:
            ValueError: not 0 < low < high.
        """
        if not 0 < low < high:
            raise ValueError(f"noise bounds are low={low}, high={high}: expected 0 < low < high")
        self.log_bounds.copy_(torch.tensor([low, high], dtype=torch.float64).log())

    def forward(self, ctx: Tensor, t: Tensor) -> Tensor:
        """Standard deviations (B, H, A) for contexts (B, D) and times t (B,)."""
        out = self.net(torch.cat([ctx[:, : self.context_width], self.time(t)], dim=1)).tanh()
        low, high = self.log_bounds.unbind()
        return (0.5 * (low + high) + out * (0.5 * (high - low))).exp().view(-1, self.horizon, self.action_width)
