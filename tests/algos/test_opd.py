"""On-policy distillation and progress rewards: by hand, on a real sim, with a real teacher."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tests.kits.learner_kit as kit
from robotrl.algos.opd import DIVERGENCES, OpdCfg, OpdLearner, check_teacher
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn import distill
from robotrl.fn.progress.srpo import NOISE, centers, dbscan, progress_reward
from robotrl.fn.text import tokens
from robotrl.learners.learner import Setup
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.training import resume, train
from tests.algos.test_grpo import CFG, OPTIONS, learner, policy_on, rigged, tabletop
from tests.kits.refusals import raises_naming
from tests.training.test_resume import StopAt, assert_same_end

# divergences


def test_divergences_by_hand() -> None:
    """Two bins: student (1/2, 1/2), teacher (3/4, 1/4); tokens 0 and 1 were said."""
    logits = torch.zeros(2, 1, 2, dtype=torch.float64, requires_grad=True)
    taught = torch.tensor([[[0.75, 0.25]], [[0.75, 0.25]]], dtype=torch.float64).log()
    said, weight = torch.tensor([[0], [1]]), torch.ones(2, 1, dtype=torch.float64)
    reverse = distill.reverse_kl(logits, taught, said, weight, 1.0)
    up, down = np.log(1.5), np.log(0.5)
    assert reverse.item() == pytest.approx(-(up + down) * np.log(0.5) / 2)
    (grad,) = torch.autograd.grad(reverse, logits)
    # d log s / d logit is 1 - s for the token said
    assert grad[:, 0] == pytest.approx(torch.tensor([[-up, up], [down, -down]]) / 4)
    forward = distill.forward_kl(logits, taught, said, weight, 1.0)
    assert forward.item() == pytest.approx(np.log(2))
    (grad,) = torch.autograd.grad(forward, logits)
    assert grad[0, 0] == pytest.approx(torch.tensor([0.5 - 0.75, 0.5 - 0.25]) / 2)
    hard = distill.labels(logits, taught, said, torch.tensor([[2.0], [0.0]]), 1.0)
    assert hard.item() == pytest.approx(np.log(2))


@given(st.integers(0, 10**6), st.sampled_from(sorted(DIVERGENCES)), st.floats(0.5, 2.0))
@settings(max_examples=30, deadline=None)
def test_from_oneself_there_is_nothing_to_learn(seed: int, divergence: Any, temperature: float) -> None:
    """Exactly for the reverse divergence, up to rounding for the forward one; labels do pull."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 3, 8, generator=generator).requires_grad_()
    said = torch.randint(0, 8, (4, 3), generator=generator)
    loss = DIVERGENCES[divergence](logits, logits.detach().clone(), said, torch.ones(4, 3), temperature)
    (grad,) = torch.autograd.grad(loss, logits)
    if divergence == "reverse":
        assert not grad.any()
    elif divergence == "forward":
        assert grad.abs().max() < 1e-6
    else:
        assert grad.abs().max() > 1e-3


# the learner


def saved(path: Path, policy: Any) -> str:
    run = Run.create(path, {}, seed=0, command=[])
    run.save({"policy": policy_tree(policy)}, step=0)
    run.close()
    return str(path)


@functools.cache
def shown() -> dict[str, Tensor]:
    return {key: value.clone() for key, value in tabletop(8).reset(0).items()}


def student(teacher: str, **changes: Any) -> OpdLearner:
    cfg = replace(OpdCfg(teacher=teacher, iterations=2, minibatch=32), **changes)
    return cfg.build(Setup(tabletop, None, policy_on(tabletop(1)), None, seed=0))


def test_a_teacher_that_is_the_student_changes_nothing(tmp_path: Path) -> None:
    made = student(saved(tmp_path / "same", policy_on(tabletop(1))))
    before = {key: value.clone() for key, value in made.policy.state_dict().items()}
    scalars = made.iterate()
    assert scalars["kl_to_teacher"] == 0.0 and scalars["loss"] == 0.0 and scalars["decisions"] > 0
    assert all(torch.equal(value, before[key]) for key, value in made.policy.state_dict().items())


@pytest.mark.parametrize("divergence", sorted(DIVERGENCES))
def test_a_student_comes_nearer_to_its_teacher(tmp_path: Path, divergence: Any) -> None:
    teacher = policy_on(tabletop(1))
    # a teacher with a will of its own: it favours some bins, whatever it sees
    torch.manual_seed(3)
    head = teacher.net.language_model.lm_head.weight
    head.data += 0.1 * torch.randn_like(head)
    made = student(saved(tmp_path / "teacher", teacher), divergence=divergence, lr=2e-3)
    obs = {key: shown()[key] for key in made.policy.observation_spec}
    said = torch.zeros(8, 2, 5, dtype=torch.int64)

    def far() -> float:
        with torch.no_grad():
            ours, theirs = (p.token_logits(p.encode(obs), said).log_softmax(-1) for p in (made.policy, teacher))
            if divergence == "labels":
                return -float(ours.gather(-1, theirs.argmax(-1, keepdim=True)).mean())
            return float((theirs.exp() * (theirs - ours)).sum(-1).mean())

    before = far()
    for _ in range(5):
        scalars = made.iterate()
    assert far() < 0.9 * before
    assert np.isfinite(list(scalars.values())).all()


@pytest.mark.parametrize("end", [1.0, 0.5])
def test_the_learning_rate_falls_along_a_line(tmp_path: Path, end: float) -> None:
    """The second of two iterations is halfway; Adam's first step is as long as the rate."""
    teacher = policy_on(tabletop(1))
    teacher.net.language_model.lm_head.weight.data *= 1.5
    made = student(saved(tmp_path / "teacher", teacher), lr=1e-3, lr_end=end, minibatch=1024)
    made.load({**kit.snapshot(made.state()), "iteration": 1})
    before = {key: value.clone() for key, value in made.policy.state_dict().items()}
    made.iterate()
    after = made.policy.state_dict()
    step = max(float((after[key] - x).abs().max()) for key, x in before.items() if x.is_floating_point())
    assert step == pytest.approx(1e-3 * (1 + end) / 2, rel=0.02)


def test_a_stopped_distillation_ends_the_same(tmp_path: Path) -> None:
    teacher = policy_on(tabletop(1))
    teacher.net.language_model.lm_head.weight.data *= 1.5
    options = tuple(f"{key}={value}" for key, value in OPTIONS.items())
    cfg: TrainCfg[Any, Any] = TrainCfg(
        SimCfg("mujoco/tabletop", 8, options),
        OpdCfg(teacher=saved(tmp_path / "teacher", teacher), iterations=3, minibatch=32),
        TokenVlaCfg(),
        init_from=saved(tmp_path / "clone", policy_on(tabletop(1))),
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0),
        checkpoint_every=1,
    )
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(1)])
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_teachers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo\.teacher is not given"):
        student("")
    with pytest.raises(ConfigError, match=r"bins of the teacher is 16: expected 32"):
        student(saved(tmp_path / "bins", policy_on(tabletop(1), bins=16)))
    with pytest.raises(ConfigError, match=r"horizon of the teacher is 4: expected 2"):
        student(saved(tmp_path / "horizon", policy_on(tabletop(1), horizon=4)))
    with pytest.raises(
        ConfigError, match=r"the teacher reads 'image_flat_near', uint8 \(64, 64, 3\): the student has uint8"
    ):
        student(saved(tmp_path / "larger", policy_on(tabletop(1, image_size=64))))
    with pytest.raises(
        ConfigError, match=r"the teacher reads 'image_flat_front', .*: the student has .*image_flat_near"
    ):
        student(saved(tmp_path / "camera", policy_on(tabletop(1, image="flat_front"))))
    teacher = saved(tmp_path / "teacher", policy_on(tabletop(1)))
    with raises_naming(ConfigError, "algo.divergence", "revers", nearest="reverse"):
        student(teacher, divergence="revers")


def test_a_teacher_without_tokens_or_with_other_words_is_refused() -> None:
    with pytest.raises(CapabilityError, match="teacher FlowPolicy lacks HasTokens"):
        check_teacher(kit.flow(), policy_on(tabletop(1)))
    other = policy_on(tabletop(1))
    (key,) = (key for key, spec in other.observation_spec.items() if spec.words)
    spec = other.observation_spec[key]
    other.observation_spec = {**other.observation_spec, key: replace(spec, words=spec.words[::-1])}
    with pytest.raises(ConfigError, match="words of the teacher is"):
        check_teacher(other, policy_on(tabletop(1)))


def test_another_teacher_on_a_resume_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "teacher", policy_on(tabletop(1)))
    state = student(path).state()
    student(path).load(state)
    other = policy_on(tabletop(1))
    other.net.language_model.lm_head.weight.data *= 1.5
    with pytest.raises(ConfigError, match=r"algo\.teacher '.*other' has weights of SHA-256 .*: expected .*began with"):
        student(saved(tmp_path / "other", other)).load(state)


# progress


def test_clusters_by_hand() -> None:
    """Two chains and a point of its own; a border point joins the cluster that reaches it."""
    points = torch.tensor([[0.0], [0.4], [0.8], [5.0], [9.0], [9.3]])
    assert dbscan(points, 0.5, 2).tolist() == [0, 0, 0, NOISE, 1, 1]
    assert dbscan(points, 0.5, 3).tolist() == [0, 0, 0, NOISE, NOISE, NOISE]
    assert dbscan(points, 0.1, 1).tolist() == [0, 1, 2, 3, 4, 5]
    assert dbscan(torch.zeros(0, 3), 0.5, 2).tolist() == []


def test_centres_by_hand() -> None:
    """Features are compared in deviations: a wide one does not drown a narrow one."""
    won = torch.tensor([[0.0, 0.0], [1.0, 0.001], [1000.0, 0.0], [1001.0, 0.001]])
    near = centers(won, 2.1, 2)
    assert near.shape == (1, 2) and near[0] == pytest.approx(won.mean(dim=0))
    apart = centers(torch.tensor([[0.0], [0.0], [8.0], [8.0]]), 0.5, 2)
    assert apart.tolist() == [[0.0], [8.0]]
    assert centers(torch.tensor([[0.0], [8.0]]), 0.5, 2).tolist() == [[4.0]]
    assert centers(torch.tensor([[3.0, 1.0]]), 0.5, 2).tolist() == [[3.0, 1.0]]


def test_rewards_by_hand() -> None:
    """The nearest failure has scaled distance 0, the farthest 1; tasks are kept apart; without a success, nothing."""
    embedding = torch.tensor([[0.0], [1.0], [2.0], [3.0], [0.0], [7.0]])
    success = torch.tensor([True, False, False, False, False, False])
    task = torch.tensor([0, 0, 0, 0, 1, 1])
    reward = progress_reward(embedding, success, task)
    sigmoid = 1 / (1 + np.exp(-5.0))
    assert reward.tolist() == pytest.approx([1.0, 0.6 * sigmoid, 0.3, 0.6 * (1 - sigmoid), 0.0, 0.0])
    same = progress_reward(torch.ones(3, 1), torch.tensor([True, False, False]), torch.zeros(3, dtype=torch.int64))
    assert same.tolist() == pytest.approx([1.0, 0.3, 0.3])
    # rounding is no distance
    near = torch.tensor([[0.0], [0.0], [1.0], [1.0000001], [1.0000002]])
    rounded = progress_reward(near, torch.arange(5) < 2, torch.zeros(5, dtype=torch.int64))
    assert rounded.tolist() == pytest.approx([1.0, 1.0, 0.3, 0.3, 0.3])
    every = progress_reward(embedding, torch.ones(6, dtype=torch.bool), task)
    assert every.tolist() == [1.0] * 6


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_failure_is_never_worth_a_success(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(12, 5, generator=generator)
    success = torch.rand(12, generator=generator) < 0.3
    task = torch.randint(0, 3, (12,), generator=generator)
    reward = progress_reward(embedding, success, task, cap=0.6)
    assert (reward[success] == 1).all() and (reward[~success] < 0.6).all() and (reward >= 0).all()
    order = torch.randperm(12, generator=generator)
    again = progress_reward(embedding[order], success[order], task[order], cap=0.6)
    assert torch.allclose(again, reward[order], atol=1e-5)


def test_groups_that_all_fail_teach_by_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """One success in another group of the task shows the way; without progress, such groups are dropped."""
    ended = [True, False, False, False, False, False, False, False]
    plain = learner(replace(CFG, keep_low=0.0, keep_high=1.0, tries=1))
    rigged(monkeypatch, plain, ended)
    assert plain.iterate()["groups_kept"] == 1
    shaped = learner(replace(CFG, progress="embedding", keep_by="reward", tries=1))
    seen = rigged(monkeypatch, shaped, ended)
    before = {key: value.clone() for key, value in shaped.policy.state_dict().items()}
    scalars = shaped.iterate()
    assert scalars["groups_kept"] == 2 and scalars["ratio_error"] <= 1e-5
    assert any(not torch.equal(before[key], value) for key, value in shaped.policy.state_dict().items())
    found, reward = shaped._rewarded(seen[0])
    assert reward.shape == (2, 4) and reward[0, 0] == 1 and (reward.flatten()[1:] < 0.6).all()
    assert found.start.tolist() == seen[0].start.tolist()


def test_a_group_that_succeeds_as_a_whole_shows_the_way_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other, in which all fail, is worth how near it came; as many more are drawn as are wanted."""
    shaped = learner(replace(CFG, progress="embedding", keep_by="reward", tries=3))
    seen = rigged(monkeypatch, shaped, [True] * 4 + [False] * 4)
    scalars = shaped.iterate()
    assert len(seen) == 2 and scalars["groups_drawn"] == 4 and scalars["groups_kept"] == 2
    # by what the sim pays, returns of successes say nothing that is to be learned
    paid = learner(replace(CFG, progress="return", keep_by="reward", tries=3))
    rigged(monkeypatch, paid, [True] * 8, [1.0, 0.2, 0.3, 0.9, 0.5, 0.6, 0.7, 0.8])
    assert paid.iterate()["groups_kept"] == 0


def test_what_the_sim_pays_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups in which all fail are told apart by their returns; equal returns teach nothing."""
    made = learner(replace(CFG, progress="return", keep_by="reward", tries=1))
    returned = [0.1, 0.4, 0.2, 0.3, 1.5, 1.5, 1.5, 1.5]
    seen = rigged(monkeypatch, made, [False] * 4 + [True, True, True, False], returned)
    scalars = made.iterate()
    assert scalars["groups_kept"] == 1 and scalars["ratio_error"] <= 1e-5
    found, reward = made._rewarded(seen[0])
    assert reward.flatten().tolist() == pytest.approx(returned[:4])
    assert found.start.tolist() == seen[0].start[:4].tolist()
    # the binary reward makes nothing of the first group
    plain = learner(CFG)
    assert len(plain._rewarded(seen[0])[1]) == 1 and plain._rewarded(seen[0])[1].flatten().tolist() == [1, 1, 1, 0]


def test_the_eye_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(replace(CFG, progress="embedding", keep_by="reward", tries=1, lr=1e-2))
    rigged(monkeypatch, made, [True, False, False, False] * 2)
    eye = {key: value.clone() for key, value in made._encoder.state_dict().items()}
    made.iterate()
    assert all(torch.equal(value, eye[key]) for key, value in made._encoder.state_dict().items())
    now = made.policy.net.vision_backbone.state_dict()
    assert any(not torch.equal(value, now[key.removeprefix("towers.")]) for key, value in eye.items())
    other = learner(replace(CFG, progress="embedding", keep_by="reward", tries=1))
    other.load(made.state())
    assert all(torch.equal(value, eye[key]) for key, value in other._encoder.state_dict().items())


def test_what_progress_needs() -> None:
    unheard: Any = "embeding"
    with raises_naming(ConfigError, "algo.progress", "embeding", nearest="embedding"):
        learner(replace(CFG, progress=unheard))
    with raises_naming(ConfigError, "algo.progress_cap", 1.0, 0, 1):
        learner(replace(CFG, progress="embedding", progress_cap=1.0))
    for changes, said in (
        ({"progress_cap": 0.3}, r"algo\.progress_cap is 0\.3 beside algo\.progress 'none': expected embedding"),
        ({"progress": "return", "progress_steepness": 3.0}, r"steepness is 3\.0 beside algo\.progress 'return'"),
        (
            {"progress": "return", "keep_by": "reward", "keep_low": 0.3},
            r"keep_low is 0\.3 beside algo\.keep_by 'reward'",
        ),
        ({"keep_by": "reward"}, r"algo\.keep_by is 'reward' beside algo\.progress 'none': expected success"),
        (
            {"groups": 5},
            r"algo\.groups is 5: expected 4 or fewer, which algo\.tries x sim\.num_envs / algo\.group_size can",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            learner(replace(CFG, **changes))

    class Blind(torch.nn.Module):
        """Decodes tokens, and has no separate vision encoder."""

        def __init__(self, policy: Any) -> None:
            super().__init__()
            self.inner = policy
            for name in ("horizon", "action_spec", "observation_spec", "bins", "temperature", "label_bins"):
                setattr(self, name, getattr(policy, name))
            self.encode, self.token_logits = policy.encode, policy.token_logits
            self.sample_tokens = policy.sample_tokens
            self.to_tokens, self.from_tokens = policy.to_tokens, policy.from_tokens

    with pytest.raises(CapabilityError, match="policy Blind lacks HasVisionEncoder"):
        replace(CFG, progress="embedding").build(Setup(tabletop, None, Blind(policy_on(tabletop(1))), None, seed=0))
    assert tokens.entropy(torch.zeros(1, 2), 1.0).item() == pytest.approx(np.log(2))
