"""Rollouts in shards, in one process: they are the rollouts of all envs, whatever the method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.cluster.collector import ShardedRollouts
from robotrl.cluster.merging import joined_rollouts
from robotrl.config import ClusterCfg
from robotrl.errors import CapabilityError, ConfigError, NumericsError, RobotrlError
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.on_policy import make_batch
from robotrl.policies.recurrent import RecurrentCfg
from robotrl.rollout.storage import Rollout
from robotrl.utils.devices import CPU
from tests.kits import learner_kit as kit
from tests.kits.cluster_kit import TWO, clustered, collectors
from tests.kits.guided_kit import guided_setup
from tests.kits.learner_kit import same, setup, snapshot
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

ONE = ClusterCfg("local", workers=1)
METHODS: dict[str, tuple[Any, Any, Any]] = {
    "ppo": (kit.PPO, None, kit.GAUSSIAN),
    "ppo-memory": (replace(kit.PPO, bptt_steps=8), None, RecurrentCfg(memory=8, hidden=(16,))),
    "reinflow": (replace(kit.REINFLOW, noise_hold=0.0, noise_end=0.2), kit.flow, None),
    "dppo": (DppoCfg(**kit.SMALL, tuned_steps=2), kit.diffusion, None),
    "flow-sde": (FlowSdeCfg(**kit.SMALL), kit.flow, None),
}
"""Settings, a policy to start from, a policy to make."""


def built(name: str, cluster: ClusterCfg | None) -> Any:
    cfg, init, policy = METHODS[name]
    start = None if init is None else init()
    return cfg.build(setup(start, policy) if cluster is None else clustered(cluster, start, policy))


def state_after(learner: Any, iterations: int) -> Any:
    for _ in range(iterations):
        learner.iterate()
    return snapshot(learner.state())


@pytest.mark.parametrize("name", METHODS)
def test_one_shard_gives_the_numbers_of_none(name):
    """Weights, optimizer, normalization and sim are equal to the last bit: nothing is lost on the way."""
    alone, sharded = state_after(built(name, None), 3), state_after(built(name, ONE), 3)
    for part in alone.keys() - {"collector", "memory"}:
        assert same(alone[part], sharded[part]), part
    shard = sharded["collector"]["shards"]["0"]
    of_shard = {key: x for key, x in shard["collector"]["pending"].items() if key != "record/version"}
    assert same(alone["collector"] | {"pending": {}}, shard["collector"] | {"pending": {}})
    assert same(alone["collector"]["pending"], of_shard)
    if "memory" in alone:
        assert same(alone["memory"], shard["acting"]["memory"])


def test_shards_have_episodes_of_their_own_and_come_in_the_order_of_the_envs():
    learner = built("ppo", TWO)
    rollout = learner._collector.rollout(16)
    assert rollout.obs["walk"].shape[1] == 32 and rollout.env_steps == 16 * 32 == learner.env_steps
    first, second = rollout.obs["walk"][:, :16], rollout.obs["walk"][:, 16:]
    assert not torch.equal(first, second)
    again = built("ppo", TWO)._collector.rollout(16)
    assert torch.equal(rollout.obs["walk"], again.obs["walk"])
    assert "version" not in rollout.record


def test_a_learner_that_follows_the_first_one_has_episodes_of_its_own():
    """Each learner of several has shards, and the checkpoint has those of the first one."""
    first = built("ppo", TWO)
    state = state_after(first, 2)["collector"]
    rollout = first._collector.rollout(16)
    seen = []
    for seed in (11, 11, 12):
        collector = built("ppo", TWO)._collector
        collector.follow(state, seed)
        assert collector.env_steps == state["env_steps"]
        seen.append(collector.rollout(16).obs["walk"])
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], rollout.obs["walk"])
    assert not torch.equal(seen[0][:, :16], seen[0][:, 16:])


def test_a_run_in_shards_goes_on_exactly():
    whole = state_after(built("ppo", TWO), 4)
    half = state_after(built("ppo", TWO), 2)
    resumed = built("ppo", TWO)
    resumed.load(half)
    assert same(state_after(resumed, 2), whole)


def part(rows: int, first: float) -> Rollout:
    """One env with so many decisions, whose numbers count from `first`."""
    count = np.arange(first, first + rows, dtype=np.float32)[:, None]
    flags = np.zeros((rows, 1), bool)
    return Rollout(
        obs={"x": count[..., None]},
        record={"log_prob": -count},
        reward=count,
        length=np.full((rows, 1), 2, np.int64),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        next_obs={"x": count[..., None] + 1},
        env_steps=2 * rows,
        episodes=np.array([True] * int(first)),
        returns=np.full(int(first), first, np.float32),
    )


def test_rollouts_are_joined_by_env_and_the_shorter_one_is_padded():
    joined = joined_rollouts([part(3, 1), part(2, 2)], CPU)
    assert joined.reward.tolist() == [[1, 2], [2, 3], [3, 0]]
    assert joined.valid.tolist() == [[True, True], [True, True], [True, False]]
    assert joined.length.tolist() == [[2, 2], [2, 2], [2, 0]]
    assert joined.next_obs["x"][:, :, 0].tolist() == [[2, 3], [3, 4], [4, 0]]
    assert joined.env_steps == 10 and joined.returns.tolist() == [1, 2, 2] and joined.scored is None


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_a_rollout_is_of_a_known_version_of_the_policy(lead):
    """Version i is that of iteration i; with staleness L, iteration i learns from version max(1, i - L)."""
    learner = replace(kit.PPO, critic_warmup_env_steps=0).build(
        clustered(replace(TWO, max_staleness=lead), None, kit.GAUSSIAN)
    )
    collector: ShardedRollouts = learner._collector
    take, versions = collector._runner.take, list[int]()

    def told() -> Any:
        found = take()
        versions.append(found[0].version)
        return found

    collector._runner.take = told
    logged = [learner.iterate() for _ in range(5)]
    assert versions == [max(1, i - lead) for i in range(1, 6)]
    assert [collector.staleness, logged[0]["cluster/staleness"]] == [lead, 0.0]
    # with chunks of two actions, some decisions were begun in the rollout before
    assert lead <= logged[-1]["cluster/staleness"] <= lead + 0.2
    assert all(("behavior_weight" in row) == (lead > 0 and i > 0) for i, row in enumerate(logged))
    # the proximal policy is the one before the update: the first ratio is 1 although another policy acted
    assert all(row["ratio_error"] <= 1e-5 for row in logged if "behavior_weight" in row)
    if lead:
        assert 0.5 < logged[-1]["behavior_weight"] < 2.0 and logged[-1]["behavior_weight"] != 1.0


def test_vtrace_gives_advantages_and_targets_of_the_policy_that_learns():
    """One env, two decisions; worked by hand from eq. 1 and 4 of 1802.01561 with discounts of 0.5.

    Values are 2 and 4, rewards 3 and 2, the second decision ends the episode. Ratios of 1/2 and 3 give rho and c of 1/2
    and 1. Backwards: the second error is 2 - 4 = -2, its target 4 - 2 = 2. The first error is (3 + 2 - 2) / 2 = 1.5,
    its target 2 + 1.5 + 0.5 * 0.5 * -2 = 3, and its advantage (3 + 0.5 * 2 - 2) / 2 = 1.
    """
    flags = torch.tensor([[False], [True]])
    rollout = Rollout(
        obs={"x": torch.tensor([[[2.0]], [[4.0]]])},
        record={"log_prob": torch.zeros(2, 1)},
        reward=torch.tensor([[3.0], [2.0]]),
        length=torch.ones(2, 1, dtype=torch.int64),
        terminated=flags,
        truncated=torch.zeros_like(flags),
        valid=torch.ones_like(flags),
        next_obs={"x": torch.tensor([[[4.0]], [[9.0]]])},
        env_steps=2,
        episodes=torch.zeros(0, dtype=torch.bool),
        returns=torch.zeros(0),
    )
    ratio = torch.tensor([0.5, 3.0]).log()
    batch = make_batch(rollout, lambda obs: obs["x"][:, 0], 0.5, 1.0, normalized=False, log_ratio=ratio)
    torch.testing.assert_close(batch.advantage, torch.tensor([1.0, -2.0]))
    torch.testing.assert_close(batch.value_target, torch.tensor([3.0, 2.0]))
    # the same policy: the targets of GAE
    alike = make_batch(rollout, lambda obs: obs["x"][:, 0], 0.5, 1.0, normalized=False, log_ratio=torch.zeros(2))
    torch.testing.assert_close(alike.value_target, torch.tensor([4.0, 2.0]))


@pytest.mark.parametrize("correction", ["decoupled", "vtrace"])
def test_the_older_policy_is_corrected_for_as_the_settings_say(correction: Any, monkeypatch: pytest.MonkeyPatch):
    """The update gets the proximal policy's log-probabilities, and advantages by the ratio of the two policies."""
    cfg = replace(kit.PPO, critic_warmup_env_steps=0, correction=correction)
    learner = cfg.build(clustered(replace(TWO, max_staleness=1), None, kit.GAUSSIAN))
    learner.iterate()
    learner.iterate()
    seen: list[Any] = []
    collect, update = learner._rollouts.collect, learner._update
    monkeypatch.setattr(learner._rollouts, "collect", lambda policy: seen.append(collect(policy)) or seen[-1])
    monkeypatch.setattr(learner, "_update", lambda batch, rollout: seen.append(batch) or update(batch, rollout))
    critic, policy = snapshot(learner.critic), snapshot(learner.policy)
    logged = learner.iterate()
    (rollout, _), batch = seen
    valid = rollout.valid
    with torch.no_grad():
        density = policy.density(policy.encode({key: x[valid] for key, x in rollout.obs.items()}))
        proximal = density.log_prob(rollout.record["raw"][valid]).flatten(1).sum(1)
    ratio = proximal - rollout.record["log_prob"][valid]
    assert ratio.abs().max() > 1e-3
    torch.testing.assert_close(batch.record["log_prob"], proximal)

    def value(obs: Any) -> Any:
        return critic(critic.encode(obs, policy.encode(obs)))

    traced = ratio if correction == "vtrace" else None
    expected = make_batch(rollout, value, cfg.gamma, cfg.gae_lambda, log_ratio=traced)
    weight = torch.ones_like(ratio) if correction == "vtrace" else ratio.exp().clamp(max=5.0)
    torch.testing.assert_close(batch.advantage, expected.advantage * weight)
    torch.testing.assert_close(batch.value_target, expected.value_target)
    most = 1.0 if correction == "vtrace" else 5.0
    assert logged["behavior_weight"] == pytest.approx(float(ratio.exp().clamp(max=most).mean()), rel=1e-5)


def test_decisions_of_another_version_are_not_learned_from():
    learner = built("ppo", TWO)
    learner.iterate()
    collector: ShardedRollouts = learner._collector
    take = collector._runner.take

    def altered() -> Any:
        found = take()
        found[1].rollout.record["version"][0] += 1
        return found

    collector._runner.take = altered
    before = snapshot(learner.policy.state_dict())
    with pytest.raises(RobotrlError, match="worker 1 sent decisions of versions 2 to 3"):
        learner.iterate()
    assert same(before, learner.policy.state_dict())


def test_an_error_of_a_shard_ends_the_run_with_its_message():
    def poisoned(number: int, seed: int) -> Walk:
        sim = Walk(16, seed)
        sim.poison[3, 5] = "reward"
        return sim

    start = clustered(TWO, None, kit.GAUSSIAN)
    start.collectors._make_sim = poisoned
    learner = kit.PPO.build(start)
    with pytest.raises(NumericsError, match="env 5"):
        learner.iterate()


def test_suggestions_are_refused():
    cfg = replace(kit.PPO, guidance=GuidanceCfg(by="expert"))
    with raises_naming(CapabilityError, "algo.guidance"):
        cfg.build(guided_setup(replace(kit.GAUSSIAN, horizon=1))._replace(collectors=collectors(TWO)))


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_one_shard_gives_the_episodes_of_none(correlation):
    """Group-relative methods, with noise that lasts from one decision to the next as well."""
    cfg = FlowGrpoCfg(iterations=2, group_size=4, groups=2, tries=2, minibatch=16, keep_by="reward", progress="return")
    cfg = replace(cfg, correlation=correlation)
    alone = state_after(cfg.build(setup(kit.flow())), 2)
    sharded = state_after(cfg.build(clustered(ONE, kit.flow())), 2)
    for part in alone.keys() - {"collector"}:
        assert same(alone[part], sharded[part]), part
    assert same(alone["collector"], sharded["collector"]["shards"]["0"]["collector"])


def test_groups_are_whole_in_each_shard():
    cfg = FlowGrpoCfg(iterations=2, group_size=8, groups=2, minibatch=16, keep_by="reward", progress="return")
    learner = cfg.build(clustered(TWO, kit.flow()))
    found = learner._collector.episodes()
    assert len(found.success) == 32 and (found.start.view(4, 8) == found.start.view(4, 8)[:, :1]).all()
    assert len(found.start.unique()) > 2 and found.episode.unique().tolist() == list(range(32))
    with raises_naming(ConfigError, "algo.group_size", "cluster.workers"):
        replace(cfg, group_size=32).build(clustered(TWO, kit.flow()))
