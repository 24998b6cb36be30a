"""Writes traffic networks; `robotrl.sims.bev.traffic.learned.stored` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robotrl.run.tensors import write_weights
from robotrl.sims.bev.traffic.learned.stored import MANIFEST, WEIGHTS, LearnedTraffic, manifest, named, read_traffic
from robotrl.sims.driving.traffic.populations import Population
from robotrl.traffic.model import TrafficNet
from robotrl.utils.files import dump_json, replace_file


def save_traffic(
    path: Path, net: TrafficNet, drivers: Sequence[Population], about: Mapping[str, Any]
) -> LearnedTraffic:
    """Write a network to a folder, which is made if it is missing, and read it back.

    Args:
        path: the folder.
        net: the network.
        drivers: populations of its drivers.
        about: JSON values about its training.

    Raises:
        DataError: a parameter is not finite.
        OSError: the disk refused.
    """
    path.mkdir(parents=True, exist_ok=True)
    weights = net.to_flat()
    _, digest = write_weights(path / WEIGHTS, named(weights))
    replace_file(path / MANIFEST, dump_json(manifest(weights, digest, drivers, about)))
    return read_traffic(path)
