"""Memory that the trainer shares with all workers: actions, observations, flags and start ids of all envs.

It has no name in the file system: the kernel frees it with the last process that holds it.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.remote import worker
from robotrl.spec import Spec

ALIGNED = 64
"""Bytes: each array begins on a cache line of its own."""
Field = tuple[int, str, list[int]]
"""Offset in bytes, numpy dtype and shape of an array."""


class Layout(NamedTuple):
    """Places of the arrays; JSON for the handshake."""

    bytes: int
    arrays: dict[str, Field]


def layout_of(
    num_envs: int, workers: int, observation: Mapping[str, Spec], action: Spec, info: Mapping[str, str]
) -> Layout:
    """Layout for N envs of W workers.

    Observations have two banks, so that those before a step outlive a worker that dies while it writes.

    Args:
        num_envs: N.
        workers: W.
        observation: specs by key.
        action: spec of the action.
        info: dtype of each array of `Step.info`.
    """
    n = num_envs
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "order": ("int64", (workers, len(worker.ORDER))),
        "actions": (action.dtype, (n, *action.shape)),
        "reward": ("float32", (n,)),
        "terminated": ("bool", (n,)),
        "truncated": ("bool", (n,)),
        "envs": ("int64", (n,)),
        "ids": ("int64", (2 * n,)),
        **{f"info/{key}": (dtype, (n,)) for key, dtype in info.items()},
    }
    for part in ("obs0", "obs1", "final"):
        wanted |= {f"{part}/{key}": (spec.dtype, (n, *spec.shape)) for key, spec in observation.items()}
    arrays: dict[str, Field] = {}
    at = 0
    for name, (dtype, shape) in wanted.items():
        arrays[name] = (at, dtype, list(shape))
        at += -(-np.dtype(dtype).itemsize * math.prod(shape) // ALIGNED) * ALIGNED
    return Layout(max(at, mmap.PAGESIZE), arrays)


def new_memory() -> int:
    """Descriptor of new shared memory of size 0."""
    if sys.platform == "linux":
        return os.memfd_create("robotrl-remote", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def arrays_of(descriptor: int, layout: Layout) -> dict[str, NDArray[Any]]:
    """Arrays of the memory by name; it is unmapped with the last of them.

    Args:
        descriptor: of the memory, which gets the layout's size.
        layout: its layout.
    """
    os.ftruncate(descriptor, layout.bytes)
    memory = mmap.mmap(descriptor, layout.bytes)
    return {
        name: np.frombuffer(memory, np.dtype(dtype), math.prod(shape), at).reshape(shape)
        for name, (at, dtype, shape) in layout.arrays.items()
    }
