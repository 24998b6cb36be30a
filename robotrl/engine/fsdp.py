"""The update engine with sharded weights (FSDP2), for models too large to train in one process.

Parameters, gradients and Adam's moments are sharded over the processes of a `DistributedContext`; a block's parameters
are gathered while the block is computed (Zhao et al. 2023, 2304.11277, in torch's `fully_shard`). The update is the one
of `robotrl.engine.update`, on the process's shard. The networks of the given loss stay whole: they act, are evaluated
and saved, and get the new weights after each run of updates. So a process holds the whole weights once, but only its
shard of gradients and moments.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from robotrl.engine.base import (
    NO_CARRY,
    EngineMode,
    Updates,
    check_rows,
    check_updates,
    first_carry,
    members_of,
    minibatches,
    torch_threads,
)
from robotrl.engine.distributed import DistributedContext, mesh
from robotrl.engine.flat_params import FlatViews, in_turn
from robotrl.engine.update import (
    Context,
    LossAndGradient,
    LossModule,
    LossOut,
    Names,
    ParameterGroup,
    Update,
    UpdateState,
    named,
    vector,
)
from robotrl.errors import CapabilityError, ConfigError


class ShardedEngine:
    """Trains the parameters of a loss module with Adam, sharded over the processes; the interface is `Engine`'s.

    Args:
        loss: the loss module; its networks get the new weights at the end of each run.
        groups: parameter groups; every trainable parameter belongs to exactly one; without averages and Muon.
        minibatch: M, rows of a minibatch of this process.
        carry: initial carry of the loss: numbers by name.
        mode: must not be "compiled": gathering and resharding cannot be one compiled function.
        betas: decay of Adam's moments.
        eps: Adam's epsilon.
        updates_per_call: ignored.
        updates: ignored.
        microbatch: m, rows per forward and backward pass; must divide M.
        threads: torch threads during updates; None: unchanged.
        world: the processes; two or more.

    Raises:
        ConfigError: a setting out of range, an average, Muon, a compiled engine, or a parameter in no group or in two.
        CapabilityError: there is one process.
    """

    sharded = True
    compile_s = 0.0
    """Always 0: nothing is compiled."""

    def __init__(
        self,
        loss: LossModule,
        groups: Sequence[ParameterGroup],
        *,
        minibatch: int,
        carry: Mapping[str, float] = NO_CARRY,
        mode: EngineMode = "eager",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
        updates_per_call: int = 1,
        updates: int | None = None,
        microbatch: int | None = None,
        threads: int | None = None,
        world: DistributedContext,
    ) -> None:
        del updates_per_call, updates
        if world.size < 2:
            raise CapabilityError("fsdp is True and there is one process: expected two or more, started by torchrun")
        if mode == "compiled":
            raise ConfigError("algo.engine is 'compiled' and fsdp is True: expected \"eager\"")
        if any(group.average is not None for group in groups):
            raise ConfigError("algo.ema is above 0 and fsdp is True: expected 0, averages are kept of whole weights")
        if any(group.muon for group in groups):
            raise ConfigError("algo.muon is above 0 and fsdp is True: expected 0, Muon needs a matrix as a whole")
        check_rows(minibatch, microbatch)
        self.minibatch = minibatch
        self._microbatch, self._threads, self._world = microbatch or minibatch, threads, world
        self._carried = tuple(carry)
        members = members_of(loss, groups)
        self._whole = [p for pairs in members for _, p in pairs]
        self.device = self._whole[0].device
        for parameter in self._whole:
            world.copy_first_(parameter.data)
        # a copy is trained, the given networks act
        self._loss = copy.deepcopy(loss)
        spread(self._loss, self.device, world)
        self._constants = list(zip(self._loss.buffers(), loss.buffers(), strict=True))
        """Pairs (buffer of the copy, given buffer that it follows), e.g. of a running normalization."""
        self._parts: list[Any] = [p for pairs in members_of(self._loss, groups) for _, p in pairs]
        sizes = [sum(self._local(p).numel() for p in self._parts[a:b]) for a, b in in_turn(map(len, members))]
        self._update = Update(
            self._loss,
            groups,
            FlatViews([], []),
            FlatViews([], []),
            in_turn(sizes),
            betas,
            eps,
            self._carried,
            across=self._across,
        )
        flat = torch.cat([self._local(p).detach().flatten() for p in self._parts])
        numbers = first_carry(carry, self.device)
        self.carry = named(self._carried, numbers)
        """See `Updater`."""
        self._now = UpdateState(
            flat,
            torch.zeros_like(flat),
            torch.zeros_like(flat),
            flat.new_zeros(len(groups)),
            flat.new_ones(2, len(groups)),
            flat[:0].clone(),
            numbers,
        )

    def run(self, data: Mapping[str, Tensor], order: Tensor, capacity: int, what: str, phase: str = "") -> Updates:
        """Make one update per minibatch; see `Engine.run`. All processes call it with the same number of minibatches.

        Raises:
            NumericsError: a loss or gradient is not finite; that update was skipped, those before it were made.
        """
        del capacity
        stats: list[dict[str, Tensor]] = []
        for own, given in self._constants:
            own.copy_(given)
        with torch_threads(self._threads):
            for rows in minibatches(order, self.minibatch):
                found = self._measure(data, rows, phase)
                info = self._update.step_(self._now, self._now.flat.new_ones(()), found)
                self._take(self._now.flat)
                stats.append(info)
        table = {name: torch.stack([info[name] for info in stats]) for name in stats[0]}
        self._publish()
        check_updates(table, what)
        return Updates(table)

    def state(self) -> dict[str, Any]:
        """State for an exact resume, gathered, without the networks' parameters; all processes call it together."""
        flat = {name: self._gathered(getattr(self._now, name)) for name in ("first", "second")}
        rest = {name: getattr(self._now, name) for name in ("steps", "powers", "average", "carry")}
        return {**flat, **rest}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, which may be `Engine`'s; the weights are those of the networks."""
        for name in ("first", "second"):
            getattr(self._now, name).copy_(self._divided(state[name]))
        for name in ("steps", "powers", "average", "carry"):
            getattr(self._now, name).copy_(state[name])
        whole = torch.cat([p.detach().flatten() for p in self._whole])
        self._now.flat.copy_(self._divided(whole))
        self._take(self._now.flat)

    def averages(self, prefix: str) -> dict[str, Tensor]:
        """Return nothing: there are no averages, see `groups`."""
        del prefix
        return {}

    def write_average(self, prefix: str, module: nn.Module) -> None:
        """Do nothing: there are no averages, see `groups`."""

    def _measure(self, data: Mapping[str, Tensor], rows: Tensor, phase: str) -> LossAndGradient:
        """Compute the loss on a minibatch in all processes, and this process's shard of the mean gradient."""
        names, table = Names(), list[Tensor]()
        parts = rows.split(self._microbatch)
        self._loss.zero_grad(set_to_none=True)
        for part in parts:
            batch = {name: x[part.to(x.device)].to(self.device) for name, x in data.items()}
            with torch.enable_grad():
                out: LossOut = self._loss(batch, Context(self.carry, {}, phase, self.device))
                (out.loss / len(parts)).backward()
            info = {"loss": out.loss.detach()} | {name: value.detach() for name, value in out.info.items()}
            nothing = self._now.flat[:0]
            carry = vector(self._carried, out.carry, self._now.carry)
            table.append(names.pack(LossAndGradient(nothing, info, out.lr, carry)))
        everywhere = self._world.stacked(torch.stack(table)).flatten(0, 1)
        gradient = torch.cat([self._gradient(p).flatten() for p in self._parts])
        return names.unpack(gradient, everywhere, self._loss.largest)

    def _gradient(self, parameter: Any) -> Tensor:
        if parameter.grad is None:
            return torch.zeros_like(self._local(parameter))
        return self._local(parameter.grad)

    def _take(self, flat: Tensor) -> None:
        """Copy the numbers of a vector into this process's shards of the parameters."""
        with torch.no_grad():
            for parameter, values in zip(self._parts, self._pieces(flat), strict=True):
                self._local(parameter).copy_(values)

    def _publish(self) -> None:
        """Copy the trained weights to the networks that act."""
        with torch.no_grad():
            for whole, part in zip(self._whole, self._parts, strict=True):
                whole.copy_(part.full_tensor())

    def _gathered(self, flat: Tensor) -> Tensor:
        """Gather (P,) the shards of all processes, in the order of the whole parameters."""
        from torch.distributed.tensor import DTensor

        whole: list[Tensor] = []
        for parameter, values in zip(self._parts, self._pieces(flat), strict=True):
            spread_out = DTensor.from_local(
                values, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
            )
            whole.append(spread_out.full_tensor().flatten())
        return torch.cat(whole)

    def _divided(self, flat: Tensor) -> Tensor:
        """Return this process's shard of a vector (P,) in the order of the whole parameters."""
        from torch.distributed.tensor import distribute_tensor

        whole = flat.to(self.device).split([p.numel() for p in self._whole])
        parts = [
            distribute_tensor(values.view(p.shape), p.device_mesh, p.placements).to_local().flatten()
            for values, p in zip(whole, self._parts, strict=True)
        ]
        return torch.cat(parts)

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """Return this process's shards of the parameters in a vector, as views of it."""
        locals_ = [self._local(p) for p in self._parts]
        pieces = flat.split([x.numel() for x in locals_])
        return [piece.view(x.shape) for piece, x in zip(pieces, locals_, strict=True)]

    @staticmethod
    def _local(parameter: Any) -> Tensor:
        return parameter.to_local()

    def _across(self, number: Tensor) -> Tensor:
        """Sum a number over all processes."""
        return self._world.stacked(number).sum(0)


def spread(loss: nn.Module, device: torch.device, world: DistributedContext) -> None:
    """Shard a module's parameters over the processes, in place: each of its `units` separately, then the rest."""
    from torch.distributed.fsdp import fully_shard

    row = mesh(device, world)
    for unit in units(loss):
        fully_shard(unit, mesh=row)
    fully_shard(loss, mesh=row)


def units(network: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network's stacks, whose parameters are gathered while the block is computed.

    Stacks whose blocks are called from outside, as the network around them declares, are sharded with the rest.
    """
    outside = {
        module
        for part in network.modules()
        if getattr(part, "computed_from_outside", False)
        for module in part.modules()
    }
    stacks = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    return [
        block
        for stack in stacks
        for block in stack
        if block not in outside and any(p.requires_grad for p in block.parameters())
    ]
