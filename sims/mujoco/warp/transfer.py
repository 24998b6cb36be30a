"""Copies from the host to a device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.utils.devices import CPU


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Tensor of an array: on a processor a view, on a GPU a copy for which the host does not wait."""
    tensor = torch.from_numpy(array)
    return tensor if device == CPU else tensor.pin_memory().to(device, non_blocking=True)
