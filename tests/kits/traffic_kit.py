"""Traffic networks of known behavior."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from robotrl.sims.bev.traffic.learned import layout
from robotrl.sims.driving.traffic.populations import moderate
from robotrl.traffic.model import TrafficNet
from robotrl.traffic.saving import save_traffic


def net_of(*accels: float, favors: int | None = None, temperature: float = 0.0, seed: int = 0) -> TrafficNet:
    """A network whose modes have constant accelerations, m/s^2: those given, and 0 for the rest.

    Args:
        accels: of the first modes.
        favors: the mode that scores best on every line; None: scores are random.
        temperature: see `layout`.
        seed: of all parameters but those of the profiles.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        net = TrafficNet()
    with torch.no_grad():
        net.anchors[: len(accels)] = torch.tensor(accels)[:, None].expand(-1, layout.PIECES)
        net.temperature.fill_(temperature)
        if favors is not None:
            net.head.mode[favors] = 50.0
            net.head.out.abs_()
    return net


def stored(path: Path, *accels: float, **settings: Any) -> str:
    """Folder of such a network with moderate drivers."""
    save_traffic(path, net_of(*accels, **settings), (moderate(),), {})
    return str(path)
