"""VLA-RL: one ratio for a decision, a critic on a frozen copy, its head start, an exact resume, on a real sim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.kits.learner_kit as kit
from robotrl.algos.vla_rl import VlaRlCfg, VlaRlLearner, decision_log_prob
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.learner import Setup
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.rollout.storage import Rollout
from robotrl.spec import HasObservationEncoder
from robotrl.training import resume, train
from tests.algos.test_grpo import OPTIONS, policy_on, tabletop
from tests.algos.test_opd import saved
from tests.training.test_resume import StopAt, assert_same_end

CFG = VlaRlCfg(
    env_steps=8 * 8 * 3,
    num_steps=8,
    minibatch=16,
    critic_warmup_env_steps=1,
    critic_hidden=(32,),
    lr=1e-3,
    critic_lr=3e-3,
)


def learner(cfg: VlaRlCfg = CFG, **changes: Any) -> VlaRlLearner:
    return cfg.build(Setup(tabletop, None, policy_on(tabletop(1), **changes), None, seed=0))


def test_a_decision_has_one_log_probability() -> None:
    logits = torch.tensor([[[[0.0, np.log(3.0)], [0.0, 0.0]]]])
    found = decision_log_prob(logits, torch.tensor([[[1, 0]]]), 1.0)
    assert found.exp().item() == pytest.approx(0.75 * 0.5)


def test_the_critic_has_a_head_start_and_the_first_ratio_is_one() -> None:
    made = learner()
    before = {key: value.clone() for key, value in made.policy.state_dict().items()}
    critic = {key: value.clone() for key, value in made.critic.state_dict().items()}
    first = made.iterate()
    assert "ratio_error" not in first and first["value_loss"] >= 0
    assert all(torch.equal(value, before[key]) for key, value in made.policy.state_dict().items())
    assert any(not torch.equal(value, critic[key]) for key, value in made.critic.state_dict().items())
    second = made.iterate()
    assert second["ratio_error"] <= 1e-5 and second["actor_updates"] > 1
    assert any(not torch.equal(value, before[key]) for key, value in made.policy.state_dict().items())


def test_the_reader_is_a_frozen_copy_of_the_start() -> None:
    made = learner()
    assert isinstance(made.policy, HasObservationEncoder)
    obs = {key: value.clone() for key, value in tabletop(4).reset(0).items()}
    with torch.no_grad():
        read = made._reader(obs)
        ctx = made.policy.encode(obs)
        assert torch.equal(read, made.policy.net.summary(ctx))
    assert read.shape == (4, made._reader.width)
    for _ in range(2):
        made.iterate()
    with torch.no_grad():
        assert torch.equal(made._reader(obs), read)
        assert not torch.equal(made.policy.observation_encoder()(obs), read)
    changed = {**obs, "instruction": obs["instruction"].roll(1, 0)}
    assert not torch.equal(made._reader(changed), read)


def test_the_critic_sees_what_the_sim_alone_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner()
    seen = list[dict[str, Any]]()
    value = made._value
    monkeypatch.setattr(made, "_value", lambda obs: (seen.append(obs), value(obs))[1])
    made.iterate()
    obs = seen[0]
    with torch.no_grad():
        before = value(obs)
        for key in ("things", "meant", "state"):
            assert not torch.equal(value({**obs, key: obs[key] + 0.1}), before)
    # its normalisation is that of what was seen, and is kept
    again = learner()
    again.load(kit.snapshot(made.state()))
    with torch.no_grad():
        assert torch.equal(again._value(obs), value(obs))
    assert float(made._normalizer.state()["things"]["count"]) > 0


@pytest.mark.parametrize("warmup", [0, 3])
def test_the_first_steps_of_the_policy_are_short(warmup: int) -> None:
    made = learner(replace(CFG, critic_warmup_env_steps=0, epochs=1, minibatch=64, lr=1e-3, warmup=warmup))
    before = {key: value.clone() for key, value in made.policy.named_parameters()}
    made.iterate()
    longest = max(float((x.detach() - before[key]).abs().max()) for key, x in made.policy.named_parameters())
    assert longest == pytest.approx(1e-3 / (warmup + 1), rel=0.02)


def test_advantages_keep_their_size_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(made: VlaRlLearner) -> None:
        update = made._update
        monkeypatch.setattr(made, "_update", lambda batch: (seen.append(batch.advantage), update(batch))[1])
        made.iterate()

    watched(learner())
    watched(learner(replace(CFG, normalize_advantage=True)))
    assert float(seen[1].std(unbiased=False)) == pytest.approx(1.0, abs=1e-3)
    assert abs(float(seen[0].std(unbiased=False)) - 1.0) > 1e-2


def test_it_learns_what_is_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward for decisions whose first element leans to the high bins: from half of them to most."""
    cfg = replace(CFG, env_steps=8 * 8 * 40, critic_warmup_env_steps=2 * 8 * 8, lr=3e-3, minibatch=32, gamma=0.5)
    made = learner(cfg)
    collect, rates = made._collector.collect, list[float]()

    def told(decide: Any, steps: int) -> Rollout:
        found = collect(decide, steps)
        high = (found.record["tokens"][..., 0].float().mean(dim=-1) > 15.5) & found.valid
        rates.append(float(high.sum() / found.valid.sum()))
        return found._replace(reward=high.float())

    monkeypatch.setattr(made._collector, "collect", told)
    for _ in range(made.iterations):
        made.iterate()
    assert np.mean(rates[:3]) < 0.75 and np.mean(rates[-4:]) > 0.9


def test_a_stopped_run_ends_the_same(tmp_path: Path) -> None:
    options = tuple(f"{key}={value}" for key, value in OPTIONS.items())
    cfg: TrainCfg[Any, Any] = TrainCfg(
        SimCfg("mujoco/tabletop", 8, options),
        CFG,
        TokenVlaCfg(),
        init_from=saved(tmp_path / "clone", policy_on(tabletop(1))),
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0),
        checkpoint_every=1,
    )
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(2)])
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CFG.build(Setup(tabletop, None, None, None, 0)), ConfigError, "VLA-RL starts from a policy"),
        (
            lambda: CFG.build(Setup(tabletop, None, torch.nn.Linear(1, 1), None, 0)),
            CapabilityError,
            "policy Linear lacks HasTokens",
        ),
        (lambda: learner(replace(CFG, value_clip=0.0)), ConfigError, r"algo\.value_clip is 0\.0"),
        (
            lambda: learner(replace(CFG, critic_warmup_env_steps=-1)),
            ConfigError,
            r"algo\.critic_warmup_env_steps is -1",
        ),
        (lambda: learner(replace(CFG, num_steps=1)), ConfigError, r"algo\.num_steps is 1"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
