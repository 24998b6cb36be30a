"""Data-parallel training in several processes: each steps its own sim, and gradients are averaged over all.

`torchrun` starts the processes and sets their ranks; `joined` connects them. Averages and gathers go through a
`DistributedContext`, which does nothing for a single process.
All processes must call the same methods in the same order.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from robotrl.errors import ConfigError, RobotrlError
from robotrl.rollout.storage import Rollout
from robotrl.run.locking import finish_despite_sigterm

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SEED_STRIDE, SEEDS = 1_000_003, 2**31
"""Difference of seeds between two processes, large so that they do not meet another run's; and the number of seeds."""


@dataclass(frozen=True)
class DistributedContext:
    """The processes that learn together.

    Args:
        rank: number of this process, from 0; only 0 writes the run's files.
        size: number of processes.
    """

    rank: int = 0
    size: int = 1

    def seed(self, seed: int) -> int:
        """Return the seed of this process in a run with the seed `seed`; process 0 has the run's."""
        return (seed + self.rank * SEED_STRIDE) % SEEDS

    def mean_(self, x: Tensor) -> None:
        """Replace `x` by its mean over the processes, in place; its shape is the same everywhere."""
        if self.size > 1:
            with self._reaching("averaged a gradient"):
                dist.all_reduce(x)
            x /= self.size

    def stacked(self, x: Tensor) -> Tensor:
        """Return (R, ...) the `x` of all processes in order; its shape is the same everywhere."""
        if self.size == 1:
            return x[None]
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with self._reaching("gathered statistics"):
            dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    def rows(self, x: Tensor) -> Tensor:
        """Concatenate the rows of every process's `x` (n, ...) in order; n may differ."""
        if self.size == 1:
            return x
        counts = self.stacked(torch.tensor([len(x)], device=x.device)).flatten().tolist()
        padded = x.new_zeros((max(counts), *x.shape[1:]))
        padded[: len(x)] = x
        return torch.cat([part[:count] for part, count in zip(self.stacked(padded), counts, strict=True)])

    def most(self, count: int) -> int:
        """The largest `count` of any process."""
        return int(self.stacked(torch.tensor(count)).max())

    def total(self, count: int) -> int:
        """The sum of every process's `count`."""
        return int(self.stacked(torch.tensor(count)).sum())

    def dealt(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Distribute the rows of all processes evenly, and return this process's share.

        Rows are (n, ...) of each name; n may differ between processes and be 0. With fewer rows than processes, those
        that would get none get the first row.
        """
        if self.size == 1:
            return dict(rows)
        everything = {name: self.rows(x) for name, x in rows.items()}
        return {name: x[self.rank % len(x) :: self.size] for name, x in everything.items()}

    def with_episodes(self, rollout: Rollout) -> Rollout:
        """Return the rollout with the episodes of all processes."""
        return rollout._replace(episodes=self.rows(rollout.episodes), returns=self.rows(rollout.returns))

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process; all processes wait for each other."""
        return bool(self.stacked(torch.tensor(int(flag))).any())

    def means(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Return the mean of each scalar over the processes, without NaN; the names are the same everywhere."""
        if self.size == 1:
            return dict(scalars)
        table = self.stacked(torch.tensor(list(scalars.values()), dtype=torch.float64))
        return dict(zip(scalars, table.nanmean(0).tolist(), strict=True))

    def copy_first_(self, x: Tensor) -> None:
        """Replace `x` by that of process 0, in place."""
        if self.size > 1:
            with self._reaching("received the first weights"):
                dist.broadcast(x, 0)

    @contextmanager
    def _reaching(self, what: str) -> Generator[None]:
        """Explain errors of communication with the other processes.

        Raises:
            RobotrlError: another process ended, or did not answer in time.
        """
        try:
            yield
        except RuntimeError as error:
            lines = str(error).strip().splitlines()
            raise RobotrlError(
                f"process {self.rank} of {self.size} lost the others while it {what}: expected all to be alive and to"
                " answer within dist_timeout_s; the one that ended or hangs says why in its own output, and the last"
                f" checkpoint is intact ({lines[0] if lines else type(error).__name__})"
            ) from error


ALONE = DistributedContext()


def share(field: str, rows: int, world: DistributedContext) -> int:
    """Return the number of `rows` per process.

    Raises:
        ConfigError: they cannot be divided evenly.
    """
    if rows % world.size:
        raise ConfigError(f"{field} is {rows}: expected a multiple of {world.size}, the number of processes")
    return rows // world.size


def check_processes(world: DistributedContext, state: Mapping[str, Any]) -> None:
    """Check that a state was saved by the same number of processes.

    Args:
        world: the processes that resume.
        state: state of a learner, with their former number under "processes"; 1 if it has none.

    Raises:
        ConfigError: the number differs.
    """
    before = state.get("processes", 1)
    if before != world.size:
        raise ConfigError(f"the run was begun by {before} processes: {world.size} go on, expected as many")


_meshes: list[DeviceMesh] = []
"""Meshes made by `mesh` since the processes were joined."""


def mesh(device: torch.device, world: DistributedContext) -> DeviceMesh:
    """Build the one-dimensional device mesh of the processes, as FSDP needs it.

    torch keeps each mesh in its caches forever, and with it the process group. A group that is never destroyed keeps
    threads that may hold the last sent tensors; at the end of the interpreter they wait for it, and the process aborts
    after its work is done. So `joined` removes the groups from the meshes made here.
    """
    from torch.distributed.device_mesh import init_device_mesh

    _meshes.append(init_device_mesh(device.type, (world.size,)))
    return _meshes[-1]


@contextmanager
def joined(timeout_s: float) -> Generator[DistributedContext]:
    """Connect the processes started by torchrun, or return this one alone; disconnect at the end of the block.

    After an error, torchrun ends the other processes within a tenth of a second. This process ignores its first
    SIGTERM, so that it ends by itself and reports the error.

    CPU tensors are exchanged through gloo, CUDA tensors through nccl; each process uses the GPU of its local rank.

    Args:
        timeout_s: seconds that a process waits for the others before it raises an error.

    Raises:
        ConfigError: the environment names several processes but not this one's rank.
        RobotrlError: the others did not appear in time.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(f"WORLD_SIZE is {size} and {', '.join(missing)} not set: expected all, as torchrun sets them")
    rank, backend = int(os.environ["RANK"]), "cpu:gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise RobotrlError(f"process {rank} of {size} did not find the others within {timeout_s:g} s") from error
    world = DistributedContext(rank, size)
    try:
        yield world
    except SystemExit:
        # a stop that all have agreed on: the run is saved, and the first process ends with the signal's code
        _leave(world)
        raise
    except BaseException:
        finish_despite_sigterm()
        raise
    # not after an error: the others may be gone, and disconnecting waits for them
    _leave(world)


def _leave(world: DistributedContext) -> None:
    """Disconnect once all processes have got here."""
    # their work is done: one that ends while this one still hears of it is no fault
    with suppress(RobotrlError):
        world.any(False)
    dist.destroy_process_group()
    while _meshes:
        vars(_meshes.pop()).get("_pg_registry", {}).clear()
    gc.collect()  # sharded modules refer to themselves, and to the process group
