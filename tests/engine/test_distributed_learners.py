"""Every learner that can learn in several processes: with whole weights, and with weights that each has a part of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.algos.test_grpo as grpo
import tests.algos.test_opd as opd
import tests.algos.test_vla_rl as vla_rl
import tests.kits.learner_kit as kit
import tests.policies.vla.test_flow as flows
from robotrl.algos.bc import BcCfg
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.engine.distributed import ALONE, DistributedContext
from robotrl.learners.learner import Setup
from tests.kits.distributed_kit import assert_close, found_by_all, launch
from tests.kits.walk_sim import Walk


def dealt_out(rank: int) -> Any:
    """Success of the episodes of a process's two groups: of the second one's, none is worth anything."""
    return [True, False, False, False, True, True, False, False] if rank == 0 else [False] * 8


def rigged_grpo(world: DistributedContext, cfg: Any, policy: Any, fsdp: bool = False) -> Any:
    """GRPO on eight episodes a process, those of the second all failures."""
    cfg = replace(cfg, group_size=4, groups=2, tries=1, minibatch=16, lr=1e-3)
    sim = partial(grpo.tabletop, limit_s=0.5 + 0.25 * world.rank)
    made = Setup(sim, None, policy, None, world.seed(0), world=world, fsdp=fsdp)
    one = cfg.build(made)
    collect = one._collector.collect

    def told(decide: Any, starts: Any) -> Any:
        return collect(decide, starts)._replace(success=torch.tensor(dealt_out(world.rank)))

    one._collector.collect = told
    return one


def teacher() -> Any:
    """A policy that says other things."""
    policy = grpo.policy_on(grpo.tabletop(1))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return policy


def made_of(name: str, world: DistributedContext, data: Path, fsdp: bool = False) -> Any:
    """The other learners that learn together, by name; what is to be spread has no averages."""
    ema = 0.0 if fsdp or "whole" in name else 0.9
    name = name.removesuffix(" whole")
    seed = world.seed(0)
    on_line = {**kit.SMALL, "env_steps": 2 * 8 * 8 * 2, "num_steps": 8, "minibatch": 16}
    walk = Setup(partial(Walk, 8, seed), None, None, None, seed, world=world, fsdp=fsdp)
    if name == "bc":
        cfg = BcCfg(updates=6, updates_per_iteration=3, batch=16, microbatch=4, ema=ema)
        return cfg.build(walk._replace(dataset=data, policy_cfg=kit.FLOW))
    if name == "reinflow":
        return ReinFlowCfg(**on_line, ema=ema, normalize_reward=True).build(walk._replace(init_policy=kit.flow()))
    if name == "dppo":
        return DppoCfg(**on_line, target_kl=1e-9).build(walk._replace(init_policy=kit.diffusion()))
    if name == "grpo":
        return rigged_grpo(world, grpo.CFG, grpo.policy_on(grpo.tabletop(1)), fsdp)
    if name == "flow-grpo":
        return rigged_grpo(world, FlowGrpoCfg(iterations=2, correlation=0.9), flows.policy_on("smolvla"), fsdp)
    if name == "smolvla":
        told = Setup(partial(grpo.tabletop, 8), None, flows.policy_on("smolvla"), None, seed, world=world, fsdp=fsdp)
        return ReinFlowCfg(**on_line, ema=ema).build(told)
    policy = grpo.policy_on(grpo.tabletop(1))
    told = Setup(partial(grpo.tabletop, 8), None, policy, None, seed, world=world, fsdp=fsdp)
    if name == "vla-rl":
        return replace(vla_rl.CFG, env_steps=2 * 8 * 8 * 2, critic_warmup_env_steps=0).build(told)
    assert name == "opd"
    return OpdCfg(teacher=str(data.parent / "teacher"), iterations=2, minibatch=16).build(told)


OTHERS = ("bc", "reinflow", "dppo", "grpo", "flow-grpo", "vla-rl", "opd")
SPREAD = ("bc", "reinflow", "grpo", "flow-grpo", "vla-rl", "opd", "smolvla")
"""Those whose weights are spread as well; without averages, they learn what they learn with whole weights."""


def others(world: DistributedContext, data: Path) -> dict[str, Any]:
    """Two iterations of each."""
    return {name: what_became(made_of(name, world, data)) for name in OTHERS}


def spread_out(world: DistributedContext, data: Path) -> dict[str, Any]:
    """Two iterations of each with whole weights and with spread ones, which go on from what they saved."""
    found = {name: what_became(made_of(f"{name} whole", world, data)) for name in SPREAD}
    for name in SPREAD:
        one = made_of(name, world, data, fsdp=True)
        one.iterate()
        kept = kit.snapshot(one.state())
        other = made_of(name, world, data, fsdp=True)
        other.load(kept)
        taken = other._engine.state()
        same = all(torch.equal(taken[key], kept["engine"][key]) for key in taken)
        found[f"{name} spread"] = {**what_became(one, 1), "begun": moments_of(kept["engine"])}
        found[f"{name} again"] = {**what_became(other, 1), "taken up": same}
        found[f"{name} spread"]["own"] = sum(p.to_local().numel() for p in one._engine._parts)
    return found


def moments_of(state: dict[str, Any]) -> dict[str, list[float]]:
    """Adam's, of all parameters."""
    return {key: state[key].tolist() for key in ("first", "second")}


def what_became(one: Any, iterations: int = 2) -> dict[str, Any]:
    """Weights, moments and the log."""
    engine, begun = one._engine, {}
    scalars = [one.iterate()]
    if iterations > 1:
        begun = moments_of(engine.state())
        scalars += [one.iterate() for _ in range(iterations - 1)]
    flat = torch.cat([p.detach().flatten() for p in engine._whole]) if one.sharded else engine.flat
    found = {
        "flat": flat.tolist(),
        "engine": {key: x.tolist() for key, x in engine.state().items()},
        "begun": begun,
        "deployed": [float(p.double().sum()) for p in one.policy.parameters()],
        "scalars": [{key: x for key, x in line.items() if not key.endswith("_s")} for line in scalars],
        "env_steps": one.env_steps,
        "minibatch": engine.minibatch,
    }
    one.close()
    return found


def launched(function: str, path: Path) -> list[dict[str, Any]]:
    """Results of a function of this module in two processes that share walks and a teacher."""
    kit.write_walks(path / "walks")
    opd.saved(path / "teacher", teacher())
    done = launch(
        __name__, f"with distributed.joined(200) as world: write(path, {function}(world, path / 'walks'))", path
    )
    assert done.returncode == 0, done.stderr
    return found_by_all(path)


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> list[dict[str, Any]]:
    """Results of two processes that train every other learner, in one launch."""
    return launched("others", tmp_path_factory.mktemp("others"))


@pytest.mark.parametrize("name", OTHERS)
def test_every_learner_that_learns_together_stays_one(together, name):
    """The same weights, averages, moments and log in both, though each has seen episodes of its own."""
    first, second = (out[name] for out in together)
    assert first == second
    assert first["minibatch"] * 2 == {"bc": 16}.get(name, 16)
    assert all(step > 0 for step in first["engine"]["steps"])
    assert first["env_steps"] > 0 or name == "bc"
    assert first["scalars"][0].get("ratio_error", 0) <= 1e-5
    assert all(abs(x) < 1e6 for line in first["scalars"] for x in line.values())


@pytest.fixture(scope="module")
def spread(tmp_path_factory) -> list[dict[str, Any]]:
    """Results of two processes that train weights of which each has a part."""
    return launched("spread_out", tmp_path_factory.mktemp("spread"))


@pytest.mark.parametrize("name", SPREAD)
def test_spread_weights_learn_what_whole_ones_learn(spread, name):
    """Weights and moments up to rounding, half of them in each process; and a resume takes all of them up.

    After one iteration all moments agree. In the second, gradients are taken where Adam's steps along the rounding of
    others have led, so what is compared is what has a gradient to speak of.
    """
    whole, parts, again = (spread[0][f"{name}{kind}"] for kind in ("", " spread", " again"))
    for key in ("first", "second"):
        assert_close(parts["begun"][key], whole["begun"][key], rtol=1e-2, atol=3e-5)
    first = torch.tensor(whole["engine"]["first"]).abs()
    firm = first > 0.03 * first.max()
    assert firm.float().mean() > 0.01
    for key in ("first", "second"):
        one, other = (torch.tensor(found["engine"][key])[firm].tolist() for found in (parts, whole))
        assert_close(one, other, rtol=1e-2, atol=3e-5)
    assert parts["engine"]["steps"] == whole["engine"]["steps"]
    assert_close(torch.tensor(parts["flat"])[firm].tolist(), torch.tensor(whole["flat"])[firm].tolist())
    # the second process goes on with streams of its own
    assert again["taken up"] and spread[1][f"{name} again"]["taken up"]
    assert again["flat"] == spread[1][f"{name} again"]["flat"]
    if name != "smolvla":
        assert again["engine"]["steps"] == parts["engine"]["steps"]
    assert spread[0][f"{name} spread"]["flat"] == spread[1][f"{name} spread"]["flat"]
    own = [out[f"{name} spread"]["own"] for out in spread]
    assert sum(own) == len(whole["flat"]) and abs(own[0] - own[1]) < 0.2 * sum(own)


def test_groups_of_any_process_are_dealt_out_evenly(together):
    """The second process keeps no group, and yet learns from half of what the first has."""
    first = together[0]["grpo"]["scalars"][0]
    assert first["groups_drawn"] == 4 and first["groups_kept"] == 2
    alone = rigged_grpo(ALONE, grpo.CFG, grpo.policy_on(grpo.tabletop(1)))
    told = alone.iterate()
    assert told["groups_kept"] == 2 and first["decisions"] == told["decisions"]
    assert first["rollout_success"] == pytest.approx(told["rollout_success"] / 2)
