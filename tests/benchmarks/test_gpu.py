"""The bench of a GPU: its cells, its tables, and what it says where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import bench
from benchmarks.gpu import cell as gpu_cell
from benchmarks.kit.figures import Figure
from robotrl.cli.profiles import PROFILES
from robotrl.errors import ConfigError


def document() -> dict[str, Any]:
    machine, versions = {"gpus": ["Card 9"]}, {"torch": "2.99"}
    figures = {
        "decode_5m": Figure(200.0, "tokens/s", "transformers.generate", 50.0, 4.0, 9, 190.0, 210.0, 3.5, 4.5, "small"),
        "mujoco_halfcheetah": Figure(9e6, "env steps/s", "8 cores, native engine", 3e6, 3.0, note="cheetah"),
        "memory_smolvla_whole": Figure(10.0, "GiB", "the estimate", 9.5, 0.95, note="all of it"),
    }
    cells = {
        name: {"method": name, "machine": machine, "versions": versions, "result": {}}
        for name in ("decode", "memory_smolvla_whole", "mujoco_steps")
    }
    return {"date": "2026-01-02", "figures": {key: x.to_json() for key, x in figures.items()}, "cells": cells}


def test_a_cell_each() -> None:
    cells = bench.cells(False)
    assert [cell.method for cell in cells] == list(bench.NAMES) and len({cell.key for cell in cells}) == len(cells)
    assert [cell.method for cell in bench.cells(True)] == [bench.DECODE]
    assert all(name in bench.NAMES for name in (bench.MEMORY + held for held in bench.HELD))
    for name, profile in (("openvla_card_24", "card-24"), ("openvla_card_80", "card-80"), ("pi0_card_24", "card-24")):
        held, settings = bench.HELD[name], PROFILES[profile]
        assert (held.rows, held.rank) == (settings["algo.microbatch"], settings["lora.rank"])


def test_tables_say_what_was_measured_and_where() -> None:
    assert bench.speeds(document()).splitlines()[2:] == [
        "| small | 200 a second | 50 | 4 (3.5 to 4.5) |",
        "",
        "`robotrl bench gpu`, 2026-01-02; Card 9, torch 2.99.",
    ]
    assert "| all of it | 10 | 9.5 |" in bench.memories(document())
    row = "| cheetah | 9,000,000 env steps/s | 3,000,000 (8 cores, native engine) | 3 |"
    assert bench.mujoco(document()).splitlines()[2:] == [
        row,
        "",
        "`robotrl bench gpu`, 2026-01-02; Card 9, torch 2.99.",
    ]


def test_figures_are_those_of_the_cells() -> None:
    result = {"decode_5m": Figure(1.0, "tokens/s").to_json()}
    assert bench.aggregate([{"method": "decode", "result": result}]) == {"decode_5m": Figure(1.0, "tokens/s")}


def test_without_a_gpu_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device is 'cuda': this machine has cpu"):
        gpu_cell.main("decode", tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'decode'"):
        gpu_cell.main("decoding", tmp_path)
    assert not list(tmp_path.iterdir())
