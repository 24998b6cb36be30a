"""Cloning with a second task: what words mean is told of scenes that nobody acted in, and of those alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.kits.learner_kit as kit
import tests.policies.vla.test_flow as flows
from robotrl.algos.bc import BcCfg, BcLearner, BcLoss
from robotrl.datasets.reader import read_dataset
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.learner import Setup
from robotrl.rollout.demos import collect_demos
from tests.algos.test_pretrain import OPTIONS, TOKEN, sim, stopped_run_ends_the_same

PLAIN = BcCfg(updates=90, updates_per_iteration=30, batch=16, lr=2e-3, warmup=10, image_shift=0)
READS = replace(PLAIN, grounding_coef=1.0, scenes=6, symmetries=("mirror", "colours"))


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demos") / "d"
    return collect_demos("mujoco/tabletop", path, episodes=12, num_envs=12, sim_options=OPTIONS).path


def learner(demos: Path, cfg: BcCfg = READS, policy: Any = None, **of_setup: Any) -> BcLearner:
    return cfg.build(Setup(sim, TOKEN, policy, demos, seed=0, **of_setup))


def test_words_are_told_while_actions_are_cloned(demos: Path) -> None:
    made, plain = learner(demos, replace(READS, scenes=96)), learner(demos, PLAIN)
    scalars = [made.iterate() for _ in range(made.iterations)]
    assert scalars[-1]["grounding_loss"] < scalars[0]["grounding_loss"] and scalars[-1]["loss"] < scalars[0]["loss"]
    assert "grounding_loss" not in plain.iterate()
    assert made.policy.state_dict().keys() == plain.policy.state_dict().keys()
    assert set(kit.snapshot(made.state())) - set(kit.snapshot(plain.state())) == {"head"}
    made.close()
    plain.close()


def test_actions_are_cloned_from_demonstrations_and_words_told_of_scenes(demos: Path) -> None:
    made = learner(demos, replace(READS, symmetries=()))
    made.iterate()
    assert made._fresh is not None
    # two batches of 4 envs, each at the start and after a motion
    first = made._fresh.arrays
    assert {len(x) for x in first.values()} == {16}
    ones = {name: torch.full_like(x, 1) for name, x in first.items()}
    made._fresh = made._fresh._replace(arrays=ones)
    rows = made._draw(3)
    recorded = torch.from_numpy(read_dataset(demos).frames("observation.image_flat_near"))
    assert all((recorded == one).flatten(1).all(1).any() for one in rows["obs/image_flat_near"][::7])
    assert (rows["scene/image_flat_near"] == 1).all() and len(rows["scene/state"]) == len(rows["obs/state"]) == 48
    assert torch.equal(rows["grounding"], made._grounding.standard({"meant": torch.ones(48, 4)}))
    # the loss on actions is that of a plain clone, and the second task is weighed
    batch = {name: x[:16] for name, x in rows.items()}
    with torch.no_grad():
        twice, alone = (
            BcLoss(made.model, made._clone, cfg, grounding_keys)(batch, Context({"updates": torch.zeros(())}, {}, ""))
            for cfg, grounding_keys in ((replace(READS, grounding_coef=2.0), 4), (PLAIN, 0))
        )
    assert twice.loss == pytest.approx(float(alone.loss + 2 * twice.info["grounding_loss"]), rel=1e-5)
    made.iterate()
    assert not torch.equal(made._fresh.arrays["grounding/meant"], first["grounding/meant"])
    made.close()


def test_parts_of_a_batch_learn_what_the_whole_does(demos: Path) -> None:
    whole, parts = (learner(demos, replace(READS, updates=2, microbatch=size)) for size in (None, 4))
    for one in (whole, parts):
        one.iterate()
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    assert whole._loss.head is not None and parts._loss.head is not None
    assert torch.allclose(whole._loss.head.weight, parts._loss.head.weight, atol=1e-4)


def test_what_eyes_make_of_scenes_is_kept_too(demos: Path) -> None:
    cfg = replace(READS, updates=2, symmetries=())
    policies = [learner(demos, PLAIN).model for _ in range(2)]
    policies[1].load_state_dict(policies[0].state_dict())
    for policy in policies:
        policy.net.vision_backbone.requires_grad_(False)
    made, kept = learner(demos, cfg, policies[0]), learner(demos, cfg, policies[1], cache="image-features")
    for one in (made, kept):
        one.iterate()
    assert kept._fresh is not None and "obs/image_flat_near" not in kept._fresh.arrays
    for a, b in zip(made.model.parameters(), kept.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("network", ["smolvla", "pi0"])
def test_what_sees_and_reads_in_a_flow_policy_is_told_too(network: str, demos: Path) -> None:
    made = learner(demos, replace(READS, updates=4, updates_per_iteration=2), flows.policy_on(network, patch=16))
    made.iterate()
    for parameter in made.model.parameters():
        parameter.grad = None
    made._loss({name: x[:16] for name, x in made._draw(1).items()}, Context({"updates": torch.zeros(())}, {}, "")).info[
        "grounding_loss"
    ].backward()
    moved = {name for name, x in made.model.named_parameters() if x.grad is not None and x.grad.abs().max() > 0}
    assert any("vision" in name for name in moved) and any("text_model" in n or "language_model" in n for n in moved)
    # what is told is what the expert knows, but for its last map
    expert = "lm_expert" if network == "smolvla" else "model.dit"
    assert any(f"{expert}.layers.1." in name for name in moved) and not any("action_out_proj" in n for n in moved)
    made.close()


def test_a_stopped_run_ends_the_same(demos: Path, tmp_path: Path) -> None:
    stopped_run_ends_the_same(replace(READS, updates=20, updates_per_iteration=5), demos, tmp_path)


def test_what_cannot_be_told_is_refused(demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes, message in (
        ({"grounding_coef": -1.0}, r"algo\.grounding_coef is -1\.0"),
        ({"scenes": 0}, r"algo\.scenes is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            learner(demos, replace(READS, **changes))
    walks = kit.write_walks(tmp_path / "walks")
    for policy, message in (
        (kit.GAUSSIAN, r"policy GaussianPolicy lacks HasTextFeatures: algo\.grounding_coef is 1\.0"),
        (kit.FLOW, r"sim Walk lacks HasGroundingTargets: algo\.grounding_coef is 1\.0"),
    ):
        with pytest.raises(CapabilityError, match=message):
            replace(PLAIN, grounding_coef=1.0).build(kit.setup(None, policy, walks))
    monkeypatch.delattr("robotrl.sims.mujoco.tabletop.sim.TabletopFacts.grounding_keys")
    with pytest.raises(CapabilityError, match=r"lacks HasGroundingTargets: algo\.grounding_coef is 1\.0"):
        learner(demos)
