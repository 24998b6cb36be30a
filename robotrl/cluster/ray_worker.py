"""The worker that runs as a Ray actor: one shard, its errors as messages, and its state with each rollout."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import traceback
import warnings
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from robotrl.cluster.shard import CollectOrder, Shard, ShardRecipe, ShardRollout
from robotrl.errors import RobotrlError
from robotrl.learners.actor.process import Failed
from robotrl.learners.collection.acting import RolloutActing
from robotrl.run.state_tree import pack, unpack
from robotrl.spec import HasState

PACKAGES = ("robotrl", "robotrl.sims", "robotrl.policies", "robotrl.configs", "robotrl.deploy")
"""Packages whose sources act in a worker; a checkout has them in folders of their own."""
Packed = tuple[Any, dict[str, np.ndarray]]
"""A state as Ray carries it: JSON values, and numpy arrays by name."""


class WorkerIdentity(NamedTuple):
    """Versions that must be the same on a worker as here."""

    robotrl: str
    code: str
    """Hash of the package's source files: two checkouts may have the same version."""
    python: str
    """Major and minor version."""
    torch: str


class WorkerStarted(NamedTuple):
    """Answer of a worker that is ready."""

    exact: bool
    """True if its sim's state can be restored, so that another worker goes on exactly."""
    host: str
    pid: int
    node: str
    """Ray's ID of the node."""


def identity() -> WorkerIdentity:
    """Versions in this process."""
    return WorkerIdentity(
        version("robotrl"), source_hash(), ".".join(map(str, sys.version_info[:2])), torch.__version__
    )


@cache
def source_hash() -> str:
    """First digits of the SHA-256 of the package's source files, which are the same in a wheel and in a checkout."""
    files: dict[str, Path] = {}
    for name in PACKAGES:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            start = name.replace(".", "/")
            files |= {f"{start}/{path.relative_to(folder).as_posix()}": path for path in Path(folder).rglob("*.py")}
    found = hashlib.sha256()
    for place, path in sorted(files.items()):
        found.update(f"{place}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def packed_state(state: dict[str, Any]) -> Packed:
    """Pack a state of tensors, arrays and JSON values."""
    data, arrays = pack(state)
    return data, {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in arrays.items()}


def unpacked_state(packed: Packed) -> dict[str, Any]:
    """Inverse of `packed_state`; arrays are copies, because those from shared memory are read-only."""
    data, arrays = packed

    def take(kind: str, name: str) -> Any:
        array = np.array(arrays[name])
        if kind == "torch":
            # an empty array may come back with strides that torch has no bytes for
            return torch.from_numpy(array).clone(memory_format=torch.contiguous_format)
        return array[()] if kind == "scalar" else array

    return unpack(data, take)


class RayWorker:
    """One shard in a process of its own, or several where the cluster has no room for more processes.

    See `robotrl.cluster.ray_shards` for the learner's side.
    """

    def __init__(self) -> None:
        self._shards: dict[int, Shard] = {}

    def identity(self) -> WorkerIdentity:
        """Versions in this process, asked for before it gets anything to unpickle."""
        return identity()

    def start(self, recipe: ShardRecipe, acting: RolloutActing) -> WorkerStarted | Failed:
        """Make the sim of a shard, for a policy that all workers get from the same place."""
        import ray

        torch.set_num_threads(recipe.torch_threads)
        self.drop(recipe.number)
        try:
            shard = self._shards[recipe.number] = Shard(recipe._replace(acting=acting))
        except Exception as error:
            return _failed(error)
        node = ray.get_runtime_context().get_node_id()
        return WorkerStarted(isinstance(shard.sim, HasState), platform.node(), os.getpid(), node)

    def collect(self, number: int, order: CollectOrder) -> tuple[ShardRollout | Failed, Packed | None]:
        """Collect a rollout of a shard; returns it, and the state after it."""
        import ray

        shard, weights = self._shards[number], order.weights
        try:
            if isinstance(weights.data, ray.ObjectRef):
                blocks, data = ray.get([weights.blocks, weights.data])
                order = order._replace(weights=weights._replace(blocks=blocks, data=data))
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("default")
                found = shard.collect(order)
            messages = tuple(dict.fromkeys(str(one.message) for one in warned))
            return found._replace(warned=messages), packed_state(shard.state())
        except Exception as error:
            return _failed(error), None

    def state(self, number: int) -> Packed:
        """State of a shard between two rollouts."""
        return packed_state(self._shards[number].state())

    def load(self, number: int, packed: Packed) -> Failed | None:
        """Restore the state of a shard."""
        try:
            self._shards[number].load(unpacked_state(packed))
        except Exception as error:
            return _failed(error)
        return None

    def drop(self, number: int) -> None:
        """Close the sim of a shard, if it is here."""
        shard = self._shards.pop(number, None)
        if shard is not None:
            shard.close()

    def close(self) -> None:
        """Close all sims."""
        for number in list(self._shards):
            self.drop(number)


def _failed(error: Exception) -> Failed:
    """Report an error to the learner; one that is not robotrl's with its traceback in the worker's log."""
    if not isinstance(error, RobotrlError):
        traceback.print_exc()
    return Failed(type(error).__name__, str(error))
