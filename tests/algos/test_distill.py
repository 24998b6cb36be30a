"""Distillation into one step: what the student learns, where it is compared, how it resumes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.distillation.same_noise import decoder_of, same_noise
from robotrl.policies.flow import FlowPolicy
from robotrl.policies.steered import SteeredCfg
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from tests.kits.refusals import raises_naming

CFG = replace(off.DISTILL, env_steps=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("distill") / "data", episodes=40)


def built(cfg: Any, data: Path | None, teacher: Any) -> Any:
    return cfg.build(off.setup(None, data, teacher))


def test_the_loss_is_the_distance_to_the_teacher_from_the_same_noise(data: Path) -> None:
    teacher = kit.diffusion()
    learner = built(CFG, data, teacher)
    rows = learner._draw(2)
    obs = {"walk": rows["obs/walk"]}
    teacher_chunk = decoder_of(teacher).decode(obs, rows["noise"])
    assert torch.allclose(rows["teacher_chunk"], teacher_chunk, atol=1e-6) and rows["teacher_chunk"].shape == (64, 2, 1)
    context = Context({"updates": torch.zeros(())}, {}, "")
    student = learner._loss.learned
    wanted = same_noise(student.decode(student.encode(obs), rows["noise"]), teacher_chunk)
    assert learner._loss(rows, context).loss.item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("make", [kit.flow, kit.diffusion])
def test_the_student_comes_close_to_its_teacher(data: Path, make: Any) -> None:
    cfg = replace(CFG, updates=400, updates_per_iteration=100, batch=128, ema=0.9)
    learner = built(cfg, data, make())
    distances = [line["heldout_distance"] for line in off.run(learner, 4)]
    assert distances[-1] < 0.15 and distances[-1] < distances[0]
    assert isinstance(learner.policy, FlowPolicy) and learner.policy.denoising_steps == 1
    average = learner._engine.averages("learned.")
    assert all(torch.equal(x, average[name]) for name, x in learner.policy.named_parameters())


def test_a_steered_policy_is_distilled_with_its_actor(data: Path) -> None:
    torch.manual_seed(3)
    steered = SteeredCfg(bound=0.5, hidden=(16,)).build(kit.flow())
    learner = built(replace(CFG, updates=300, updates_per_iteration=100, batch=128, ema=0.9), data, steered)
    distances = [line["heldout_distance"] for line in off.run(learner, 3)]
    assert distances[-1] < 0.15
    obs, noise = {"walk": torch.zeros(64, 2)}, torch.randn(64, 2, 1)
    with torch.no_grad():
        teacher_chunk, student = (one.deploy(obs, noise).actions for one in (steered, learner.policy))
    assert (teacher_chunk - student).square().mean().sqrt() < 0.2


def test_episodes_that_are_held_out_are_not_learned_from(data: Path) -> None:
    learner = built(replace(CFG, held_out=0.25), data, kit.flow())
    learned, held = set(learner._learned.tolist()), set(learner._held.tolist())
    assert not learned & held and len(learned | held) == len(learner._data)
    assert 0.1 < len(held) / len(learner._data) < 0.4
    seen = learner._data.view(learner._learned, 1, 1.0).obs["walk"]
    known = {tuple(row) for row in seen.tolist()}
    assert all(tuple(row) in known for row in learner._draw(4)["obs/walk"].tolist())
    compared = learner._compare()
    apart = learner._data.view(learner._held, 1, 1.0).obs["walk"].tolist()
    assert sorted(compared.obs["walk"].tolist()) == sorted(apart)
    assert "heldout_distance" not in built(replace(CFG, held_out=0.0), data, kit.flow()).iterate()


def test_the_teacher_says_what_it_would_do_where_the_student_gets_to() -> None:
    """Without a dataset all observations are the student's own."""
    teacher = kit.flow()
    learner = built(replace(CFG, updates=0, env_steps=64, utd_ratio=0.5), None, teacher)
    log = off.run(learner, learner.iterations)
    assert learner.env_steps == 64 and learner.updates == 32
    assert "distill_loss" in log[-1] and "heldout_distance" not in log[-1]
    rows = learner._draw(1)
    own = learner.experience.memory.replay
    known = {tuple(row) for row in own.view(own.indices(), 1, 1.0).obs["walk"].tolist()}
    assert all(tuple(row) in known for row in rows["obs/walk"].tolist())
    assert torch.allclose(rows["teacher_chunk"], decoder_of(teacher).decode({"walk": rows["obs/walk"]}, rows["noise"]))


def test_a_resumed_run_has_its_teacher_from_its_own_checkpoint(data: Path) -> None:
    teacher = kit.diffusion()
    learner = built(CFG, data, teacher)
    off.run(learner, 1)
    state, student = kit.snapshot(learner.state()), policy_from_tree(policy_tree(learner.policy), "checkpoint")
    again = CFG.build(off.setup(None, data, student)._replace(resumed=True))
    again.load(state)
    assert type(again._teacher.policy) is type(teacher)
    assert all(torch.equal(a, b) for a, b in zip(again._teacher.policy.parameters(), teacher.parameters(), strict=True))
    assert off.run(again, 1) == off.run(learner, 1)


def test_what_cannot_work_is_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match="init_from is not given: expected the run of the policy to distill"):
        CFG.build(off.setup(kit.FLOW, data))
    with pytest.raises(CapabilityError, match="BetaPolicy"):
        built(CFG, data, kit.beta())
    with raises_naming(ConfigError, "policy.denoising_steps", 1, 2):
        built(CFG, data, kit.flow().with_steps(1))
    with pytest.raises(ConfigError, match=r"algo\.updates is 20 and algo\.env_steps 0 without a dataset"):
        built(CFG, None, kit.flow())
    for field, value, expected in (
        ("updates", 0, 1),
        ("held_out", 1.0, 0),
        ("online_share", 0.0, 0),
        ("lr", 0.0, 0),
        ("lr_end", 2.0, 1),
        ("ema", 1.0, 0),
        ("engine", "fast", "eager"),
    ):
        with raises_naming(ConfigError, f"algo.{field}", value, expected):
            replace(CFG, **{field: value}).check()
