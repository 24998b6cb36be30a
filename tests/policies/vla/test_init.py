"""First weights of small vision-language-action networks: what is seen counts as much as what is read."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import robotrl
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.policies.vla.networks.init import begin, positions
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.spec import visible
from robotrl.transforms import TransformGroup

CFGS: dict[str, Any] = {"token": TokenVlaCfg(), "smolvla": FlowVlaCfg(), "pi0": FlowVlaCfg(network="pi0", patch=16)}
PATCHES = 16
"""Of all three, for pictures of 64 pixels."""


def first_layer(policy: Any, kind: str) -> nn.Module:
    if kind == "token":
        return policy.net.language_model.model.layers[0]
    if kind == "smolvla":
        return policy.net.vlm_with_expert.vlm.model.text_model.layers[0]
    return policy.net.net.model.vlm.language_model.layers[0]


@pytest.fixture(scope="module")
def sim() -> Any:
    return robotrl.make_sim("mujoco/tabletop", num_envs=32, seed=0, image="flat_front", image_size=64)


@pytest.mark.parametrize("kind", list(CFGS))
def test_pictures_enter_the_language_model_as_loud_as_words(sim: Any, kind: str) -> None:
    """With the classes' own first weights a picture is a tenth of a word or less, or twenty times one."""
    torch.manual_seed(0)
    policy = CFGS[kind].build(visible(sim), sim.action_spec, TransformGroup((), ()))
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        del module
        seen.append(args[0].detach())

    first_layer(policy, kind).get_submodule("input_layernorm").register_forward_pre_hook(keep)
    with torch.no_grad():
        obs = sim.reset(0)
        ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
        if kind == "token":
            policy.net.summary(ctx)
    begin_of_picture = 1 if kind == "token" else 0
    size = seen[0].square().mean(dim=2).sqrt()
    pictures = seen[0][:, begin_of_picture : begin_of_picture + PATCHES]
    assert 0.4 < pictures.square().mean().sqrt() < 1.6
    assert size[:, 22:24].mean() == pytest.approx(1.0, abs=0.2)  # words
    assert pictures.std(dim=0).square().mean().sqrt() > 0.25  # other pictures are other tokens


@pytest.mark.parametrize("kind", list(CFGS))
def test_patches_begin_blind_to_a_uniform_background(sim: Any, kind: str) -> None:
    policy = CFGS[kind].build(visible(sim), sim.action_spec, TransformGroup((), ()))
    convolutions = [module for module in policy.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == (2 if kind == "token" else 1)
    for module in convolutions:
        side = module.kernel_size[0]
        color = torch.rand(1, 3, 1, 1).expand(-1, -1, side, side)
        with torch.no_grad():
            assert module(color).abs().max() < 1e-5
            assert module(torch.rand(1, 3, side, side)).abs().mean() > 0.1


def test_positions() -> None:
    """Two patches a side: wavelengths of the picture's double and of itself, at a quarter and three quarters of it."""
    found = positions(2, 8)[0]
    at = [math.pi / 4, 3 * math.pi / 4]
    one = [[math.sin(a), math.sin(2 * a), math.cos(a), math.cos(2 * a)] for a in at]
    wanted = torch.tensor([one[row] + one[column] for row in range(2) for column in range(2)])
    assert torch.allclose(found, wanted, atol=1e-6)
    many = positions(8, 96)[0]
    assert torch.allclose(many.square().mean(dim=1), torch.full((64,), 0.5), atol=1e-6)
    apart = torch.cdist(many, many) + 10 * torch.eye(64)
    assert apart.min() > 1.0 and positions(1, 4).shape == (1, 1, 4)


def test_maps_keep_the_size_of_what_goes_through_them() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"plain": nn.Linear(64, 64), "o_proj": nn.Linear(64, 64), "lm_head": nn.Linear(64, 64)})
    head: Any = net["lm_head"]
    before = head.weight.clone()
    begin(net, layers=8)
    x = torch.randn(4096, 64)
    with torch.no_grad():
        assert net["plain"](x).std() == pytest.approx(1.0, abs=0.1)
        assert net["o_proj"](x).std() == pytest.approx(0.25, abs=0.03)
    assert torch.equal(head.weight, before)
