"""Maps of one's own: one copy in memory, routes of the splits, what drives on them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.kits.xodr_kit as kit
from robotrl.sims import starts
from tests.kits.bev_kit import Array, make


def written(folder: Path, text: str) -> str:
    path = folder / "town.xodr"
    path.write_text(text)
    return str(path)


def routes_of(sim: Any, split: str) -> set[int]:
    """Routes, counted within the map, of starts of a split."""
    ids = starts.SPLITS[split].start + np.arange(sim.num_envs)
    sim.reset(options={"state_ids": ids})
    world, arrays = sim.core.world, sim.core.bank.arrays
    first = arrays.maps["route"][world.episodes["map"]]
    return set((world.episodes["route"] - first).tolist())


def test_a_map_lies_in_memory_once_and_its_splits_drive_different_routes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim = make(64, map=written(tmp_path, kit.crossroads()), routes=16, route_length_m=100.0)
    used = {split: routes_of(sim, split) for split in ("train", "val", "test")}
    assert used == {"train": set(range(10)), "val": {10, 11}, "test": {12, 13, 14, 15}}
    assert sim.core.bank.names == ["town"]


def test_splits_that_share_routes_say_so(tmp_path: Path) -> None:
    path = written(tmp_path, kit.document(kit.straight(length=300.0)))
    with pytest.warns(UserWarning, match="map 'town' has 1 route, fewer than one for each split"):
        sim = make(8, map=path)
    assert [routes_of(sim, split) for split in ("train", "val", "test")] == [{0}] * 3


def test_an_exact_state_goes_back_into_another_sim_of_the_map(tmp_path: Path) -> None:
    path = written(tmp_path, kit.crossroads())
    sims = [make(6, map=path, route_length_m=100.0, obs="vector", threads=1) for _ in range(2)]
    ids = starts.SPLITS["test"].start + np.arange(6)
    sims[0].reset(options={"state_ids": ids})
    drive(sims[0], 20)
    sims[1].reset(options={"state_ids": ids[::-1].copy()})
    sims[1].set_state(sims[0].get_state())
    ends = [drive(sim, 30) for sim in sims]
    assert (ends[0] == ends[1]).all()


def drive(sim: Any, steps: int) -> Array:
    """Positions and speeds of all road users after some steps of the rule-based driver."""
    driver, started = sim.make_expert(mode="brisk"), torch.ones(sim.num_envs, dtype=torch.bool)
    for _ in range(steps):
        sim.step(driver.act(started))
        started = torch.zeros(sim.num_envs, dtype=torch.bool)
    return np.stack([sim.core.world.agents[name] for name in ("x", "y", "v")])
