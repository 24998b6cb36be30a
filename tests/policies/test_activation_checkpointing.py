"""Less memory, the same gradients: blocks that are computed again, and minibatches in parts."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tests.algos.test_grpo as grpo
import tests.algos.test_vla_rl as vla_rl
import tests.kits.learner_kit as kit
import tests.peft.test_lora as adapters
import tests.policies.vla.test_flow as flows
from robotrl import config as configs
from robotrl.algos.bc import BcCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.engine.autocast import in_bf16
from robotrl.errors import ConfigError
from robotrl.fn.bc_loss import DrawShape, chunk_shape, clone_loss_of
from robotrl.learners.learner import Setup
from robotrl.memory_estimate.estimate import Load, update_peak
from robotrl.policies.networks.activation_checkpointing import CheckpointedBlock, checkpointed_call, recompute
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import probe_observations
from robotrl.training import train
from tests.kits.refusals import raises_naming

# recomputed blocks


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_stack_has_the_same_gradients(depth: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    net = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)).double()
    x = torch.randn(3, width).double()

    def gradients() -> list[Tensor]:
        out = x
        for block in net:
            out = block(out)
        return list(torch.autograd.grad(out.square().sum(), list(net.parameters())))

    plain, names = gradients(), list(net.state_dict())
    assert recompute(nn.ModuleDict({"a": net})) == depth and recompute(net) == 0
    again = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True)) and list(net.state_dict()) == names
    assert all(
        isinstance(block, CheckpointedBlock) and isinstance(block, nn.Sequential) for block in copy.deepcopy(net)
    )


def test_inside_is_computed_twice_and_only_for_a_gradient() -> None:
    calls: list[bool] = []

    class Block(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            calls.append(torch.is_grad_enabled())
            return super().forward(input).tanh()

    net = nn.ModuleList([Block(2, 2)])
    recompute(net)
    with torch.no_grad():
        net[0](torch.ones(1, 2))
    assert calls == [False]
    net[0](torch.ones(1, 2)).sum().backward()
    assert calls == [False, True, True] and net[0].weight.grad is not None
    # another function of a block, and a block that is as it was
    assert checkpointed_call(nn.Identity(), len, [1, 2]) == 2


@pytest.mark.parametrize("name", adapters.MAKE)
def test_a_policy_learns_the_same_in_less_memory(name: str) -> None:
    plain = adapters.MAKE[name]()
    other = copy.deepcopy(plain)
    assert recompute(other) >= 4
    size = 128
    before, after = (update_peak(policy, Load(size), policy.observation_spec) for policy in (plain, other))
    # of pi0, which is transformers' own, the towers alone are recomputed
    assert after < (0.98 if name == "pi0" else 0.75) * before


@pytest.mark.parametrize("name", adapters.MAKE)
def test_gradients_in_bfloat16_are_the_same(name: str) -> None:
    """What is computed again knows that attention stays in float32, though that context has been left by then."""
    plain = adapters.MAKE[name]()
    other = copy.deepcopy(plain)
    recompute(other)
    found: list[dict[str, Tensor]] = []
    for policy in (plain, other):
        generator = torch.Generator().manual_seed(0)
        obs = probe_observations(policy.observation_spec, policy.transforms.inputs)
        with in_bf16(True, torch.device("cpu")):
            clone = clone_loss_of(policy)
            shape = (len(obs["state"]), *chunk_shape(policy))
            chunk = torch.rand(shape, generator=generator) - 0.5
            drawn = clone.draw(policy, DrawShape(1, *shape), generator)
            valid = torch.ones(shape[:2], dtype=torch.bool)
            loss = clone.loss(policy, policy.encode(obs), chunk, valid, **drawn)
        loss.backward()
        found.append({key: x.grad for key, x in policy.named_parameters() if x.grad is not None})
    assert found[0] and all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def rows_of(made: Any) -> dict[str, Tensor]:
    """Parameters that learn, after what a learner did."""
    return adapters.learning(getattr(made, "model", made.policy))


def made(name: str, tmp_path: Path, again: bool, **changes: Any) -> Any:
    """A learner of a method, its policy adapted and, if told so, recomputed."""
    chain: dict[str, Any] = {
        "env_steps": 64, "num_steps": 8, "epochs": 1, "minibatch": 8, "critic_warmup_env_steps": 0, "engine": "eager"
    }  # fmt: skip
    cfgs: dict[str, Any] = {
        "grpo": replace(grpo.CFG, keep_low=0.0, keep_high=1.0, warmup=0),
        "vla-rl": replace(vla_rl.CFG, critic_warmup_env_steps=0, warmup=0),
        "opd": OpdCfg(iterations=1, minibatch=16),
        "reinflow": ReinFlowCfg(**chain),
        "cloning": BcCfg(updates=10, updates_per_iteration=5, batch=16),
    }
    if name == "opd":
        better = adapters.adapted("parallel")
        adapters.disturb(better)
        teacher = adapters.opd.saved(tmp_path / f"teacher-{again}-{len(changes)}", adapters.merged(better))
        cfgs["opd"] = replace(cfgs["opd"], teacher=teacher)
    if name == "cloning":
        policy = kit.flow()
        where = tmp_path / f"walks-{again}-{len(changes)}"
        return replace(cfgs[name], **changes).build(kit.setup(policy, dataset=kit.write_walks(where)))
    policy = adapters.adapted("smolvla" if name == "reinflow" else "parallel")
    if again:
        recompute(policy)
    sim = (lambda: flows.tabletop(4)) if name == "reinflow" else grpo.tabletop
    return replace(cfgs[name], **changes).build(Setup(sim, None, policy, None, seed=0))


@pytest.mark.parametrize("name", ["grpo", "vla-rl", "opd", "reinflow"])
def test_every_learner_learns_the_same_with_recomputed_blocks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[dict[str, Tensor]] = []
    for again in (False, True):
        learner = made(name, tmp_path, again)
        if name == "grpo":
            grpo.rigged(monkeypatch, learner, [True, False, False, False, False, False, True, True])
        start = rows_of(learner)
        learner.iterate()
        ends.append(rows_of(learner))
    assert any(not torch.equal(start[key], ends[0][key]) for key in start)
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in start)


# minibatches in parts


@pytest.mark.parametrize("name", ["grpo", "vla-rl", "opd", "reinflow", "cloning"])
def test_a_minibatch_in_parts_teaches_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cloning's walks end before their last chunks do, so that parts have unequal numbers of valid actions."""
    ends: list[dict[str, Tensor]] = []
    told: list[dict[str, float]] = []
    for changes in ({}, {"microbatch": 4}):
        learner = made(name, tmp_path, False, **changes)
        if name == "grpo":
            grpo.rigged(monkeypatch, learner, [True, False, False, False, False, False, True, True])
        start = rows_of(learner)
        told.append(learner.iterate())
        ends.append(rows_of(learner))
    moved = max(float((start[key] - ends[0][key]).abs().max()) for key in start)
    apart = max(float((ends[1][key] - ends[0][key]).abs().max()) for key in start)
    assert moved > 1e-4 and apart < 0.02 * moved
    for key in ("loss", "pg_loss", "ratio_error"):
        if key in told[0]:
            assert told[1][key] == pytest.approx(told[0][key], rel=1e-3, abs=1e-5), key


def test_a_part_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "algo.microbatch", 5, 16):
        made("grpo", tmp_path, False, microbatch=5)


def test_a_run_says_so_and_needs_a_policy(tmp_path: Path) -> None:
    clone = grpo.saved(tmp_path / "clone")
    cfg = replace(grpo.run_cfg(clone, iterations=1), recompute=True, lora=adapters.LORA)
    plain = replace(cfg, recompute=False)
    for name, one in (("a", cfg), ("b", plain)):
        train(one, tmp_path / name)
    a, b = (Run.open(tmp_path / name).latest() for name in ("a", "b"))
    assert a is not None and b is not None
    assert kit.same(a.tree["policy"]["weights"], b.tree["policy"]["weights"])
    with pytest.raises(ConfigError, match="recompute is True and init_from is not given"):
        configs.check(replace(cfg, init_from=None, lora=configs.LoraCfg()))
