"""Our sims as TorchRL's environments: its own check, numbers worked by hand, its collector and its GAE."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import robotrl
from robotrl.errors import CapabilityError, ConfigError
from robotrl.sims.interop import as_torchrl
from tests.kits.door_sims import RestartWalk, SeenWalk
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import BareWalk, Walk

pytest.importorskip("torchrl")
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

GAMMA, LAMBDA = 0.5, 0.5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mujoco/peg-insert", {"limit_s": 0.5}),
        ("mujoco/tabletop", {"image": "flat_near", "image_size": 36}),
        ("gym/CartPole-v1", {}),
        ("gym/tests.kits.gym_toys:Toy-v0", {}),
    ],
)
def test_sims_pass_the_check_of_torchrl(name: str, options: dict[str, Any]) -> None:
    from torchrl.envs.utils import check_env_specs

    check_env_specs(as_torchrl(robotrl.make_sim(name, 3, **options)), seed=3, break_when_any_done="both")
    check_env_specs(as_torchrl(SeenWalk(2, limit=2)), break_when_any_done="both")


def test_last_observations_are_kept_and_no_start_is_skipped() -> None:
    sim = Walk(2, limit=2)
    sim.queue_states([2, 3, 4, 0, 1])
    env = as_torchrl(sim, seed=None)

    right = TensorDictModule(lambda walk: torch.tensor([[1.0], [0.25]]), in_keys=["walk"], out_keys=["action"])
    record = env.rollout(4, right, break_when_any_done=False)
    # env 0: starts 0 (id 2), ends at the goal; then 1 (id 4), at the goal in one step; then -0.5 (id 1).
    # env 1: starts 0.5 (id 3), cut; then -1 (id 0), cut. Ids are dealt out in the order of the envs.
    assert record["walk"][..., 0].tolist() == [[0.0, 1.0, 1.0, -0.5], [0.5, 0.75, -1.0, -0.75]]
    assert record["next", "walk"][..., 0].tolist() == [[1.0, 2.0, 2.0, 0.5], [0.75, 1.0, -0.75, -0.5]]
    assert record["next", "walk"][..., 1].tolist() == [[1.0, 2.0, 1.0, 1.0], [1.0, 2.0, 1.0, 2.0]]
    assert record["next", "terminated"][..., 0].int().tolist() == [[0, 1, 1, 0], [0, 0, 0, 0]]
    assert record["next", "truncated"][..., 0].int().tolist() == [[0, 0, 0, 0], [0, 1, 0, 1]]
    assert torch.equal(record["next", "success"], record["next", "terminated"])
    assert record["next", "reward"][..., 0].tolist() == record["next", "walk"][..., 0].tolist()


def test_resets_of_some_and_of_all() -> None:
    sim = RestartWalk(3, limit=2)
    sim.queue_states([2, 2, 2, 3, 4, 0])
    env = as_torchrl(sim, seed=None)
    env.reset()
    still = TensorDict({"action": torch.zeros(3, 1)}, batch_size=[3])
    env.step(still.clone())
    # env 1 is restarted in mid-episode: start 0.5
    mask = TensorDict({"_reset": torch.tensor([[False], [True], [False]])}, batch_size=[3])
    assert env._reset(mask)["walk"].tolist() == [[0.0, 1.0], [0.5, 0.0], [0.0, 1.0]]
    after = env.step(still.clone())["next"]
    assert after["done"][:, 0].tolist() == [True, False, True]
    # a reset of all keeps the two that have just begun (1 and -1) and restarts the other
    sim.queue_states([1])
    assert env.reset()["walk"].tolist() == [[1.0, 0.0], [-0.5, 0.0], [-1.0, 0.0]]
    # these were reported: another reset starts others
    sim.queue_states([3, 3, 3])
    assert env.reset()["walk"][:, 0].tolist() == [0.5, 0.5, 0.5]


def test_a_sim_without_restarts_refuses_a_reset_in_mid_episode() -> None:
    env = as_torchrl(Walk(2))
    env.reset()
    env.step(TensorDict({"action": torch.zeros(2, 1)}, batch_size=[2]))
    with raises_naming(CapabilityError, "env", 1, "HasRestart"):
        env.reset(TensorDict({"_reset": torch.tensor([[False], [True]])}, batch_size=[2]))


def test_seeds_repeat() -> None:
    env = as_torchrl(robotrl.make_sim("mujoco/peg-insert", 2))
    env.set_seed(5)
    first = env.reset()["state"].clone()
    assert not torch.equal(env.reset()["state"], first)
    env.set_seed(5)
    assert torch.equal(env.reset()["state"], first)


def test_what_cannot_be_wrapped() -> None:
    with raises_naming(CapabilityError, "as_torchrl", "HasFinalObs"):
        as_torchrl(BareWalk(1))
    sim = Walk(1)
    sim.observation_spec["reward"] = sim.observation_spec.pop("walk")
    with raises_naming(ConfigError, "reward"):
        as_torchrl(sim)


def test_collector_and_gae_bootstrap_from_the_last_observation() -> None:
    """The value of an observation is its place x; the numbers are worked out backwards, step by step."""
    from torchrl.collectors import Collector
    from torchrl.objectives.value import GAE

    sim = Walk(1, limit=2)
    sim.queue_states([2, 0, 4])
    env = as_torchrl(sim, seed=None)

    right = TensorDictModule(lambda walk: torch.full((1, 1), 0.5), in_keys=["walk"], out_keys=["action"])
    collector = Collector(env, right, frames_per_batch=5, total_frames=5)
    (batch,) = list(collector)
    value = TensorDictModule(lambda walk: walk[..., :1], in_keys=["walk"], out_keys=["state_value"])
    GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=value, differentiable=False)(batch)
    # x 0 -> 0.5 -> 1 (cut); -1 -> -0.5 -> 0 (cut); 1 -> 1.5 (still running); reward and value are x
    assert batch["walk"][0, :, 0].tolist() == [0.0, 0.5, -1.0, -0.5, 1.0]
    assert batch["next", "walk"][0, :, 0].tolist() == [0.5, 1.0, -0.5, 0.0, 1.5]
    last_a = 1.0 + GAMMA * 1.0 - 0.5
    last_b = 0.0 + GAMMA * 0.0 + 0.5
    expected = [
        0.5 + GAMMA * 0.5 - 0.0 + GAMMA * LAMBDA * last_a,
        last_a,
        -0.5 + GAMMA * -0.5 + 1.0 + GAMMA * LAMBDA * last_b,
        last_b,
        1.5 + GAMMA * 1.5 - 1.0,
    ]
    assert batch["advantage"][0, :, 0].tolist() == pytest.approx(expected, abs=1e-6)
    collector.shutdown()
