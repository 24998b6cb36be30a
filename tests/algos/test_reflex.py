"""Reflex: its target by hand, the transitions that it records, when it acts, what it learns, what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import robotrl
from robotrl.algos.reflex import ReflexCfg, ReflexLearner, TickRecorder, TickReplay, risk_loss, risk_target
from robotrl.api.evaluation import evaluate_path
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.learner import Setup
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.guarded import GuardedCfg, GuardedPolicy, RiskReflex
from robotrl.rollout.evaluate import evaluate
from robotrl.run.checkpoint import write_checkpoint
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec.actuation import HasReflex, ServoTick
from robotrl.testing.algorithms import fresh_policy
from robotrl.utils.devices import CPU
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

CFG = ReflexCfg(env_steps=8 * 6 * 3, num_steps=6, updates=4, batch=32, capacity=1000)
GUARDED = GuardedCfg(hidden=(16,))


def press(num_envs: int = 8, **options: Any) -> Any:
    return robotrl.make_sim("mujoco/press", num_envs, seed=0, threads=1, **options)


def task_policy(sim: Any) -> Any:
    torch.manual_seed(0)
    return fresh_policy(GaussianCfg(horizon=1, hidden=(16,)), sim)


def guarded(sim: Any, cfg: GuardedCfg = GUARDED) -> GuardedPolicy:
    return replace(cfg, columns=tuple(sim.servo_spec.names), recovery=tuple(sim.retract)).build(task_policy(sim))


def setup(sim: Any = None, policy_cfg: Any = GUARDED, init_policy: Any = None) -> Setup:
    sim = press() if sim is None else sim
    return Setup(lambda: sim, policy_cfg, task_policy(press()) if init_policy is None else init_policy, None, 0)


# loss


def test_a_violation_is_absorbing() -> None:
    violated, following = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.0, 0.9])
    assert risk_target(violated, following, 0.9).tolist() == pytest.approx([0.45, 0.0, 1.0])


def test_the_loss_is_the_cross_entropy_of_probabilities() -> None:
    # a risk of 1/2 against 1/4; then of 1/(1 + e) against 0
    logit, target = torch.tensor([0.0, -1.0]), torch.tensor([0.25, 0.0])
    expected = (math.log(2) - math.log(1 - 1 / (1 + math.e))) / 2
    assert risk_loss(logit, target).item() == pytest.approx(expected)


# transitions


class Clock:
    """As much of a sim with a servo clock as a recorder reads."""

    num_envs, hazard_limit, device = 2, 1.0, CPU
    action_spec = press(1).action_spec


def recorded(cfg: ReflexCfg, hazards: list[list[float]], started: list[list[bool]]) -> tuple[TickReplay, list[Tensor]]:
    """Transitions of ticks in which tick k measures k in both envs, and the policy asks for -k / 10 in all axes."""
    replay, sent = TickReplay(100), list[Tensor]()
    policy = guarded(press(1))
    recorder = TickRecorder(replay, RiskReflex(policy, 1.0), policy, Clock(), cfg, torch.Generator().manual_seed(0))
    for k, (hazard, first) in enumerate(zip(hazards, started, strict=True)):
        obs, action = torch.full((2, 6), float(k)), torch.full((2, 4), -k / 10)
        sent.append(recorder.act(ServoTick(obs, action, 0, torch.tensor(first))))
        recorder.felt(obs + 1, torch.tensor(hazard, dtype=torch.float64))
    return replay, sent


def test_a_tick_is_followed_by_the_next_one_of_its_episode() -> None:
    quiet = replace(CFG, explore=0.0)
    hazards = [[0.0, 0.0], [0.5, 2.0], [0.0, 0.0], [0.0, 0.0]]
    # both episodes end with the second tick, that of env 1 by a violation
    replay, _ = recorded(quiet, hazards, [[True, True], [False, False], [True, True], [False, False]])
    rows = {name: replay.rows(name) for name in ("obs", "action", "violated", "next_obs", "next_action")}
    assert rows["obs"][:, 0].tolist() == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert rows["violated"].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert rows["next_obs"][:, 0].tolist() == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert rows["action"][:, 2].tolist() == pytest.approx([0.0, 0.0, -0.1, -0.2, -0.2])
    assert rows["next_action"][:, 2].tolist() == pytest.approx([-0.1, -0.1, -0.2, -0.3, -0.3])


def test_exploration_sends_random_actions_and_the_recovery() -> None:
    count = 300
    _, sent = recorded(replace(CFG, explore=0.4), [[0.0, 0.0]] * count, [[False, False]] * count)
    recovery = torch.tensor(press(1).retract)
    actions = torch.cat(sent)
    recovered = (actions == recovery).all(dim=1)
    own = (actions == torch.arange(count).repeat_interleave(2)[:, None] / -10).all(dim=1)
    assert 0.15 < recovered.float().mean() < 0.25 and 0.55 < own.float().mean() < 0.65
    drawn = actions[~recovered & ~own]
    assert drawn.min() < -0.8 and drawn.max() > 0.8 and drawn.abs().max() <= 1


def test_a_ring_keeps_the_newest_and_is_restored() -> None:
    replay = TickReplay(4)
    for first in (0.0, 3.0):
        replay.add({"x": torch.arange(first, first + 3)})
    assert sorted(replay.rows("x").tolist()) == [2.0, 3.0, 4.0, 5.0] and len(replay) == 4
    other = TickReplay(4)
    other.load(replay.state())
    for one in (replay, other):
        one.add({"x": torch.tensor([9.0])})
    assert torch.equal(replay.rows("x"), other.rows("x"))


# reflex


def test_it_acts_above_its_threshold_at_its_rate() -> None:
    policy = guarded(press(1))
    obs = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    action = torch.zeros(64, 4)
    risk = policy.risk.risk(obs, action).detach()
    threshold = float(risk.median())
    servo, slow = RiskReflex(policy, threshold), RiskReflex(policy, threshold, "policy")
    none = torch.zeros(64, dtype=torch.bool)
    recovery = torch.tensor(policy.cfg.recovery)
    for number, seen in enumerate((obs, obs.flip(0))):
        expected = torch.where((policy.risk.risk(seen, action) > threshold)[:, None], recovery, action)
        assert torch.equal(servo.act(ServoTick(seen, action, number, none)), expected)
        first = torch.where((risk > threshold)[:, None], recovery, action)
        # at the policy's rate, what was decided at the first tick holds
        assert torch.equal(slow.act(ServoTick(seen, action, number, none)), first)
    assert torch.equal(slow.act(ServoTick(obs.flip(0), action, 0, none)), expected)


def test_an_evaluation_has_the_reflex_act(tmp_path: Path) -> None:
    always, never = (guarded(press(1), replace(GUARDED, threshold=t)) for t in (0.0, 1.0))
    assert isinstance(always, HasReflex)
    lengths = dict[str, Any]()
    for name, policy in (("always", always), ("never", never), ("alone", always.base)):
        sim = press(4, reward="shaped", limit_s=0.5)
        lengths[name] = evaluate(policy, sim, episodes=4).returns.tolist()
        assert sim.core.reflex is None
    # by a path, as robotrl eval does
    write_checkpoint(tmp_path / "always", {"policy": policy_tree(always)}, step=1, kind="test")
    options = {"reward": "shaped", "limit_s": 0.5}
    found = evaluate_path(tmp_path / "always", sim="mujoco/press", episodes=4, options=options, num_envs=4)
    assert found.returns.tolist() == lengths["always"]
    assert lengths["never"] == lengths["alone"] != lengths["always"]


# learning


def test_it_learns_what_leads_to_violations() -> None:
    """Beside a policy that comes down: nothing is risky far above, pushing on is."""
    sim = press(32)
    policy = task_policy(sim)
    down = torch.tensor([0.0, 0.0, -0.5, 0.0])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        bias = [p for name, p in policy.named_parameters() if name.endswith("bias") and p.shape == (4,)][-1]
        bias.copy_(down)
    assert torch.allclose(policy.act(sim.reset(), mode="mean").chunk[0, 0], down)
    cfg = ReflexCfg(env_steps=32 * 20 * 8, num_steps=20, updates=80, batch=256, lr=3e-3, tau=0.05)
    learner = ReflexLearner(cfg, setup(sim, init_policy=policy))
    scalars = [learner.iterate() for _ in range(8)]
    assert scalars[0]["violations"] > 0.02 and scalars[0]["fired"] == 0
    risk, recovery = learner.policy.risk, torch.tensor(learner.policy.cfg.recovery)
    rows = {name: learner._replay.rows(name) for name in ("obs", "action", "violated")}
    above, force = (rows["obs"][:, sim.servo_spec.names.index(x)] for x in ("tip_above_estimate", "contact_force"))
    own = (rows["action"] - down).abs().amax(dim=1) < 1e-6
    soon, far = (force > 0.8 * sim.hazard_limit) & own, (above > 0.04) & own
    asked, recovered = risk.risk(rows["obs"], rows["action"]), risk.risk(rows["obs"], recovery.expand(len(force), 4))
    assert asked[soon].mean() > 0.8 and asked[far].mean() < 0.5
    assert recovered[soon].mean() < asked[soon].mean()


def test_the_task_policy_stays_as_it_is() -> None:
    learner = ReflexLearner(CFG, setup())
    before = {name: x.clone() for name, x in learner.policy.base.state_dict().items()}
    learner.iterate()
    assert all(torch.equal(x, before[name]) for name, x in learner.policy.base.state_dict().items())


# refusals


def test_what_it_refuses() -> None:
    walk = Walk(4)
    with pytest.raises(CapabilityError, match=r"Walk lacks HasServoClock: expected .* such as mujoco/press"):
        CFG.build(setup(walk, init_policy=task_policy(press())))
    with pytest.raises(ConfigError, match="init_from is not given"):
        CFG.build(setup()._replace(init_policy=None))
    with pytest.raises(CapabilityError, match="GaussianCfg has no risk critic: use GuardedCfg"):
        CFG.build(setup(policy_cfg=GaussianCfg()))
    with raises_naming(ConfigError, "policy.columns", "contact_forces", nearest="contact_force"):
        CFG.build(setup(policy_cfg=replace(GUARDED, columns=("contact_forces",))))
    with pytest.raises(ConfigError, match=r"policy\.columns is contact_force: the servo of sim ServoSim measures"):
        CFG.build(setup(policy_cfg=replace(GUARDED, columns=("contact_force",))))
    with pytest.raises(ConfigError, match=r"policy\.recovery has 2 numbers: expected 4, one for each of tip_step_x_w"):
        CFG.build(setup(policy_cfg=replace(GUARDED, recovery=(0.0, 1.0))))
    with pytest.raises(ConfigError, match=r"policy\.recovery of 'tip_step_z_w' is 2"):
        CFG.build(setup(policy_cfg=replace(GUARDED, recovery=(0.0, 0.0, 2.0, 0.0))))
    for field, value in (("gamma", 1.0), ("tau", 0.0), ("explore", 1.5), ("guarded", -0.1), ("batch", 0), ("lr", 0.0)):
        with raises_naming(ConfigError, f"algo.{field}", value):
            replace(CFG, **{field: value}).build(setup())
    with raises_naming(ConfigError, "policy.threshold", 1.5):
        CFG.build(setup(policy_cfg=replace(GUARDED, threshold=1.5)))
    with raises_naming(ConfigError, "rate", "server", nearest="servo"):
        RiskReflex(guarded(press(1)), 0.5, "server")  # type: ignore[arg-type]
