"""Faults that a device notices and the host reads without making the device wait."""

from __future__ import annotations

import torch
from torch import Tensor

from robotrl.utils.devices import CPU


class DeviceFaults:
    """Flags (kinds, N) of envs, raised on the device until the host reads them.

    On a processor `read` gives them at once. On a GPU it starts a copy in the background, and a later call reads what
    has arrived: a fault is known some steps late.

    Args:
        kinds: names of the kinds of faults.
        num_envs: number of envs N.
        device: device that raises them.
    """

    def __init__(self, kinds: tuple[str, ...], num_envs: int, device: torch.device) -> None:
        self._kinds, self._device = kinds, device
        self._flags = torch.zeros((len(kinds), num_envs), dtype=torch.bool, device=device)
        self._any = torch.zeros((), dtype=torch.bool, pin_memory=device.type == "cuda")
        self._copied: torch.cuda.Event | None = None

    def mark(self, kind: str, flags: Tensor) -> None:
        """Raise a kind's flags (N,) where they are true."""
        self._flags[self._kinds.index(kind)] |= flags

    def read(self) -> dict[str, list[int]]:
        """Envs by kind of fault, lowered again; empty as long as none is known."""
        if not self._known():
            return {}
        flags = self._flags.to(CPU, copy=True)
        self._flags.zero_()
        self._any.fill_(False)
        return {
            kind: row.nonzero()[:, 0].tolist() for kind, row in zip(self._kinds, flags, strict=True) if bool(row.any())
        }

    def _known(self) -> bool:
        if self._device == CPU:
            return bool(self._flags.any())
        if self._copied is not None and not self._copied.query():
            return False
        known = self._copied is not None and bool(self._any)
        self._copied = None
        if not known:
            self._any.copy_(self._flags.any(), non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        return known
