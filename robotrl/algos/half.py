"""Networks in bfloat16: what is multiplied has 8 bits of precision, what is kept and added up has 24.

Parameters, moments, densities and losses stay in float32; a network gives back the precision that it was given. A
method whose ratios compare acting with learning acts in bfloat16 as well, so that its first ratio is 1 but for
products whose rounding depends on how many rows are multiplied at once.
"""

from __future__ import annotations

import torch


def in_bf16(on: bool, device: torch.device) -> torch.autocast:
    """A context in which networks compute in bfloat16, if that is `on`."""
    # weights are arguments of the update: what was cast of one update's must not serve the next
    return torch.autocast(device.type, torch.bfloat16, enabled=on, cache_enabled=False)
