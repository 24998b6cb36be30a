"""Value of a policy along the steps of a learned model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from robotrl.fn.candidates.select import Value

Act = Callable[[Tensor, int], Tensor]
"""Function from contexts (B, D) and the number of the step to chunks (B, H, A)."""
Move = Callable[[Tensor, Tensor], Tensor]
"""Function from contexts (B, D) and chunks (B, H, A) to the contexts (B, D) after them."""


def value_along(ctx: Tensor, steps: int, act: Act, value: Value, move: Move) -> Tensor:
    """Sum of Q(c_h, a_h) over h = 0 ... steps - 1, (B,) float64: RL-100's J of each start (arXiv 2510.14830).

    Each c_{h+1} is what the model makes of c_h and a_h. With one step, it is the value of the first decision, and no
    model is asked. The sum has no discount: each of its terms is a return, and all starts have as many of them.

    Args:
        ctx: (B, D) contexts of the starts.
        steps: 1 or more.
        act: the policy.
        value: the critics.
        move: the model.
    """
    chunk = act(ctx, 0)
    total = value(ctx, chunk).double()
    for step in range(1, steps):
        ctx = move(ctx, chunk)
        chunk = act(ctx, step)
        total = total + value(ctx, chunk).double()
    return total
