"""Our sims as skrl's environments: numbers worked by hand, and its own PPO."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import robotrl
from robotrl.sims.interop import as_skrl
from tests.kits.door_sims import SeenWalk
from tests.kits.walk_sim import Walk

pytest.importorskip("skrl")
GAMMA = 0.5


def test_steps_and_the_last_observations_in_the_info() -> None:
    sim = Walk(2, limit=2)
    sim.queue_states([2, 2, 3, 4])
    env = as_skrl(sim, seed=None)
    obs, info = env.reset()
    assert obs.tolist() == [[0.0, 0.0], [0.0, 0.0]] and info == {} and env.state() is None
    kept = obs.clone()
    _, reward, *_, info = env.step(torch.tensor([[1.0], [0.5]]))
    assert reward.tolist() == [[1.0], [0.5]] and info == {}
    obs_2, _, terminated, truncated, info = env.step(torch.tensor([[9.0], [0.5]]))  # clipped to 1: the goal
    assert terminated.tolist() == [[True], [False]] and truncated.tolist() == [[False], [True]]
    assert obs_2.tolist() == [[0.5, 0.0], [1.0, 0.0]]
    assert info["final_ids"].tolist() == [0, 1]
    assert info["final_observations"].tolist() == [[2.0, 2.0], [1.0, 2.0]]
    assert {key: float(value) for key, value in info["episode"].items()} == {
        "Episode / success": 0.5,
        "Episode / return": (3.0 + 1.5) / 2,
        "Episode / length": 2.0,
    }
    assert torch.equal(obs, kept)
    # all episodes have just begun: a reset keeps them
    assert torch.equal(env.reset()[0], obs_2)
    env.step(torch.zeros(2, 1))
    assert env.reset()[0][:, 1].tolist() == [0.0, 0.0]


def test_privileged_arrays_are_the_state() -> None:
    sim = SeenWalk(2)
    sim.queue_states([3, 4])
    env = as_skrl(sim, seed=None)
    obs, _ = env.reset()
    assert set(env.observation_space) == {"walk", "image"}  # pyright: ignore[reportArgumentType]
    assert obs.shape == (2, 2 + 72) and obs.dtype == torch.float32
    state = env.state()
    assert state is not None and env.state_space is not None
    assert state.shape == (2, 2 + 72 + 1)
    from skrl.utils.spaces.torch import unflatten_tensorized_space

    assert unflatten_tensorized_space(env.state_space, state)["hidden"].tolist() == [[1.0], [2.0]]


def agent_of(env: Any, final: bool, **cfg: Any) -> Any:
    """PPO whose value is the first number of the observation, until it learns; actions are 0 at first."""
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model

    from robotrl.sims.interop.skrl import TrueLastObservations

    class Actor(GaussianMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
            GaussianMixin.__init__(self)
            self.net = nn.Linear(self.num_observations, self.num_actions)
            self.log_std = nn.Parameter(torch.zeros(self.num_actions))
            nn.init.zeros_(self.net.weight)
            nn.init.zeros_(self.net.bias)

        def compute(self, inputs: dict[str, Tensor], role: str) -> Any:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Critic(DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = nn.Linear(self.num_observations, 1)
            nn.init.zeros_(self.net.weight)
            nn.init.zeros_(self.net.bias)
            self.net.weight.data[0, 0] = 1.0

        def compute(self, inputs: dict[str, Tensor], role: str) -> Any:
            return self.net(inputs["observations"]), {}

    class LastPPO(TrueLastObservations, PPO):
        pass

    settings = {"rollouts": 8, "discount_factor": GAMMA, "time_limit_bootstrap": True, **cfg}
    agent = (LastPPO if final else PPO)(
        models={"policy": Actor(), "value": Critic()},
        memory=RandomMemory(memory_size=8, num_envs=env.num_envs, device="cpu"),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg={**settings, "experiment": {"write_interval": 0, "checkpoint_interval": 0}},
    )
    agent.init()
    agent.enable_training_mode(True)
    return agent


@pytest.mark.parametrize(("final", "bootstrap"), [(True, 1.0), (False, -1.0)])
def test_what_the_time_limit_bootstrap_of_ppo_sees(final: bool, bootstrap: float) -> None:
    """The last observation's value is 1, that of the next episode's first one is -1."""
    sim = Walk(2, limit=2)
    sim.queue_states([2, 2, 0, 0])
    env = as_skrl(sim, seed=None)
    agent = agent_of(env, final)
    obs, _ = env.reset()
    for t in range(2):
        agent.act(obs, None, timestep=t, timesteps=8)
        action = torch.full((2, 1), 0.5)
        after, reward, terminated, truncated, infos = env.step(action)
        agent.record_transition(
            observations=obs,
            states=None,
            actions=action,
            rewards=reward,
            next_observations=after,
            next_states=None,
            terminated=terminated,
            truncated=truncated,
            infos=infos,
            timestep=t,
            timesteps=8,
        )
        obs = after
    stored = agent.memory.get_tensor_by_name("rewards")[:2, 0, 0]
    assert stored.tolist() == [0.5, 1.0 + GAMMA * bootstrap]


def test_ppo_of_skrl_learns_on_a_sim() -> None:
    from skrl.trainers.torch import SequentialTrainer

    env = as_skrl(robotrl.make_sim("mujoco/peg-insert", num_envs=4, limit_s=0.5, reward="shaped"))
    agent = agent_of(env, True, learning_epochs=2, mini_batches=2)
    before = [value.clone() for value in agent.policy.parameters()]
    SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": 24, "headless": True, "disable_progressbar": True}
    ).train()
    assert any(not torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True))
    assert all(bool(value.isfinite().all()) for value in agent.policy.parameters())
