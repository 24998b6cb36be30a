"""DAgger: who drives and what is labelled, what it learns beside cloning, exact resume, what it refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tests.kits.learner_kit as kit
from robotrl.algos.dagger import DaggerCfg, Labels, mixture
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.learner import Setup
from robotrl.policies.gaussian import GaussianCfg
from robotrl.replay.buffer import Replay
from robotrl.rollout.collector import Collector, Decision
from tests.kits.walk_sim import Walk

CFG = DaggerCfg(iterations=3, num_steps=12, updates=40, batch=32, capacity=2000, lr=3e-3, ema=0.9, max_grad_norm=10.0)
GAUSSIAN = GaussianCfg(horizon=1, hidden=(32, 32))


class HalfWay:
    """Walks half the way back to the middle, from wherever it is."""

    modes = ("middle",)

    def __init__(self, sim: Walk) -> None:
        self._sim = sim
        self.mode = torch.zeros(sim.num_envs, dtype=torch.int64)

    def act(self, started: Tensor) -> Tensor:
        return -0.5 * self._sim._obs[:, :1].clone()


class Taught(Walk):
    """The walk with an expert."""

    def make_expert(
        self, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> HalfWay:
        return HalfWay(self)


def setup(policy_cfg: Any = GAUSSIAN, init_policy: Any = None, dataset: Any = None) -> Setup:
    return Setup(lambda: Taught(4), policy_cfg, init_policy, dataset, 0)


def collected(share: float, horizon: int, steps: int = 12) -> tuple[Taught, Replay]:
    """Labels of steps in which the learner always walks 0.7 to the right."""
    sim = Taught(3)
    replay = Replay.create(None, sim.observation_spec, sim.action_spec, streams=3, capacity=300)
    collector = Collector(sim, horizon, 1.0)
    collector.reset(0)
    labels = Labels(replay, sim.make_expert(), share, horizon, torch.Generator().manual_seed(0))
    decide = lambda obs: Decision(torch.full((len(obs["walk"]), horizon, 1), 0.7), {})  # noqa: E731
    collector.collect_into(labels, decide, steps, corrector=labels)
    labels.close(collector.obs)
    return sim, replay


def test_the_expert_drives_the_first_iteration_and_less_and_less_of_the_others():
    assert [mixture(0.5, i) for i in range(4)] == [1.0, 0.5, 0.25, 0.125]
    assert [mixture(0.0, i) for i in range(3)] == [1.0, 0.0, 0.0]
    assert [mixture(1.0, i) for i in range(3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("share", "executed"), [(0.0, 0.7), (1.0, None)])
def test_every_visited_state_is_labeled_whoever_drives(share, executed):
    sim, replay = collected(share, 1)
    drawn = replay.view(replay.indices(1), 1, 1.0)
    assert len(drawn.chunk) == 36
    assert torch.allclose(drawn.chunk[:, 0], (-0.5 * drawn.obs["walk"][:, :1]).clamp(-1, 1))
    taken = torch.cat([record.action for record in sim.tape])
    before = torch.cat([record.obs for record in sim.tape])
    wanted = -0.5 * before[:, :1] if executed is None else torch.full_like(taken, executed)
    assert torch.allclose(taken, wanted)


def test_a_chunk_of_labels_reaches_as_far_as_the_expert_drove():
    _, replay = collected(0.0, 3)
    drawn = replay.view(replay.indices(3), 3, 1.0)
    # the learner drove: one label for each state, and every state has one
    assert len(drawn.valid) == 36 and drawn.valid.tolist() == [[True, False, False]] * 36
    _, replay = collected(1.0, 3)
    drawn = replay.view(replay.indices(3), 3, 1.0)
    assert len(drawn.valid) == 36
    whole = drawn.valid.all(1)
    assert whole.sum() > 15
    # labels of a whole chunk are what the expert does after its own actions: half the way each time
    x = drawn.obs["walk"][whole, 0]
    assert torch.allclose(drawn.chunk[whole, :, 0], torch.stack([-0.5 * x, -0.25 * x, -0.125 * x], 1), atol=1e-6)


def test_a_turn_lasts_as_long_as_a_chunk():
    """With a share of a half, the executed actions change hands only at turns of three steps, or with an episode."""
    sim, _ = collected(0.5, 3, 30)
    for env in range(3):
        since, drove = 0, None
        for record in sim.tape:
            expert = bool((record.action[env] - 0.7).abs() > 1e-6)
            if since and since % 3:
                assert expert == drove
            drove = expert
            over = bool(record.terminated[env] | record.truncated[env])
            since = 0 if over else since + 1
    both = torch.cat([record.action for record in sim.tape])
    assert 0 < int((both == 0.7).sum()) < len(both)


def gap(policy: Any) -> float:
    """Largest error of a policy's first action against the expert's, over the walk."""
    x = torch.linspace(-1.8, 1.8, 13)
    obs = {"walk": torch.stack([x, torch.full_like(x, 2.0)], 1)}
    with torch.no_grad():
        return float((policy.act(obs, None, None, "mean").chunk[:, 0, 0] + 0.5 * x).abs().max())


def test_it_learns_the_experts_actions():
    learner = replace(CFG, iterations=6, updates=100).build(setup())
    log = [learner.iterate() for _ in range(6)]
    assert [row["labels"] for row in log] == [48.0 * (i + 1) for i in range(6)]
    assert [row["expert_share"] for row in log[:3]] == [1.0, 0.5, 0.25]
    assert learner.env_steps == 6 * 48
    assert log[-1]["clone_loss"] < 0.1 * log[0]["clone_loss"]
    assert gap(learner.policy) < 0.25


def test_it_goes_on_from_a_policy_and_from_demonstrations(tmp_path):
    data = kit.write_walks(tmp_path / "walks")
    learner = CFG.build(setup(dataset=data))
    learner.iterate()
    rows = learner._draw(1)
    # the demonstrations are of -0.4 x, the labels of -0.5 x; both are in a batch
    ratio = rows["chunk"][:, 0, 0] / rows["obs/walk"][:, 0]
    told = ratio[rows["obs/walk"][:, 0].abs() > 0.1]
    assert any(abs(r + 0.4) < 1e-3 for r in told.tolist()) and any(abs(r + 0.5) < 1e-3 for r in told.tolist())
    start = learner.policy
    again = CFG.build(setup(init_policy=copy.deepcopy(start)))
    assert kit.same(again.policy.state_dict(), start.state_dict())


def test_observations_are_normalized_by_the_first_iteration():
    learner = CFG.build(setup())
    learner.iterate()
    first = learner.policy.transforms
    assert first == learner.model.transforms and first.inputs[0].scale != (1.0, 1.0)
    learner.iterate()
    assert learner.policy.transforms == first


def test_what_cannot_work_is_refused():
    with pytest.raises(CapabilityError, match="sim Walk lacks HasExpert: nobody can label"):
        CFG.build(Setup(lambda: Walk(4), GAUSSIAN, None, None, 0))
    for field, value, expected in (
        ("beta", 1.5, "0 to 1"),
        ("iterations", 0, "1 or more"),
        ("lr", 0.0, "above 0"),
        ("ema", 1.0, "below 1"),
    ):
        with pytest.raises(ConfigError, match=f"algo.{field} .*{expected}"):
            replace(CFG, **{field: value}).build(setup())
