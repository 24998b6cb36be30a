"""Learning in several processes (data parallel): each steps a sim of its own, every gradient is the mean over all.

`torchrun` starts the processes and says to each which one it is; `joined` brings them together. What is averaged or
gathered goes through a `DistributedContext`, which does nothing where a process is alone.
All processes must call the same methods in the same order.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from robotrl.errors import ConfigError, RobotrlError
from robotrl.rollout.storage import Rollout
from robotrl.run.checkpoint import set_generator_state
from robotrl.run.locking import finish_despite_sigterm

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SEED_STRIDE, SEEDS = 1_000_003, 2**31
"""Between the seeds of two processes, so that they are not those of another run's; and how many seeds there are."""


@dataclass(frozen=True)
class DistributedContext:
    """The processes that learn together.

    Args:
        rank: number of this process, from 0; 0 alone writes the run.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def seed(self, seed: int) -> int:
        """The seed of this process in a run with the seed `seed`; that of process 0 is the run's."""
        return (seed + self.rank * SEED_STRIDE) % SEEDS

    def mean_(self, x: Tensor) -> None:
        """Replace `x`, of one shape everywhere, by its mean over the processes, in place."""
        if self.size > 1:
            with self._reaching("averaged a gradient"):
                dist.all_reduce(x)
            x /= self.size

    def stacked(self, x: Tensor) -> Tensor:
        """(R, ...) the `x` of every process in order, of one shape everywhere."""
        if self.size == 1:
            return x[None]
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with self._reaching("gathered statistics"):
            dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    def rows(self, x: Tensor) -> Tensor:
        """All rows of every process's `x` (n, ...) in order; n may differ."""
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
        """The rows of all processes, (n, ...) of each name, n may differ and be 0, dealt out evenly: this one's share.

        Where there are fewer rows than processes, those that would go without get the first one.
        """
        if self.size == 1:
            return dict(rows)
        everything = {name: self.rows(x) for name, x in rows.items()}
        return {name: x[self.rank % len(x) :: self.size] for name, x in everything.items()}

    def with_episodes(self, rollout: Rollout) -> Rollout:
        """A rollout that tells of the episodes of all processes."""
        return rollout._replace(episodes=self.rows(rollout.episodes), returns=self.rows(rollout.returns))

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any process; all wait for each other."""
        return bool(self.stacked(torch.tensor(int(flag))).any())

    def means(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """The mean of each scalar over the processes that have a number for it; the names are the same everywhere."""
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
        """Say what it means that the others cannot be reached.

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
    """How many of `rows` fall to each process.

    Raises:
        ConfigError: they cannot be divided evenly.
    """
    if rows % world.size:
        raise ConfigError(f"{field} is {rows}: expected a multiple of {world.size}, the number of processes")
    return rows // world.size


class Collects(Protocol):
    """What steps a sim for a learner, as far as a resume is concerned."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on exactly."""
        ...

    def follow(self, state: dict[str, Any], seed: int) -> None:
        """Go on from what another process's did, with new episodes."""
        ...


def check_processes(world: DistributedContext, state: Mapping[str, Any]) -> None:
    """Refuse to go on with a state of another number of processes.

    Args:
        world: the processes that go on.
        state: of a learner, which has their number before under "processes"; one process where it has none.

    Raises:
        ConfigError: the number is another.
    """
    before = state.get("processes", 1)
    if before != world.size:
        raise ConfigError(f"the run was begun by {before} processes: {world.size} go on, expected as many")


def take_up(
    world: DistributedContext,
    state: Mapping[str, Any],
    seed: int,
    generator: torch.Generator,
    collector: Collects | None = None,
) -> bool:
    """Random streams and episodes after a resume: those of process 0 go on exactly, the others begin new ones.

    Args:
        world: the processes.
        state: of process 0's learner: its "generator", its "collector".
        seed: of this process's new streams; not the one that the run began with.
        generator: of the learner.
        collector: of the learner, if it has one.

    Returns:
        Whether they go on exactly.
    """
    if world.rank == 0:
        set_generator_state(generator, state["generator"])
        if collector is not None:
            collector.load(state["collector"])
        return True
    generator.manual_seed(seed % SEEDS)
    if collector is not None:
        collector.follow(state["collector"], seed % SEEDS)
    return False


_meshes: list[DeviceMesh] = []
"""What `mesh` made since the processes were joined."""


def mesh(device: torch.device, world: DistributedContext) -> DeviceMesh:
    """The processes in a row, as `torch` wants them where tensors are spread over them.

    torch keeps each mesh for ever in its caches, and a mesh its process group. A group that is never destroyed keeps
    threads that may hold the last tensors that were sent; they then wait for an interpreter that ends, and the
    process aborts after its work is done. So `joined` takes the groups out of the meshes that were made here.
    """
    from torch.distributed.device_mesh import init_device_mesh

    _meshes.append(init_device_mesh(device.type, (world.size,)))
    return _meshes[-1]


@contextmanager
def joined(timeout_s: float) -> Generator[DistributedContext]:
    """The processes that torchrun started together, or this one alone; they part at the end of the block.

    After an error torchrun, which ends the others within a tenth of a second, has to ask this one twice: it ends by
    itself and says why.

    CPU tensors are exchanged through gloo, CUDA tensors through nccl, for which each process takes the GPU of its
    number on this machine.

    Args:
        timeout_s: how long a process waits for the others before it gives up.

    Raises:
        ConfigError: the environment names several processes and not which one this is.
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
    except BaseException:
        finish_despite_sigterm()
        raise
    # not after an error: the others may be gone, and parting waits for them
    world.any(False)
    dist.destroy_process_group()
    while _meshes:
        vars(_meshes.pop()).get("_pg_registry", {}).clear()
    gc.collect()  # what is spread refers to itself, and to the group
