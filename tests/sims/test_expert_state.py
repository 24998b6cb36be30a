"""Experts go on bit for bit from their saved state."""

import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError
from robotrl.spec import HasExpertState
from tests.kits.refusals import raises_naming

SIMS = ("mujoco/reach", "mujoco/push", "mujoco/pick-place", "mujoco/peg-insert", "mujoco/tabletop", "bev/drive")
N = 3


def expert_of(name, seed):
    sim = robotrl.make_sim(name, num_envs=N, seed=0)
    sim.reset(seed=0)
    return sim, sim.make_expert(0.2, 0.5, None, seed)


@pytest.mark.parametrize("name", SIMS)
def test_an_expert_goes_on_from_its_state(name):
    sim, expert = expert_of(name, 1)
    assert isinstance(expert, HasExpertState)
    started = torch.ones(N, dtype=torch.bool)
    for _ in range(30):
        step = sim.step(expert.act(started))
        started = (step.terminated | step.truncated).clone()
    state = {key: value.copy() for key, value in expert.get_state().items()}
    other = sim.make_expert(0.2, 0.5, None, 2)
    other.act(torch.ones(N, dtype=torch.bool))
    other.set_state(state)
    began = torch.tensor([True, False, False])
    for _ in range(5):
        assert torch.equal(expert.act(began), other.act(began))
        began = torch.zeros_like(began)
    assert torch.equal(torch.as_tensor(expert.mode), torch.as_tensor(other.mode))


def test_a_state_of_another_expert_is_refused():
    _, expert = expert_of("mujoco/reach", 1)
    state = expert.get_state()
    with raises_naming(ConfigError, "state", "'0/_bias'"):
        expert.set_state({key: value for key, value in state.items() if key != "0/_bias"})
    with raises_naming(ConfigError, "state", "(3,", "2)"):
        expert.set_state({**state, "0/_bias": np.zeros((3, 2))})
    with raises_naming(ConfigError, "expert state"):
        expert.set_state({**state, "1/_rng": np.zeros(3, np.uint8)})
