"""One-step students: what they are built of, their bundle, and a linear one that is worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.export import export, parity_of
from robotrl.errors import CapabilityError
from robotrl.fn.distillation.same_noise import NoiseDecoder, decoder_of, same_noise, teacher_chunks
from robotrl.policies.flow import FlowPolicy
from robotrl.policies.one_step import one_step
from robotrl.policies.shortcut import ShortcutPolicy
from robotrl.policies.staged import StagedPolicy
from robotrl.policies.steered import SteeredCfg
from robotrl.run.policy_checkpoint import changed, policy_from_tree, policy_tree
from tests.kits.policy_kit import CFGS, make_policy, observations


class Linear(nn.Module):
    """A network a . ctx + b x, for chunks of one number."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(context)), nn.Parameter(torch.zeros(()))

    def forward(self, ctx: Tensor, x: Tensor, time: Tensor) -> Tensor:
        return (ctx @ self.a)[:, None, None] + self.b * x


def linear_flow(a: Tensor, b: float, steps: int) -> FlowPolicy:
    policy = make_policy("flow-one-step").with_steps(steps)
    policy.net = Linear(len(a))
    with torch.no_grad():
        policy.net.a.copy_(a)
        policy.net.b.fill_(b)
    return policy


def test_the_student_of_a_linear_teacher_is_worked_by_hand() -> None:
    """Velocity a.c - x in two steps: x1 = w/2 + a.c/2, x2 = x1/2 + a.c/2 = w/4 + 3/4 a.c.

    In one step, w + a'.c + b' w, that is a' = 3/4 a and b' = -3/4.
    """
    a = torch.tensor([0.4, -0.8, 0.2, 1.0, -0.4])
    teacher = linear_flow(a, -1.0, 2)
    obs, noise = observations(64), torch.randn(64, 1, 2, generator=torch.Generator().manual_seed(0))
    teacher_chunk = teacher_chunks(decoder_of(teacher), obs, noise, 24)
    by_hand = 0.25 * noise + 0.75 * (teacher.encode(obs) @ a)[:, None, None]
    assert torch.allclose(teacher_chunk, by_hand, atol=1e-6) and not teacher_chunk.requires_grad
    student = decoder_of(linear_flow(0.75 * a, -0.75, 1))
    assert same_noise(student.decode(obs, noise), teacher_chunk).item() < 1e-12
    # half the step of the student from 1/4 w + 3/4 a.c to a.c: 1/4 (a.c - w), squared
    other = decoder_of(linear_flow(a, -1.0, 1))
    wanted = (0.25 * (teacher.encode(obs) @ a)[:, None, None] - 0.25 * noise).square().mean()
    assert same_noise(other.decode(obs, noise), teacher_chunk).item() == pytest.approx(wanted.item(), rel=1e-5)
    # and it is where the loss leads to
    learned: Any = one_step(teacher)
    optimizer = torch.optim.LBFGS(learned.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = same_noise(decoder_of(learned).decode(obs, noise), teacher_chunk)
        loss.backward()
        return loss

    optimizer.step(closure)  # pyright: ignore[reportArgumentType]
    assert torch.allclose(learned.net.a, 0.75 * a, atol=1e-3)
    assert learned.net.b.item() == pytest.approx(-0.75, abs=1e-3)


def test_no_gradient_reaches_the_teacher() -> None:
    chunk, teacher_chunk = (torch.full((2, 1, 1), value, requires_grad=True) for value in (1.0, 0.5))
    same_noise(chunk, teacher_chunk).backward()
    assert teacher_chunk.grad is None
    assert chunk.grad is not None and chunk.grad.flatten().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", ["flow", "shortcut", "diffusion", "diffusion-unet", "diffusion-picture"])
@torch.no_grad()
def test_a_student_takes_one_step_and_reads_as_its_teacher_does(name: str) -> None:
    teacher = make_policy(name)
    teacher.control_dt_s = 0.1
    student = one_step(teacher)
    assert student.denoising_steps == 1 and student.control_dt_s == 0.1
    assert type(student) is (ShortcutPolicy if name == "shortcut" else FlowPolicy)
    assert student.noise_shape == teacher.noise_shape and student.transforms == teacher.transforms
    obs = observations(4, policy=teacher)
    assert torch.equal(student.encode(obs), teacher.encode(obs))
    assert all(parameter.requires_grad for parameter in student.parameters())
    # a copy
    before = teacher.encode(obs)
    for parameter in student.parameters():
        parameter.add_(1)
    assert torch.equal(teacher.encode(obs), before)
    noise = torch.randn(4, *teacher.noise_shape)
    again = policy_from_tree(policy_tree(student), "checkpoint")
    assert torch.equal(again.deploy(obs, noise).actions, student.deploy(obs, noise).actions)


@torch.no_grad()
def test_the_bundle_of_a_diffusions_student_is_one_evaluation(tmp_path) -> None:
    student = one_step(make_policy("diffusion"))
    recorded = {key: x.numpy() for key, x in observations(1200, policy=student).items()}
    report = export(student, tmp_path / "bundle", observations=recorded, control_dt_s=0.1)
    assert report.parity_max_rel <= 1e-5
    bundle = open_bundle(tmp_path / "bundle")
    assert (bundle.manifest.sampler.steps, bundle.manifest.sampler.noise_shape) == (1, (3, 2))
    fresh = {key: x.numpy() for key, x in observations(100, seed=7, policy=student).items()}
    assert parity_of(student, bundle, fresh).max_rel <= 1e-5


@torch.no_grad()
def test_steered_and_staged_policies_have_students_too() -> None:
    base = changed(make_policy("flow"), {"deploy_noise": 0.5})
    steered = SteeredCfg(bound=1.2, hidden=(16,)).build(base)
    obs, noise = observations(5), torch.randn(5, 3, 2)
    found = decoder_of(steered)
    assert found.noise_shape == (3, 2)
    assert torch.equal(found.decode(obs, noise), steered.deploy(obs, noise).normalized_action)
    student = one_step(steered)
    assert student.deploy_noise == student.cfg.deploy_noise == 1.0
    assert all(parameter.requires_grad for parameter in student.parameters())
    early, late = make_policy("diffusion", 0), make_policy("diffusion", 1)
    staged = StagedPolicy(early, late, 2)
    assert isinstance(decoder_of(staged), NoiseDecoder)
    assert torch.equal(one_step(staged).encode(obs), late.encode(obs))


def test_what_does_not_denoise_is_refused() -> None:
    for name in ("gaussian", "beta", "best-of"):
        for make in (one_step, decoder_of):
            with pytest.raises(CapabilityError, match=type(make_policy(name)).__name__):
                make(make_policy(name))
    still = replace(SteeredCfg(), deploy="mean", hidden=(16,)).build(make_policy("flow"))
    with pytest.raises(CapabilityError, match="SteeredPolicy"):
        decoder_of(still)


def test_a_flow_of_one_step_is_a_row_of_the_contract() -> None:
    """Students are such policies; `tests/conformance/test_policies.py` checks them as all others."""
    assert CFGS["flow-one-step"].denoising_steps == CFGS["shortcut-one-step"].denoising_steps == 1
