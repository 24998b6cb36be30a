"""What episodes are embedded by: the policy's own sight, another policy's, that of a package."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_algos_flow_grpo as flow_grpo
import test_algos_grpo as grpo
import test_policies_vla_flow as flows
import torch
from test_algos_opd import saved

from robotrl.algos.learner import Setup
from robotrl.cli import main
from robotrl.errors import CapabilityError, ConfigError

SIGHT: dict[str, Any] = {"progress": "sight", "keep_by": "reward", "tries": 1}
ENDED = [True, False, False, False, False, False, False, False]
PAGE = Path(__file__).parents[1] / "docs" / "algorithms" / "grpo.md"


def build(cfg: Any, policy: Any) -> Any:
    return cfg.build(Setup(grpo.tabletop, None, policy, None, seed=0))


def test_a_policy_that_flows_is_shaped_by_the_sight_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = grpo.policy_on(grpo.tabletop(1))
    path = saved(tmp_path / "other", other)
    made = build(replace(flow_grpo.CFG, encoder=f"run:{path}", **SIGHT), flows.policy_on("smolvla"))
    seen = grpo.rigged(monkeypatch, made, ENDED)
    scalars = made.iterate()
    # of two groups one has all failed, and teaches by how near it came
    assert scalars["groups_kept"] == 2 and scalars["ratio_error"] <= 1e-5
    found = seen[0]
    features, eye = made._sight(found), other.eye()
    assert features.shape == (8, eye(found.obs).shape[1])
    with torch.no_grad():
        for k in range(8):
            rows = {key: value[found.episode == k] for key, value in found.obs.items()}
            assert torch.allclose(features[k], eye(rows).mean(dim=0), atol=1e-5)


def test_an_encoder_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The one that the page shows."""
    (code,) = [part.split("```")[0] for part in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]
    (tmp_path / "pooled_pictures.py").write_text(code, encoding="utf-8")
    info = tmp_path / "pooled_pictures-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pooled-pictures\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[robotrl.encoders]\npooled = pooled_pictures:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert main(["list", "encoders"]) == 0
    listed = capsys.readouterr().out
    assert "pooled" in listed and "run:PATH" in listed and "policy" in listed
    made = build(replace(grpo.CFG, encoder="pooled", **SIGHT), grpo.policy_on(grpo.tabletop(1)))
    seen = grpo.rigged(monkeypatch, made, ENDED)
    assert made.iterate()["groups_kept"] == 2
    assert made._sight(seen[0]).shape == (8, 8 * 8 * 3)


def test_what_is_refused(tmp_path: Path) -> None:
    policy = grpo.policy_on(grpo.tabletop(1))
    with pytest.raises(ConfigError, match=r"encoder 'polcy' is unknown: did you mean 'policy'"):
        build(replace(grpo.CFG, encoder="polcy", **SIGHT), policy)
    path = saved(tmp_path / "flow", flows.policy_on("smolvla"))
    with pytest.raises(
        ConfigError, match=rf"algo\.encoder is 'run:{path}' beside algo\.progress 'none': expected sigh"
    ):
        build(replace(grpo.CFG, encoder=f"run:{path}"), policy)
    with pytest.raises(CapabilityError, match=r"policy FlowVlaPolicy lacks HasEye: algo\.encoder 'run:"):
        build(replace(grpo.CFG, encoder=f"run:{path}", **SIGHT), policy)
    with pytest.raises(CapabilityError, match=r"policy FlowVlaPolicy lacks HasEye: algo\.encoder 'policy'"):
        build(replace(flow_grpo.CFG, **SIGHT), flows.policy_on("smolvla"))
    larger = saved(tmp_path / "larger", grpo.policy_on(grpo.tabletop(1, image_size=64)))
    with pytest.raises(ConfigError, match=r"reads 'image_flat_near', uint8 \(64, 64, 3\): the sim has uint8 \(32"):
        build(replace(grpo.CFG, encoder=f"run:{larger}", **SIGHT), policy)
