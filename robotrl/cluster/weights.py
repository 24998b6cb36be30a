"""Weights on their way to workers: one flat vector of bytes, with a version number and a hash.

A worker that has the version before gets only the blocks that changed. Where adapters alone are trained, those are the
blocks of the adapters. The hash is that of the whole vector, so a wrong base is found out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robotrl.errors import DataError

Bytes = NDArray[np.uint8]
BLOCK = 1 << 14
"""Bytes of a block, the unit in which changes are sent."""
ALIGNED = 16
"""Each tensor begins at a multiple of this many bytes."""
WORTHWHILE = 0.75
"""Largest share of changed blocks that is sent as changes."""


class WeightsMessage(NamedTuple):
    """Weights as a worker receives them."""

    version: int
    digest: str
    """SHA-256 of the whole vector and of its layout."""
    base: int | None
    """Version that the changes apply to; None: the vector is whole."""
    blocks: Any
    """(n,) int64 indices of the changed blocks; empty for a whole vector. An array, or a cluster's reference to it."""
    data: Any
    """Bytes of those blocks, or of the whole vector; likewise."""
    settings: Any
    """Result of `RolloutActing.settings`."""


class ChangedBlocks(NamedTuple):
    """Blocks that differ from the version before."""

    base: int
    blocks: NDArray[np.int64]
    data: Bytes
    """(n * BLOCK,)."""


class PublishedWeights(NamedTuple):
    """One version of a policy's weights."""

    version: int
    digest: str
    whole: Bytes
    changes: ChangedBlocks | None
    """None: too many blocks changed, or there is no version before."""
    settings: Any

    def changes_for(self, version: int | None) -> ChangedBlocks | None:
        """The changes for a worker that has `version`, or None if it needs the whole vector."""
        return self.changes if self.changes is not None and self.changes.base == version else None

    def message(self, version: int | None) -> WeightsMessage:
        """The message for a worker that has `version`; None: it has none."""
        changes = self.changes_for(version)
        if changes is None:
            nothing = np.zeros(0, np.int64)
            return WeightsMessage(self.version, self.digest, None, nothing, self.whole, self.settings)
        return WeightsMessage(self.version, self.digest, changes.base, changes.blocks, changes.data, self.settings)


def _places(network: nn.Module) -> Iterator[tuple[str, Tensor, int, int]]:
    """Name, tensor, first byte and number of bytes of each parameter and buffer."""
    start = 0
    for name, value in network.state_dict().items():
        size = value.numel() * value.element_size()
        yield name, value, start, size
        start += ALIGNED * math.ceil(size / ALIGNED)


def _size(network: nn.Module) -> int:
    """Bytes of the vector: whole blocks."""
    end = max((start + size for _, _, start, size in _places(network)), default=0)
    return BLOCK * math.ceil(end / BLOCK)


def layout_of(network: nn.Module) -> str:
    """Names, dtypes and shapes of a module's tensors, as text."""
    return "\n".join(f"{name} {value.dtype} {tuple(value.shape)}" for name, value, *_ in _places(network))


def flat(network: nn.Module) -> Bytes:
    """Copy a module's parameters and buffers into one vector of bytes."""
    out = np.zeros(_size(network), np.uint8)
    for _, value, start, size in _places(network):
        part = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        out[start : start + size] = part.numpy()
    return out


def write_into(network: nn.Module, data: Bytes) -> None:
    """Set a module's parameters and buffers from the result of `flat`."""
    whole = torch.from_numpy(data)
    with torch.no_grad():
        for _, value, start, size in _places(network):
            value.copy_(whole[start : start + size].view(value.dtype).view(value.shape))


def digest_of(layout: str, data: Bytes) -> str:
    """Hash of a vector and its layout."""
    found = hashlib.sha256(layout.encode())
    found.update(np.ascontiguousarray(data).data)
    return found.hexdigest()


def changed_blocks(before: Bytes, now: Bytes) -> NDArray[np.int64]:
    """(n,) indices of the blocks in which two vectors of equal size differ."""
    words = (before.view(np.uint64).reshape(-1, BLOCK // 8), now.view(np.uint64).reshape(-1, BLOCK // 8))
    return np.flatnonzero((words[0] != words[1]).any(axis=1))


class WeightPublisher:
    """Makes the versions of a policy's weights, counted from 1."""

    def __init__(self) -> None:
        self.version = 0
        """The newest version; 0: none yet."""
        self._before: PublishedWeights | None = None

    def publish(self, network: nn.Module, settings: Any) -> PublishedWeights:
        """Make the next version."""
        self.version += 1
        whole, before = flat(network), self._before
        changes = None
        if before is not None and before.whole.size == whole.size:
            blocks = changed_blocks(before.whole, whole)
            if len(blocks) <= WORTHWHILE * (whole.size // BLOCK):
                data = whole.reshape(-1, BLOCK)[blocks].reshape(-1)
                changes = ChangedBlocks(before.version, blocks, data)
        digest = digest_of(layout_of(network), whole)
        # the one before is needed no more than for its vector
        self._before = PublishedWeights(self.version, digest, whole, changes, settings)
        return self._before


class WeightReceiver:
    """A worker's copy of the weights.

    Args:
        network: the module that acts.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._layout = layout_of(network)
        self._whole = np.zeros(_size(network), np.uint8)
        self.version: int | None = None
        """The version that acts; None: none yet."""

    def take(self, message: WeightsMessage) -> None:
        """Take over a version.

        Raises:
            DataError: the changes are those of another version, or the result has another hash.
        """
        if message.version == self.version:
            return
        if message.base is None:
            data: Bytes = message.data
            if data.size != self._whole.size:
                raise DataError(
                    f"weights of version {message.version} have {data.size} bytes: expected {self._whole.size}"
                )
            self._whole[:] = data
        elif message.base != self.version:
            raise DataError(
                f"weights of version {message.version} change version {message.base}: expected changes of version"
                f" {self.version}, which acts"
            )
        else:
            self._whole.reshape(-1, BLOCK)[message.blocks] = message.data.reshape(-1, BLOCK)
        found = digest_of(self._layout, self._whole)
        if found != message.digest:
            # a half-written vector must not become the base of the next version
            self.version = None
            raise DataError(
                f"weights of version {message.version} have the hash {found[:12]}: expected {message.digest[:12]}"
            )
        write_into(self._network, self._whole)
        self.version = message.version
