"""Interface of update engines, and code that all of them share: minibatches, group members, checks."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn

from robotrl.engine.update import LossModule, ParameterGroup
from robotrl.errors import ConfigError, NumericsError, check_at_least, out_of_range

EngineMode = Literal["auto", "compiled", "eager"]
NO_CARRY: Mapping[str, float] = {}
ENGINE_MODES: tuple[EngineMode, ...] = get_args(EngineMode)


@contextmanager
def torch_threads(count: int | None) -> Generator[None]:
    """Set torch's number of threads in this context; None changes nothing.

    A second thread helps in updates, whose products are large. In rollouts, whose products are small, it would only
    spin and take a core from the physics.
    """
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Updates(NamedTuple):
    """Log of `Engine.run`, one entry per minibatch."""

    info: dict[str, Tensor]
    """(n,) per name: the loss's scalars, "loss", and "grad_norm/PREFIX" of each trained group before clipping."""

    def mean(self) -> dict[str, float]:
        """Return the means over the minibatches."""
        return {name: float(values.mean()) for name, values in self.info.items()}


class Updater(Protocol):
    """Interface that learners use of an engine; see `Engine`."""

    minibatch: int
    carry: dict[str, Tensor]
    """Carry of the next minibatch: scalars by name, into which a learner may write between calls of `run`."""
    compile_s: float
    sharded: bool
    """True if the trained weights are sharded over the processes."""

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        ...

    def run(self, data: Mapping[str, Tensor], order: Tensor, capacity: int, what: str, phase: str = "") -> Updates:
        """Make one update per minibatch."""
        ...

    def averages(self, prefix: str) -> dict[str, Tensor]:
        """Return the averaged parameters of a network."""
        ...

    def write_average(self, prefix: str, module: nn.Module) -> None:
        """Copy the averaged parameters of a network into another network."""
        ...

    def state(self) -> dict[str, Any]:
        """State for an exact resume, except the networks' own parameters."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        ...


def members_of(loss: LossModule, groups: Sequence[ParameterGroup]) -> list[list[tuple[str, nn.Parameter]]]:
    """Return the trainable parameters of each group, with their names.

    Raises:
        ConfigError: a parameter is in no group or in two.
    """
    named = [(name, p) for name, p in loss.named_parameters() if p.requires_grad]
    members = [[(name, p) for name, p in named if name.startswith(group.prefix)] for group in groups]
    if sorted(name for group in members for name, _ in group) != sorted(name for name, _ in named):
        raise ConfigError(
            f"engine groups {[g.prefix for g in groups]} do not divide the parameters {[n for n, _ in named]}:"
            " expected each in exactly one"
        )
    return members


def first_carry(carry: Mapping[str, float], device: torch.device) -> Tensor:
    """Return the numbers of a carry (C,), see `UpdateState`."""
    return torch.tensor(list(carry.values()) or [0.0], dtype=torch.float32, device=device)


def check_rows(minibatch: int, microbatch: int | None) -> None:
    """Check the sizes of minibatch and microbatch.

    Raises:
        ConfigError: a minibatch is below 1, or not a multiple of the microbatch.
    """
    check_at_least("algo.minibatch", minibatch, 1)
    if microbatch is not None and not (microbatch > 0 and minibatch % microbatch == 0):
        raise out_of_range("algo.microbatch", microbatch, f"a divisor of the {minibatch} rows of a minibatch")


def minibatches(order: Tensor, minibatch: int) -> Tensor:
    """Return (n, M) row indices; the last minibatch is filled up from the beginning of the order."""
    count = math.ceil(len(order) / minibatch)
    return order.repeat(math.ceil(count * minibatch / len(order)))[: count * minibatch].view(count, minibatch)


def check_updates(info: Mapping[str, Tensor], what: str) -> None:
    """Check that losses and gradients of updates are finite.

    Args:
        info: (n,) each, the log of the updates.
        what: position in training, for the error, e.g. "iteration 3".

    Raises:
        NumericsError: a loss or a gradient is not finite; names the minibatch and other values that are not finite.
    """
    for name in ("loss", *(name for name in info if name.startswith("grad_norm/"))):
        bad = torch.nonzero(~torch.isfinite(info[name]))
        if len(bad):
            index = int(bad[0, 0])
            parts = {n: float(v[index]) for n, v in info.items() if not math.isfinite(float(v[index]))}
            raise NumericsError(
                f"{what}, minibatch {index}: {name} is {float(info[name][index])} (not finite: {', '.join(parts)}):"
                " expected finite; the last checkpoint is intact"
            )
