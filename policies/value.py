"""State value network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from robotrl.policies.nets import Mlp


class ValueNet(nn.Module):
    """An MLP from a context to a value.

    Args:
        context_width: D of the context, a normalised observation.
        hidden: widths of the hidden layers.
    """

    def __init__(self, context_width: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.net = Mlp(context_width, hidden, 1, last_gain=0.1)

    def forward(self, ctx: Tensor) -> Tensor:
        """(B, D) to (B,)."""
        return self.net(ctx).squeeze(-1)
