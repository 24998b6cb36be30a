"""Torch devices by the names that configs use."""

from __future__ import annotations

from typing import Any

import torch

from robotrl.errors import ConfigError

CPU = torch.device("cpu")


def device_of(name: str) -> torch.device:
    """Torch device of a config's device name.

    Args:
        name: "cpu", "cuda" (with torchrun the GPU of the local rank), "cuda:1", or another torch device type.

    Raises:
        ConfigError: the device is not available; the available ones are named.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}: expected one of {', '.join(_here())}") from None
    if device.type == "cpu":
        return CPU
    try:
        module: Any = torch.get_device_module(device.type)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}: torch {torch.__version__} knows none of that kind") from None
    count: int = module.device_count() if module.is_available() else 0
    index = module.current_device() if count and ":" not in name else device.index
    if not count or index >= count:
        built = f" (torch {torch.__version__} is built for that alone)" if "+cpu" in torch.__version__ else ""
        raise ConfigError(f"device is {name!r}: this machine has {', '.join(_here())}{built}")
    return torch.device(device.type, index)


def _here() -> list[str]:
    """Names of the devices of this machine, as used in configs."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *gpus]
