"""What episodes are embedded by: the policy's own sight, another policy's, that of a package."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.algos.test_flow_grpo as flow_grpo
import tests.algos.test_grpo as grpo
import tests.policies.vla.test_flow as flows
from robotrl.cli.main import main
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.episode_encoders import RelativePositionEncoder, pairs_of
from robotrl.learners.learner import Setup
from robotrl.spec import Spec
from tests.algos.test_opd import saved
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming

SIGHT: dict[str, Any] = {"progress": "embedding", "keep_by": "reward", "tries": 1}
ENDED = [True, False, False, False, False, False, False, False]
PAGE = ROOT / "docs" / "algorithms" / "grpo.md"


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
    features, vision_encoder = made._embedded(found), other.vision_encoder()
    assert features.shape == (8, vision_encoder(found.obs).shape[1])
    with torch.no_grad():
        for k in range(8):
            rows = {key: value[found.episode == k] for key, value in found.obs.items()}
            assert torch.allclose(features[k], vision_encoder(rows).mean(dim=0), atol=1e-5)


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
    assert made._embedded(seen[0]).shape == (8, 8 * 8 * 3)


def meters(*names: str, unit: str = "m") -> Spec:
    n = len(names)
    return Spec((n,), names, (unit,) * n, (-math.inf,) * n, (math.inf,) * n)


def test_places_of_one_frame_are_compared_along_the_axes_that_both_have() -> None:
    specs = {
        "state": meters("tip_pos_x_w", "tip_pos_y_w", "tip_pos_z_w", "grip_width", "base_pos_x_b"),
        "speed": meters("tip_vel_x_w", "tip_vel_y_w", unit="m/s"),
        "meant": meters("peg_pos_y_w", "peg_pos_x_w", "hole_x_w", "lid_pos_x_b"),
    }
    pairs = pairs_of(specs)
    assert [(p.column, p.other_key, p.other_column) for p in pairs if p.key == "state"] == [
        *((0, "meant", 1), (1, "meant", 0)),  # tip and peg
        (0, "meant", 2),  # tip and hole
        (4, "meant", 3),  # base and lid, of another frame
    ]
    assert [(p.column, p.other_column) for p in pairs if p.key == "meant"] == [(1, 2)]  # peg and hole
    state = torch.tensor([[1.0, 2.0, 3.0, 9.0, 4.0]])
    grounding = torch.tensor([[20.0, 10.0, 30.0, 40.0]])
    assert RelativePositionEncoder(pairs)({"state": state, "meant": grounding}).tolist() == [
        [-9.0, -18.0, -29.0, -36.0, -20.0]
    ]


def test_a_failure_is_worth_how_near_its_end_came_in_the_sims_own_places(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = replace(grpo.CFG, encoder="places:state,meant", embed="end", **SIGHT)
    made = build(cfg, grpo.policy_on(grpo.tabletop(1)))
    seen = grpo.rigged(monkeypatch, made, ENDED)
    assert made.iterate()["groups_kept"] == 2
    found = seen[0]
    ends = [int(torch.nonzero(found.episode == k)[-1, 0]) for k in range(8)]
    hand, named, goal = (found.obs[key][ends][:, at : at + 2] for key, at in (("state", 0), ("meant", 0), ("meant", 2)))
    assert torch.equal(made._embedded(found), torch.cat([hand - named, hand - goal, named - goal], dim=1))


def test_what_is_refused(tmp_path: Path) -> None:
    policy = grpo.policy_on(grpo.tabletop(1))
    with raises_naming(ConfigError, "encoder", "polcy", nearest="policy"):
        build(replace(grpo.CFG, encoder="polcy", **SIGHT), policy)
    path = saved(tmp_path / "flow", flows.policy_on("smolvla"))
    with pytest.raises(
        ConfigError, match=rf"algo\.encoder is 'run:{path}' beside algo\.progress 'none': expected embed"
    ):
        build(replace(grpo.CFG, encoder=f"run:{path}"), policy)
    with pytest.raises(CapabilityError, match=r"policy FlowVlaPolicy lacks HasVisionEncoder: algo\.encoder 'run:"):
        build(replace(grpo.CFG, encoder=f"run:{path}", **SIGHT), policy)
    with pytest.raises(CapabilityError, match=r"policy FlowVlaPolicy lacks HasVisionEncoder: algo\.encoder 'policy'"):
        build(replace(flow_grpo.CFG, **SIGHT), flows.policy_on("smolvla"))
    for encoder, embed, said in (
        ("places:state,ment", "end", r"array 'ment' is unknown: did you mean 'meant'"),
        (
            "places:instruction",
            "end",
            r"'places:instruction' finds no two places: expected arrays with columns such as",
        ),
        ("policy", "ends", r"algo\.embed 'ends' is unknown: did you mean 'end'"),
    ):
        with pytest.raises(ConfigError, match=said):
            build(replace(grpo.CFG, encoder=encoder, embed=embed, **SIGHT), policy)
    with pytest.raises(ConfigError, match=r"algo\.embed is 'end' beside algo\.progress 'none': expected embedding"):
        build(replace(grpo.CFG, embed="end"), policy)
    larger = saved(tmp_path / "larger", grpo.policy_on(grpo.tabletop(1, image_size=64)))
    with pytest.raises(ConfigError, match=r"reads 'image_flat_near', uint8 \(64, 64, 3\): the sim has uint8 \(32"):
        build(replace(grpo.CFG, encoder=f"run:{larger}", **SIGHT), policy)
