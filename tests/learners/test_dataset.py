"""The learner of off-policy losses on a dataset: units of its rows, shares of batches, updates due, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.errors import ConfigError
from robotrl.learners.off_policy import ActionNormalizer
from robotrl.policies.flow import FlowPolicy
from robotrl.transforms import Affine, Clip, TransformGroup
from tests.kits.refusals import raises_naming

NARROW = TransformGroup(
    kit.TRANSFORMS.inputs, (Affine("action", (0.4,), (0.1,)), Clip("action", kit.ACTION.low, kit.ACTION.high))
)
"""A policy of other units than those of the bounds: its 1 is 0.5 of the sim's."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("dataset") / "data", episodes=40)


def narrow() -> FlowPolicy:
    torch.manual_seed(0)
    return kit.FLOW.build(kit.SPECS, kit.ACTION, NARROW)


def test_a_normalizer_of_a_policy_undoes_its_output():
    chunk = torch.tensor([[[-1.0], [0.0], [1.0]]])
    assert ActionNormalizer.of_policy(narrow())(narrow().to_actions(chunk)).flatten().tolist() == pytest.approx(
        [-1.0, 0.0, 1.0]
    )
    # what the bounds cut off is cut off in these units, too: the bound 1 is (1 - 0.1) / 0.4
    beyond = narrow().to_actions(torch.tensor([[[10.0]]]))
    assert ActionNormalizer.of_policy(narrow())(beyond).item() == pytest.approx(2.25)


def test_chunks_are_in_the_policys_units(data):
    learner = off.FQL.build(off.setup(init_policy=narrow(), dataset=data))
    rows = learner._draw(2)
    every = learner._data.view(learner._data.indices(2), 2, 0.9).chunk
    actions = learner.policy.to_actions(rows["chunk"])
    assert rows["chunk"].shape == (64, 2, 1) and rows["chunk"].abs().max() > 1.5
    assert all((every - chunk).abs().amax((1, 2)).min() < 1e-5 for chunk in actions)


def test_updates_are_those_due_and_batches_are_of_both_sources(data):
    cfg = replace(off.FQL, updates=15, env_steps=80, utd_ratio=0.3, warmup=32, online_share=0.25)
    learner = cfg.build(off.setup(kit.FLOW, data))
    assert learner.iterations == 2 + 5
    updates = [row["updates"] for row in (learner.iterate() for _ in range(7))]
    # 10 and the remaining 5 offline; two iterations of 16 env steps of warm-up, then 4.8 for each
    assert updates == [10, 15, 15, 15, 19, 24, 29]
    assert learner.env_steps == 80
    seen = learner._data.view(learner._data.indices(1), 1, 1.0).obs["walk"]
    rows = learner._draw(1)["obs/walk"]
    from_data = sum(bool((seen == row).all(1).any()) for row in rows)
    assert from_data >= 24


def test_without_a_budget_there_is_nothing_to_do(data):
    with raises_naming(ConfigError, "algo.updates", 0, 1):
        replace(off.FQL, updates=0).build(off.setup(kit.FLOW, data))
    with raises_naming(ConfigError, "algo.updates", 0, 1):
        replace(off.IQL, updates=0).build(off.setup(kit.FLOW, data))
