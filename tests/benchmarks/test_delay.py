"""The table of delayed actions: its figures by hand, its joins, and one tiny cell for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.delay import bench, cell
from benchmarks.delay.joining import JoinedPolicy
from robotrl.errors import ConfigError
from robotrl.policies.flow import FlowCfg
from robotrl.spec import COMMITTED, COMMITTED_MASK, Spec
from robotrl.transforms import TransformGroup
from tests.kits.refusals import raises_naming


def record(clone: str, seed: int, success: float) -> dict[str, Any]:
    one = {str(delay): {"success": success - 0.01 * delay, "seam": 0.2, "inside": 0.3} for delay in bench.DELAYS}
    result = dict.fromkeys(bench.CLONES[clone], one)
    return {"method": clone, "task": next(iter(bench.TASKS)), "seed": seed, "result": result}


def test_figures_by_hand() -> None:
    results = [record("plain", seed, 0.8 + 0.05 * seed) for seed in bench.SEEDS] + [record("trained", 0, 0.9)]
    figures = bench.aggregate(results)
    assert figures["push_guided_8"].value == pytest.approx(0.77)
    assert figures["push_trained_0"].runs == 1 and "pick-place_late_0" not in figures
    text = bench.table({"figures": {name: figure.to_json() for name, figure in figures.items()}})
    assert "| guided real-time chunking | 85 (80 to 90) |" in text
    assert "| real-time chunking in training | 90 | 89 |" in text


def test_changes_at_the_seams_are_told_from_those_inside() -> None:
    actions = np.array([[0.0], [0.1], [0.5], [0.6], [0.2]])
    seams, inside = cell.changes([actions], 2)
    # chunks begin at the third and at the fifth action
    assert seams == pytest.approx([0.4, 0.4]) and inside == pytest.approx([0.1, 0.1])


@torch.no_grad()
def test_chunks_are_averaged_where_they_overlap() -> None:
    state = {"state": Spec((1,), ("a",), ("1",), (-1.0,), (1.0,))}
    base = FlowCfg(horizon=4, hidden=(8,)).build(state, Spec((1,), ("x",), ("1",), (-9.0,), (9.0,)), TransformGroup())
    obs = {"state": torch.zeros(1, 1), COMMITTED: torch.tensor([[5.0, 7.0]]), COMMITTED_MASK: torch.tensor([[1, 0.25]])}
    plain = base.act({"state": obs["state"]}, mode="mean").chunk
    assert torch.equal(JoinedPolicy(base, 2, "aligned").act(obs, mode="mean").chunk, plain)
    mixed = JoinedPolicy(base, 2, "averaged").act(obs, mode="mean").chunk[0, :, 0]
    assert mixed[0] == 5.0 and mixed[1] == pytest.approx(0.25 * 7.0 + 0.75 * plain[0, 1, 0].item())
    assert torch.equal(mixed[2:], plain[0, 2:, 0])


def test_a_tiny_cell_drives_both_clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "DELAYS", (0, 2))
    for clone in bench.CLONES:
        out = tmp_path / clone
        out.mkdir()
        found = cell.run_cell(clone, "mujoco/peg-insert", 0, out, demos=4, updates=2, episodes=2)
        assert tuple(found) == bench.CLONES[clone]
        assert all(one.keys() == {"success", "seam", "inside"} for arm in found.values() for one in arm.values())
    with raises_naming(ConfigError, "clone", "plane", nearest="plain"):
        cell.main("plane", "mujoco/peg-insert", 0, tmp_path)
