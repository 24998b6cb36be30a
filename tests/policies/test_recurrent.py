"""Recurrent policies beyond the checks of every policy: the gated unit, and capabilities that they must not claim."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robotrl.errors import ConfigError
from robotrl.policies.networks.gated import GatedUnit
from robotrl.policies.recurrent import RecurrentCfg
from robotrl.spec import BuildsMemory, HasDensity, HasLogProb, HasMemory
from robotrl.testing.policies import ACTION_SPEC, OBSERVATION_SPEC, TRANSFORMS
from tests.kits.policy_kit import CFGS, RECURRENT, make_policy, observations
from tests.kits.refusals import raises_naming


def test_the_gated_unit_is_the_gru_of_torch():
    torch.manual_seed(0)
    own, cell = GatedUnit(3, 5), nn.GRUCell(3, 5)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.copy_(torch.randn_like(parameter))
        cell.weight_ih.copy_(own.inputs.weight)
        cell.weight_hh.copy_(own.recurrent.weight)
        cell.bias_ih.copy_(own.inputs.bias)
        cell.bias_hh.copy_(own.recurrent.bias)
    x, memory = torch.randn(7, 3), torch.rand(7, 5) * 2 - 1
    assert torch.allclose(own(own.gates(x), memory), cell(x, memory), atol=1e-6)


def test_one_step_by_hand():
    """With all weights 0: r = z = 1/2 and n = tanh(0) = 0, so the memory is halved."""
    unit = GatedUnit(1, 1)
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.zero_()
        # the input's part of n is x itself
        unit.inputs.weight[2] = 1.0
    gates = unit.gates(torch.tensor([[0.0], [0.5]]))
    found = unit(gates, torch.tensor([[0.8], [0.8]]))
    expected = torch.tensor([[0.4], [0.5 * 0.8 + 0.5 * torch.tanh(torch.tensor(0.5)).item()]])
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("name", RECURRENT)
def test_nothing_takes_it_for_a_policy_of_single_observations(name):
    policy = make_policy(name)
    assert isinstance(policy, HasMemory) and isinstance(policy.cfg, BuildsMemory)
    assert not isinstance(policy, HasDensity | HasLogProb)
    assert not hasattr(policy, "encode")


@pytest.mark.parametrize("name", CFGS)
def test_policies_of_single_observations_claim_no_memory(name):
    policy = make_policy(name)
    assert not isinstance(policy, HasMemory) and not isinstance(policy.cfg, BuildsMemory)


def test_gradients_flow_through_joined_decisions_alone():
    policy = make_policy("recurrent")
    rows = observations(6, policy=policy)
    obs = {key: x.view(1, 6, -1).requires_grad_() for key, x in rows.items()}
    joined = torch.tensor([[False, True, True, False, True, True]])
    memory = torch.zeros(1, 6, policy.memory_width, requires_grad=True)
    policy.unroll(obs, memory, joined)[0, -1].sum().backward()
    grad = obs["tip"].grad
    assert grad is not None
    # the fourth decision begins anew: what was before it has no influence
    assert (grad[0, :3] == 0).all() and (grad[0, 3:] != 0).any(1).all()
    assert memory.grad is not None
    assert [bool(row.any()) for row in memory.grad[0]] == [False, False, False, True, False, False]


def test_a_memory_of_no_width_is_refused():
    with raises_naming(ConfigError, "policy.memory", 0, 1):
        RecurrentCfg(memory=0).build(OBSERVATION_SPEC, ACTION_SPEC, TRANSFORMS)
