"""Rollouts of an older policy: each on-policy method corrects for them in the units of its own ratio."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.algos import dppo, flow_sde, reinflow
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.grpo import GrpoCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.algos.rl100_online import Rl100OnlineCfg
from robotrl.algos.vla_rl import VlaRlCfg
from robotrl.cli.main import main
from robotrl.config import ClusterCfg
from robotrl.learners.collection.older_policy import LARGEST_WEIGHT, WEIGHT, correction
from robotrl.learners.episodes import log_prob_of
from robotrl.registry import ALGORITHMS, SIMS
from robotrl.rollout.groups import LOG_PROB
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import policy_tree
from tests.cluster import test_replay as replays
from tests.kits import learner_kit as kit
from tests.kits.cluster_kit import TWO, clustered
from tests.kits.learner_kit import same, snapshot, write_walks
from tests.kits.token_kit import walk_tokens

AHEAD = replace(TWO, max_staleness=1)
SMALL = kit.SMALL | {"critic_warmup_env_steps": 0, "num_steps": 8, "epochs": 1}
GROUPS: dict[str, Any] = {
    "iterations": 3,
    "group_size": 4,
    "groups": 2,
    "tries": 1,
    "minibatch": 32,
    "lr": 1e-2,
    "warmup": 0,
    "keep_by": "reward",
    "progress": "return",
}
METHODS: dict[str, tuple[Any, Any, Any]] = {
    "ppo": (PpoCfg(**SMALL), None, kit.GAUSSIAN),
    "reinflow": (ReinFlowCfg(**SMALL, noise_hold=0.0, noise_end=0.2), kit.flow, None),
    "flow-noise": (FlowNoiseCfg(**SMALL), kit.flow, None),
    "dppo": (DppoCfg(**SMALL, tuned_steps=2, bc_coef=0.1), kit.diffusion, None),
    "flow-sde": (FlowSdeCfg(**SMALL), kit.flow, None),
    "rl100-online": (Rl100OnlineCfg(**SMALL), kit.flow, None),
    "vla-rl": (VlaRlCfg(**SMALL, lr=1e-2, warmup=0), walk_tokens, None),
    "grpo": (GrpoCfg(**GROUPS), walk_tokens, None),
    "flow-grpo": (FlowGrpoCfg(**GROUPS), kit.flow, None),
}
"""Settings, a policy to start from, a policy to make."""
CHAINS = ("reinflow", "flow-noise", "dppo", "flow-sde", "rl100-online")
GROUPED = ("grpo", "flow-grpo")


def built(name: str, cluster: ClusterCfg = AHEAD) -> Any:
    cfg, init, policy = METHODS[name]
    return cfg.build(clustered(cluster, None if init is None else init(), policy))


# by hand


def test_the_weight_is_the_ratio_of_the_two_policies_up_to_five():
    """Probabilities 1/2, 1/5, 9/10, 1 against 1/4, 2/5, 1/10, 1/10; the last one is padding, which nothing counts."""
    now, then = torch.tensor([[0.5, 0.2], [0.9, 1.0]]).log(), torch.tensor([[0.25, 0.4], [0.1, 0.1]]).log()
    found = correction(now, then, counted=torch.tensor([[True, True], [True, False]]))
    assert found.weight.flatten().tolist() == pytest.approx([2.0, 0.5, 5.0, 5.0])
    assert found.scalars["behavior_weight"] == pytest.approx(7.5 / 3)
    assert found.scalars["behavior_capped"] == pytest.approx(1 / 3)
    assert found.scalars["behavior_kl"] == pytest.approx(-math.log(2 * 0.5 * 9) / 3)
    everything = correction(now, then, largest=1.0).scalars
    assert everything["behavior_capped"] == 0.75 and everything["behavior_weight"] == pytest.approx(3.5 / 4)
    # the same policy: nothing is weighted
    assert (correction(now, now).weight == 1).all()


def test_each_step_of_a_chain_has_a_weight_of_its_own():
    """Ratios 1.5 and 1 (clipped to 1.2 at an advantage of 2), weights 2 and 1/2: -(2 * 1.2 * 2 + 0.5 * 1 * 2) / 2."""
    log_prob = torch.tensor([[1.5, 1.0]]).log()
    rows = {"log_prob": torch.zeros(1, 2), "advantage": torch.tensor([2.0])}
    weight = torch.tensor([[2.0, 0.5]])
    assert flow_sde.policy_loss(log_prob, rows, 0.2, weight).loss.item() == pytest.approx(-2.9)
    # DPPO discounts the first of two steps by 1/2: -(2 * 0.5 * 1.2 * 2 + 0.5 * 1 * 2) / 2
    cfg = DppoCfg(denoising_gamma=0.5, clip_first=0.2, clip_coef=0.2)
    assert dppo.policy_loss(log_prob, rows, cfg, weight).loss.item() == pytest.approx(-1.7)
    # ReinFlow has one ratio and one weight for a chain: -2 * 1.2 * 2
    rows = {"log_prob": torch.zeros(1), "advantage": torch.tensor([2.0])}
    found = reinflow.policy_loss(torch.tensor([1.5]).log(), rows, 0.2, torch.tensor([2.0]))
    assert found.loss.item() == pytest.approx(-4.8)


@pytest.mark.parametrize("loss", [flow_sde.policy_loss, lambda *x: dppo.policy_loss(*x[:2], DppoCfg(), *x[3:])])
def test_a_weight_of_one_changes_no_bit(loss: Any):
    draw = torch.Generator().manual_seed(0)
    now, then, advantage = (torch.randn(64, 3, generator=draw) for _ in range(3))
    rows = {"log_prob": then, "advantage": advantage[:, 0]}
    grads: list[Tensor] = []
    for weight in (1.0, torch.ones(64, 3)):
        leaf = now.clone().requires_grad_()
        grads += torch.autograd.grad(loss(leaf, rows, 0.1, weight).loss, leaf)
    assert torch.equal(*grads)


# learners


@pytest.mark.parametrize("name", METHODS)
def test_runs_with_an_older_policy_repeat_exactly_and_begin_at_a_ratio_of_one(name: str):
    """The clip range is around the policy before the update, although another policy acted."""
    states: list[Any] = []
    logged: list[dict[str, float]] = []
    for _ in range(2):
        learner = built(name)
        logged = [learner.iterate() for _ in range(3)]
        states.append(snapshot(learner.state()))
        learner.close()
    assert same(*states)
    # the first rollout is of the learner's own policy
    assert logged[0].get("behavior_weight", 1.0) == pytest.approx(1.0, abs=1e-5)
    for row in logged[1:]:
        assert row["ratio_error"] <= 1e-5 and row["cluster/staleness"] > 0
        assert 0.5 < row["behavior_weight"] < 2.0 and abs(row["behavior_weight"] - 1) > 1e-6
        assert row["behavior_capped"] < 0.1


@pytest.mark.parametrize("name", replays.METHODS)
def test_a_replay_of_older_policies_repeats_exactly(name: str, walks: Path):
    one, other = (replays.state_after(replays.built(name, AHEAD, walks), 3) for _ in range(2))
    assert same(one, other)


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walks(tmp_path_factory.mktemp("walks") / "walks")


def test_every_method_that_says_so_is_among_these():
    says = {name for name in ALGORITHMS.names() if ALGORITHMS.load(name).corrects_staleness}
    # DSRL-NA collects as DSRL does
    assert says == METHODS.keys() | replays.METHODS.keys() | {"dsrl-na"}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_weighted_by_the_ratio_of_the_policies_in_the_units_of_its_own(name: str):
    learner = built(name)
    learner.iterate()
    learner.iterate()
    seen: list[Any] = []
    collect = learner._rollouts.collect
    learner._rollouts.collect = lambda policy: seen.append(collect(policy)) or seen[-1]
    batch, logged = learner.collect()
    ((rollout, _),) = seen
    rows = {key: x[rollout.valid] for key, x in rollout.record.items()}
    with torch.no_grad():
        obs = {key: x[rollout.valid] for key, x in rollout.obs.items()}
        proximal = learner.loss.log_prob(rows, learner.loss.policy.encode(obs))
    steps = {"dppo": (2,), "flow-sde": (3,), "rl100-online": (3,)}.get(name, ())
    assert proximal.shape == rows["log_prob"].shape == (len(batch.advantage), *steps)
    ratio = proximal - rows["log_prob"]
    assert ratio.abs().max() > 1e-5
    torch.testing.assert_close(batch.record["log_prob"], proximal)
    torch.testing.assert_close(batch.record[WEIGHT], ratio.exp().clamp(max=LARGEST_WEIGHT))
    assert logged["behavior_kl"] == pytest.approx(float(-ratio.mean()), rel=1e-3, abs=1e-6)


def test_without_staleness_all_weights_are_one():
    batch, logged = built("flow-sde", TWO).collect()
    assert (batch.record[WEIGHT] == 1).all() and "behavior_weight" not in logged


@pytest.mark.parametrize("name", GROUPED)
def test_each_ratio_of_an_episode_is_weighted_by_what_the_worker_recorded(name: str):
    """Workers record the log-probabilities of the policy that acted; of actions that nobody executed, none counts."""
    learner = built(name)
    first = snapshot(learner.model)
    rows: list[Any] = []
    found: list[Any] = []
    learn, episodes = learner.learn, learner._collector.episodes
    learner.learn = lambda given: rows.append(given) or learn(given)
    learner._collector.episodes = lambda: found.append(episodes()) or found[-1]
    learner.iterate()
    # the second rollout was ordered before the first update, too
    acting, seen = learner.acting, learner._collector.episodes()
    obs, record = learner.seen(seen), acting.record(seen)
    behavior = log_prob_of(acting, first, obs, record, False, 512)
    torch.testing.assert_close(seen.record[LOG_PROB], behavior, rtol=0, atol=1e-5)
    learner._collector.episodes = lambda: seen
    proximal = log_prob_of(acting, learner.model, obs, record, False, 512)
    assert (proximal - behavior).abs().max() > 1e-3
    logged = learner.iterate()
    # the groups with unequal rewards are learned from: here they are all of them
    plain = acting.weights(learner.model, seen.valid, seen.episode, len(seen.success))
    expected = plain * (proximal - behavior).exp().clamp(max=5.0)
    torch.testing.assert_close(rows[1]["weight"], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rows[1]["log_prob"], proximal, rtol=0, atol=1e-5)
    there = plain > 0
    # a token of its own for each action of a chunk; a denoising step is that of the whole chunk
    assert torch.equal(rows[1]["weight"] > 0, there) and bool(there.all()) == (name == "flow-grpo")
    assert logged["behavior_kl"] == pytest.approx(float((behavior - proximal)[there].mean()), rel=1e-3, abs=1e-5)


def test_no_log_probabilities_are_recorded_where_nothing_is_collected_ahead():
    assert LOG_PROB not in built("grpo", TWO)._collector.episodes().record


# command line


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")
    run = Run.create(tmp_path / "clone", {}, seed=0, command=[])
    run.save({"policy": policy_tree(kit.flow())}, step=0)
    run.close()
    return tmp_path / "clone"


CHAIN_WORDS = ("--algo.env-steps", "384", "--algo.num-steps", "16", "--algo.critic-warmup-env-steps", "0")
GROUP_WORDS = ("--algo.iterations", "3", "--algo.group-size", "4", "--algo.groups", "1", "--algo.tries", "1")
SHARED = ("--algo.minibatch", "16", "--evaluation.episodes", "0", "--algo.engine", "eager", "--sim.num-envs", "8")


@pytest.mark.parametrize(
    "name, words",
    [
        ("reinflow", CHAIN_WORDS),
        ("flow-grpo", (*GROUP_WORDS, "--algo.progress", "return", "--algo.keep-by", "reward")),
    ],
)
def test_a_run_with_an_older_policy_by_the_command_line(
    name: str, words: tuple[str, ...], clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cluster = ("--cluster", "local", "--cluster.workers", "2", "--cluster.max-staleness", "1")
    start = ("--sim", "test/walk", "--algo", name, "--init-from", str(clone), "--run-dir", str(tmp_path / "run"))
    assert main(["train", *start, *words, *SHARED, *cluster]) == 0, capsys.readouterr().err
    logged = list(read_scalars(tmp_path / "run" / "scalars.jsonl"))
    assert len(logged) == 3 and all("behavior_weight" in row for row in logged[1:])
    assert logged[-1]["cluster/staleness"] > 0


def test_what_does_not_correct_is_refused_with_the_nearest_choice(clone: Path, capsys: pytest.CaptureFixture[str]):
    words = ("--algo.teacher", str(clone), "--cluster", "local", "--cluster.max-staleness", "1", "--init-from")
    assert main(["train", "--sim", "test/walk", "--algo", "opd", *words, str(clone)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "OpdCfg" in said and "cluster.max_staleness is 1: expected 0" in said and "grpo" in said
