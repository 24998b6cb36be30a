"""Scene encoder: what the order of a set, its absent rows and its single rows change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.policies.flow import FlowCfg
from robotrl.policies.networks.scene import SceneEncoder
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup
from tests.kits.policy_kit import SET_SPEC, make_policy, observations

LISTS = {"agents": (5, 4), "route": (3, 2)}


def scene(seed: int = 0) -> tuple[SceneEncoder, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(seed)
    encoder = SceneEncoder(6, LISTS, frozenset({"agents"}), 8, 2).double()
    lists = {key: torch.randn(7, *shape, dtype=torch.float64) for key, shape in LISTS.items()}
    mask = (torch.arange(5) < torch.arange(7)[:, None]).double()  # from none to all five are there
    return encoder, torch.randn(7, 6, dtype=torch.float64), lists, {"agents": mask}


def test_the_order_of_a_set_changes_nothing_and_that_of_a_sequence_does() -> None:
    encoder, vectors, lists, masks = scene()
    order = torch.tensor([3, 0, 4, 2, 1])
    base = encoder(vectors, lists, masks)
    moved = encoder(vectors, lists | {"agents": lists["agents"][:, order]}, {"agents": masks["agents"][:, order]})
    torch.testing.assert_close(moved, base, rtol=0, atol=1e-12)
    turned = encoder(vectors, lists | {"route": lists["route"].flip(1)}, masks)
    assert (turned - base).abs().amax(dim=1).min() > 1e-6


def test_absent_rows_change_nothing_and_present_ones_do() -> None:
    encoder, vectors, lists, masks = scene()
    base = encoder(vectors, lists, masks)
    noise = torch.randn_like(lists["agents"])
    there = masks["agents"][..., None]
    hidden = encoder(vectors, lists | {"agents": lists["agents"] + noise * (1 - there)}, masks)
    assert torch.equal(hidden, base)
    seen = encoder(vectors, lists | {"agents": lists["agents"] + noise * there}, masks)
    changed = (seen - base).abs().amax(dim=1)
    assert changed[0] == 0  # nobody is there
    assert changed[1:].min() > 1e-6


def test_an_empty_scene_is_finite_and_so_is_its_gradient() -> None:
    encoder, vectors, lists, masks = scene()
    out = encoder(vectors, lists, {"agents": torch.zeros_like(masks["agents"])})
    assert out.isfinite().all()
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


def test_a_policy_with_attention_is_blind_to_the_order_of_a_set() -> None:
    policy = make_policy("flow-attention-set")
    obs = observations(8, policy=policy)
    order = torch.tensor([2, 0, 1])
    moved = obs | {"others": obs["others"][:, order], "others_mask": obs["others_mask"][:, order]}
    noise = torch.randn(8, *policy.noise_shape)
    torch.testing.assert_close(policy.deploy(moved, noise).actions, policy.deploy(obs, noise).actions)
    pooled = make_policy("gaussian-set")  # its raw rows have an index
    assert not torch.allclose(pooled.encode(moved), pooled.encode(obs))


@pytest.mark.parametrize(("change", "word"), [({"set_features": 6}, "set_features"), ({}, "set_attention")])
def test_what_cannot_be_encoded_is_refused_by_name(change: dict[str, int], word: str) -> None:
    keys = SET_SPEC if change else ("others", "others_mask")
    spec = {key: SET_SPEC[key] for key in keys}
    cfg = FlowCfg(**{"set_features": 8, "set_attention": 1, **change})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"policy.{word}"):
        cfg.build(spec, Spec((1,), ("a",), ("1",), (-1.0,), (1.0,)), TransformGroup())
