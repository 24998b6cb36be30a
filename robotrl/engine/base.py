"""What learners ask of an engine, and what every engine does alike: minibatches, members of groups, checks."""

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
ENGINE_MODES: tuple[EngineMode, ...] = get_args(EngineMode)


@contextmanager
def torch_threads(count: int | None) -> Generator[None]:
    """Compute with so many threads of torch, and with as many as before afterwards; None changes nothing.

    A second thread pays in updates, whose products are large. In rollouts, whose are small, it would spin between
    them while the physics wants its core.
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
    """What `Engine.run` did, one entry for each minibatch."""

    info: dict[str, Tensor]
    """(n,) each: what the loss logs, "loss", and "grad_norm/PREFIX" of each trained group before clipping."""

    def mean(self) -> dict[str, float]:
        """Means over the minibatches."""
        return {name: float(values.mean()) for name, values in self.info.items()}


class Updater(Protocol):
    """What learners ask of an engine; see `Engine`."""

    minibatch: int
    carry: Tensor
    compile_s: float
    sharded: bool
    """Whether what learns is spread over the processes."""

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        ...

    def run(self, data: Mapping[str, Tensor], order: Tensor, capacity: int, what: str, phase: str = "") -> Updates:
        """Update once for each minibatch."""
        ...

    def averages(self, prefix: str) -> dict[str, Tensor]:
        """The averaged parameters of a network."""
        ...

    def write_average(self, prefix: str, module: nn.Module) -> None:
        """Copy them into another."""
        ...

    def state(self) -> dict[str, Any]:
        """What an exact resume needs besides the networks' own parameters."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave."""
        ...


def members_of(loss: LossModule, groups: Sequence[ParameterGroup]) -> list[list[tuple[str, nn.Parameter]]]:
    """The parameters of each group that require a gradient, with their names.

    Raises:
        ConfigError: one is in no group or in two.
    """
    named = [(name, p) for name, p in loss.named_parameters() if p.requires_grad]
    members = [[(name, p) for name, p in named if name.startswith(group.prefix)] for group in groups]
    if sorted(name for group in members for name, _ in group) != sorted(name for name, _ in named):
        raise ConfigError(
            f"engine groups {[g.prefix for g in groups]} do not divide the parameters {[n for n, _ in named]}:"
            " expected each in exactly one"
        )
    return members


def check_rows(minibatch: int, microbatch: int | None) -> None:
    """Refuse sizes that no minibatch, or no part of one, can have.

    Raises:
        ConfigError: a minibatch of no row, or one that parts of `microbatch` rows do not make up.
    """
    check_at_least("algo.minibatch", minibatch, 1)
    if microbatch is not None and not (microbatch > 0 and minibatch % microbatch == 0):
        raise out_of_range("algo.microbatch", microbatch, f"a divisor of the {minibatch} rows of a minibatch")


def minibatches(order: Tensor, minibatch: int) -> Tensor:
    """(n, M) row numbers; the last minibatch is filled up from the beginning of the order."""
    count = math.ceil(len(order) / minibatch)
    return order.repeat(math.ceil(count * minibatch / len(order)))[: count * minibatch].view(count, minibatch)


def check_updates(info: Mapping[str, Tensor], what: str) -> None:
    """Refuse to go on from an update that could not be made.

    Args:
        info: (n,) each, what was logged of the updates.
        what: where this is in training.

    Raises:
        NumericsError: a loss or a gradient is not finite; the minibatch and what else is not finite are named.
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
