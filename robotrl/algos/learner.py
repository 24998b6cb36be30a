"""What the runner and an algorithm agree on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from robotrl.errors import NumericsError
from robotrl.spec import VecSim


class Setup(NamedTuple):
    """What an algorithm is made from."""

    make_sim: Callable[[], VecSim]
    """Makes the training sim; algorithms that learn from data alone do not call it but for its specs."""
    policy_cfg: Any
    """Config of the policy to build, when there is none to start from."""
    init_policy: nn.Module | None
    """The policy to fine-tune, or None to start from scratch."""
    dataset: Path | None
    """Demonstrations, for algorithms that learn from them."""
    seed: int


class Learner(Protocol):
    """One algorithm at work. The runner calls `iterate` until `iterations` are done, and saves `state`."""

    iterations: int
    env_steps: int
    """Env steps taken in training so far."""
    policy: Any
    """The policy to evaluate and export (EMA weights where the algorithm keeps them)."""

    def iterate(self) -> dict[str, float]:
        """One iteration; gives the scalars to log."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything an exact resume needs, the sim and random streams of its own included."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` gave."""
        ...


def descend(
    optimizer: torch.optim.Optimizer, loss: Tensor, parameters: Sequence[Tensor], grad_norm: float, what: str
) -> None:
    """One gradient step, the gradient clipped to a norm.

    Args:
        optimizer: of the parameters.
        loss: to descend.
        parameters: whose gradient is clipped.
        grad_norm: largest norm.
        what: what to call the loss in errors, e.g. "iteration 3: pg_loss".

    Raises:
        NumericsError: the loss or its gradient is not finite; the parameters are left as they were.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, grad_norm))
    for name, value in ((what, float(loss.detach())), (f"the gradient of {what}", norm)):
        if not math.isfinite(value):
            raise NumericsError(f"{name} is {value}: expected finite; the last checkpoint is intact")
    optimizer.step()


@torch.no_grad()
def average_into(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the weights of `average` towards those of `model`: `decay * average + (1 - decay) * model`."""
    into: list[Tensor] = list(average.parameters())
    new: list[Tensor] = list(model.parameters())
    # one fused call for all weights; torch has no public name for it
    torch._foreach_lerp_(into, new, 1 - decay)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class LearnerCfg(Protocol):
    """Config of an algorithm; knows how to build its learner."""

    def build(self, setup: Setup) -> Learner:
        """The learner, ready for its first iteration."""
        ...
