"""Learning in several processes: two real ones, started by torchrun, against what one process does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.algos.test_grpo as grpo
import tests.algos.test_opd as opd
import tests.algos.test_vla_rl as vla_rl
import tests.engine.test_engine as engines
import tests.kits.learner_kit as kit
import tests.policies.vla.test_flow as flows
from robotrl.algos.bc import BcCfg
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.ppo import PpoLearner
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.algos.sac import SacCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.engine import distributed
from robotrl.engine.distributed import ALONE, DistributedContext, share
from robotrl.engine.engine import Engine, EngineMode, ParameterGroup
from robotrl.engine.fsdp import ShardedEngine
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.learner import Setup
from robotrl.learners.normalizers import RunningMoments
from robotrl.learners.on_policy import make_batch
from robotrl.policies.squashed import SquashedCfg
from robotrl.registry import SIMS
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.training import _make_learner, resume, train
from tests.kits.learner_kit import BETA, GAUSSIAN, PPO
from tests.kits.paths_kit import ROOT
from tests.kits.walk_sim import Walk

PROGRAM = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from tests.engine.test_distributed import *
SIMS._rows["test/walk"] = "tests.kits.walk_sim:make"
rank, path = int(os.environ["RANK"]), Path(sys.argv[3])
exec(sys.argv[2])
"""


def launch(work: str, path: Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Do some work in several processes, each with what this module has, its `rank` and a `path` to write to."""
    script = path / "worker.py"
    script.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*torchrun, str(script), str(ROOT), work, str(path)]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            out, err = process.communicate(timeout=220)
        except subprocess.TimeoutExpired:
            # torchrun ends its processes when it is asked to, and not when it is killed
            process.terminate()
            out, err = process.communicate()
            raise AssertionError(f"no end after 220 s: {err[-2000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


# what the processes do


def updates(world: DistributedContext, mode: EngineMode, microbatch: int | None = None) -> dict[str, Any]:
    """Five updates on this process's share of minibatches of 8 rows."""
    loss = engines.Watched()
    groups = (ParameterGroup("a.", 0.5, average=0.9), ParameterGroup("b.", 0.5))
    rows = share("minibatch", 8, world)
    run = Engine(
        loss,
        groups,
        minibatch=rows,
        carry={"lr": 1e-2, "calls": 0.0},
        mode=mode,
        microbatch=microbatch,
        world=world,
    )
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3)).view(5, world.size, rows)[:, world.rank]
    info = run.run(engines.data(), order.flatten(), 40, "here").info
    return {
        "mode": run.mode,
        "flat": run.flat.tolist(),
        "state": {name: x.tolist() for name, x in run.state().items()},
        "info": {name: x.tolist() for name, x in info.items()},
    }


def learner(world: DistributedContext, **fields: Any) -> PpoLearner:
    """PPO on 16 walks in each process, with chunks, so that the numbers of decisions differ."""
    cfg = replace(
        PPO, env_steps=2 * 16 * 16 * 3, critic_warmup_env_steps=0, normalize_reward=True, minibatch=32, **fields
    )
    seed = world.seed(0)
    policy = replace(BETA, horizon=3) if fields.get("value_clip") else replace(GAUSSIAN, horizon=3)
    return PpoLearner(cfg, Setup(partial(Walk, 16, seed), policy, None, None, seed, world=world))


def learned(world: DistributedContext, **fields: Any) -> dict[str, Any]:
    """Three iterations, and what one more rollout gives."""
    one = learner(world, **fields)
    scalars = [one.iterate() for _ in range(one.iterations)]
    state = one.state()
    rollout = one._collector.collect(one._decide, 16)
    batch = make_batch(rollout, one._value, 0.99, 0.95, world=world)
    one._made.take(rollout.obs)
    return {
        "flat": one._engine.flat.tolist(),
        "carry": [float(x) for x in one._engine.carry.values()],
        "steps": state["engine"]["steps"].tolist(),
        "reward": state["reward_normalizer"]["moments"]["var"].tolist(),
        "moments": {name: one.state()["obs_normalizer"]["walk"][name].tolist() for name in ("mean", "var", "count")},
        "before": {name: state["obs_normalizer"]["walk"][name].tolist() for name in ("mean", "var", "count")},
        "scalars": scalars,
        "env_steps": one.env_steps - 2 * 16 * 16,
        "advantage": batch.advantage.tolist(),
        "seen": rollout.obs["walk"].flatten(0, 1).tolist(),
    }


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


def config(**fields: Any) -> TrainCfg[Any, Any]:
    algo = replace(PPO, env_steps=2 * 16 * 16 * 4, minibatch=32)
    evaluation = EvalCfg(every=2, episodes=8, num_envs=4, animation=0)
    return TrainCfg(SimCfg("test/walk", 16), algo, GAUSSIAN, evaluation=evaluation, **fields)


def write(path: Path, found: Any) -> None:
    (path / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


# what comes of it


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> list[dict[str, Any]]:
    """What two processes of every other learner did, in one launch."""
    path = tmp_path_factory.mktemp("others")
    kit.write_walks(path / "walks")
    opd.saved(path / "teacher", teacher())
    work = """
with distributed.joined(200) as world:
    write(path, others(world, path / "walks"))
"""
    done = launch(work, path)
    assert done.returncode == 0, done.stderr
    return [json.loads((path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(240)
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
    """What two processes did with weights that each had a part of."""
    path = tmp_path_factory.mktemp("spread")
    kit.write_walks(path / "walks")
    opd.saved(path / "teacher", teacher())
    done = launch("with distributed.joined(200) as world: write(path, spread_out(world, path / 'walks'))", path)
    assert done.returncode == 0, done.stderr
    return [json.loads((path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(240)
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


def threads_of_groups() -> list[str]:
    """Names of this process's threads that exchange tensors; the system lists those that ended a moment longer."""
    left: list[str] = []
    for _ in range(50):
        with contextlib.suppress(OSError):  # one ends while it is looked at
            names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
            left = [name for name in names if "gloo" in name]
            if not left:
                break
        time.sleep(0.1)
    return left


def spread_clone(path: Path) -> TrainCfg[Any, Any]:
    """Cloning in 8 iterations, with what learns in parts."""
    algo = BcCfg(updates=16, updates_per_iteration=2, batch=8, ema=0.0)
    evaluation = EvalCfg(every=4, episodes=8, num_envs=4, animation=0)
    sim = SimCfg("test/walk", 4)
    data = str(path / "walks")
    return TrainCfg(sim, algo, kit.FLOW, dataset=data, evaluation=evaluation, checkpoint_every=3, fsdp=True)


@pytest.mark.timeout(300)
def test_a_run_with_spread_weights_is_saved_whole_and_taken_up_again(tmp_path, monkeypatch):
    """Stopped at an iteration that is no checkpoint's, and resumed."""
    kit.write_walks(tmp_path / "walks")
    for work in (
        # what is left of the group would hold tensors while the interpreter ends, and now and then abort the process
        "train(spread_clone(path), path / 'whole'); write(path, threads_of_groups())",
        "from tests.training.test_resume import StopAt; train(spread_clone(path), path / 'cut', [StopAt(5)])",
    ):
        done = launch(work, tmp_path)
        assert done.returncode == 0, done.stderr
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [[], []]
    assert [line["step"] for line in read_scalars(tmp_path / "cut" / "scalars.jsonl")] == [1, 2, 3, 4, 5]
    done = launch("resume(path / 'cut')", tmp_path)
    assert done.returncode == 0, done.stderr
    whole, cut = (Run.open(tmp_path / name).latest() for name in ("whole", "cut"))
    assert whole is not None and cut is not None and whole.step == cut.step == 8
    # the second process draws from streams of its own after a resume, so the two are alike and not equal
    ends = [end.tree["learner"]["engine"] for end in (whole, cut)]
    assert ends[0]["steps"].tolist() == ends[1]["steps"].tolist() == [16.0]
    size = sum(x.numel() for x in whole.tree["policy"]["weights"].values())
    assert all(len(end["first"]) == len(end["second"]) == size and end["first"].any() for end in ends)
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")
    with pytest.raises(CapabilityError, match="fsdp is True and there is one process"):
        resume(tmp_path / "cut")


def test_what_cannot_be_spread_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")
    alone = replace(config(), fsdp=True)
    with pytest.raises(CapabilityError, match="PpoLearner cannot spread what it learns: expected fsdp False"):
        _make_learner(alone, None, tmp_path, ALONE)
    loss = engines.Watched()
    groups = (ParameterGroup("a.", 0.5), ParameterGroup("b.", 0.5))
    carry = {"lr": 1e-2, "calls": 0.0}
    with pytest.raises(CapabilityError, match="fsdp is True and there is one process"):
        ShardedEngine(loss, groups, minibatch=8, carry=carry, world=ALONE)
    for fields, groups_, message in (
        ({"mode": "compiled"}, groups, "algo.engine is 'compiled' and fsdp is True"),
        ({}, (ParameterGroup("a.", 0.5, average=0.9), groups[1]), "algo.ema is above 0 and fsdp is True"),
        ({}, (ParameterGroup("a.", 0.5, muon=3.0), groups[1]), "algo.muon is above 0 and fsdp is True"),
        ({"microbatch": 3}, groups, "algo.microbatch is 3: expected a divisor of the 8 rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            ShardedEngine(loss, groups_, minibatch=8, carry=carry, world=DistributedContext(0, 2), **fields)


def test_groups_of_any_process_are_dealt_out_evenly(together):
    """The second process keeps no group, and yet learns from half of what the first has."""
    first = together[0]["grpo"]["scalars"][0]
    assert first["groups_drawn"] == 4 and first["groups_kept"] == 2
    alone = rigged_grpo(ALONE, grpo.CFG, grpo.policy_on(grpo.tabletop(1)))
    told = alone.iterate()
    assert told["groups_kept"] == 2 and first["decisions"] == told["decisions"]
    assert first["rollout_success"] == pytest.approx(told["rollout_success"] / 2)


def test_a_share_of_rows_is_even_whatever_each_process_has(monkeypatch):
    for counts in ((5, 0), (0, 3), (1, 0), (4, 4), (7, 2)):
        everything = torch.arange(sum(counts))
        parts = []
        for rank in range(2):
            world = DistributedContext(rank, 2)
            monkeypatch.setattr(DistributedContext, "rows", lambda self, x, every=everything: every)
            parts.append(world.dealt({"x": everything[: counts[rank]]})["x"])
        assert abs(len(parts[0]) - len(parts[1])) <= 1 and all(len(part) for part in parts)
        assert set(torch.cat(parts).tolist()) == set(everything.tolist())


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict[str, Any]]:
    """What two processes did, one after the other, in one launch."""
    path = tmp_path_factory.mktemp("two")
    work = """
with distributed.joined(120) as world:
    out = {"whole": updates(world, "eager"), "parts": updates(world, "eager", 2)}
    out["ppo"] = learned(world)
    out["stopped"] = learned(world, target_kl=1e-9, epochs=4)
    out["beta"] = learned(world, value_clip=0.5, microbatch=8, lr_schedule="adaptive", target_kl=None)
    uneven = torch.arange(3 * (world.rank + 1)) + 10 * world.rank
    out["rows"] = world.rows(uneven).tolist(), world.rows(uneven > 2).tolist()
    out["most"], out["any"] = world.most(7 - world.rank), [world.any(rank == 1), world.any(False)]
    nan = float("nan")
    out["means"] = world.means({"a": float(rank), "b": 3.0 if rank else nan, "c": nan})
    moments = RunningMoments(2, world)
    for row in range(2):
        moments.update(torch.arange(8.0).view(2, 2, 2)[row] * (rank + 1))
    out["moments"] = {name: x.tolist() for name, x in moments.state().items()}
write(path, out)
"""
    done = launch(work, path)
    assert done.returncode == 0, done.stderr
    return [json.loads((path / f"{rank}.json").read_text()) for rank in range(2)]


def assert_close(a: Any, b: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", ["whole", "parts"])
def test_two_halves_of_a_minibatch_are_one_whole(found, way):
    """Weights, Adam, averages, the carry and what is logged: two processes of M / 2 rows as one of M."""
    one = updates(ALONE, "eager")
    for two in (out[way] for out in found):
        assert_close(two["flat"], one["flat"])
        for name in one["state"]:
            assert_close(two["state"][name], one["state"][name])
        assert two["info"].keys() == one["info"].keys()
        for name in one["info"]:
            assert_close(two["info"][name], one["info"][name])
    assert found[0][way]["flat"] == found[1][way]["flat"]
    assert found[0][way]["info"] == found[1][way]["info"]


@pytest.mark.parametrize("run", ["ppo", "stopped", "beta"])
def test_the_processes_stay_one_learner_on_sims_of_their_own(found, run):
    first, second = (out[run] for out in found)
    for name in ("flat", "carry", "steps", "reward", "moments", "scalars", "env_steps"):
        assert first[name] == second[name], name
    assert first["seen"] != second["seen"]
    assert first["env_steps"] == 2 * 16 * 16 * 3
    assert len(first["scalars"]) == 3
    assert first["scalars"][0]["ratio_error"] <= 1e-5


def test_the_kl_limit_ends_the_actors_updates_everywhere_at_once(found):
    first, second = (out["stopped"]["steps"] for out in found)
    assert first == second
    actor, critic = first
    assert 0 < actor <= 6
    assert critic > 30


def test_advantages_and_observations_are_normalised_together(found):
    first, second = (out["ppo"] for out in found)
    alone = torch.tensor(first["advantage"])
    everything = torch.tensor(first["advantage"] + second["advantage"])
    assert everything.mean().item() == pytest.approx(0, abs=1e-5)
    assert everything.std(unbiased=False).item() == pytest.approx(1, abs=1e-4)
    assert abs(alone.mean().item()) > 1e-3
    by_hand = RunningMoments(2)
    by_hand.load(first["before"])
    for out in (first, second):
        by_hand.update(torch.tensor(out["seen"]))
    for name, x in by_hand.state().items():
        assert_close(first["moments"][name], x.tolist(), rtol=1e-9)


def test_what_is_gathered(found):
    for out in found:
        assert out["rows"] == [[0, 1, 2, 10, 11, 12, 13, 14, 15], [False] * 3 + [True] * 6]
        assert out["most"] == 7
        assert out["any"] == [True, False]
        assert out["means"] == pytest.approx({"a": 0.5, "b": 3.0, "c": float("nan")}, nan_ok=True)
        rows = torch.arange(8.0).view(4, 2)
        everything = torch.cat([rows, 2 * rows])
        assert_close(out["moments"]["mean"], everything.mean(0).tolist())
        assert_close(out["moments"]["var"], everything.var(0, unbiased=False).tolist())
        assert out["moments"]["count"] == 8


@pytest.mark.timeout(240)
def test_compiled_halves_are_one_whole(tmp_path):
    """The gradient and the step are compiled apart, the mean over the processes lies between them."""
    done = launch("with distributed.joined(200) as world: write(path, updates(world, 'compiled'))", tmp_path)
    assert done.returncode == 0, done.stderr
    one = updates(ALONE, "eager")
    for rank in range(2):
        two = json.loads((tmp_path / f"{rank}.json").read_text())
        assert two["mode"] == "compiled"
        assert_close(two["flat"], one["flat"])


@pytest.mark.timeout(300)
def test_a_run_of_two_processes_is_written_once_and_taken_up_again(tmp_path, monkeypatch):
    run = tmp_path / "run"
    done = launch("from tests.training.test_resume import StopAt; train(config(), path / 'run', [StopAt(2)])", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_scalars(run / "scalars.jsonl")] == [1, 2]
    done = launch("resume(path / 'run')", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = list(read_scalars(run / "scalars.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["env_steps"] for line in lines] == [2 * 16 * 16 * n for n in (1, 2, 3, 4)]
    assert [line["step"] for line in lines if "eval_success" in line] == [2, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "worker.py"]
    assert len(json.loads((run / "run.json").read_text())["sessions"]) == 2
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")
    with pytest.raises(ConfigError, match="begun by 2 processes: 1 go on, expected as many"):
        resume(run)


@pytest.mark.timeout(240)
def test_a_process_that_dies_ends_the_run_with_a_reason(tmp_path):
    work = """
from robotrl.errors import RobotrlError
taken = []
def step(self, actions, step=Walk.step):
    taken.append(0)
    if rank == 1 and len(taken) == 40:
        os._exit(3)
    return step(self, actions)
Walk.step = step
try:
    train(config(checkpoint_every=1), path / "run")
except RobotrlError:
    time.sleep(1)  # torchrun asks this process to end meanwhile
    raise
"""
    done = launch(work, tmp_path)
    assert done.returncode != 0
    assert "process 0 of 2 lost the others while it" in done.stderr
    assert "the last checkpoint is intact" in done.stderr
    checkpoint = Run.open(tmp_path / "run").latest()
    assert checkpoint is not None
    assert checkpoint.step == 2


@pytest.mark.timeout(240)
def test_a_process_that_hangs_is_not_waited_for_without_end(tmp_path):
    work = """
import time
with distributed.joined(5) as world:
    one = learner(world)
    one.iterate()
    if rank == 1:
        time.sleep(1000)
    one.iterate()
"""
    done = launch(work, tmp_path)
    assert done.returncode != 0
    assert "process 0 of 2 lost the others while it" in done.stderr
    assert "answer within dist_timeout_s" in done.stderr


def test_alone_nothing_is_exchanged(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with distributed.joined(1) as world:
        assert world == ALONE
    x = torch.arange(3.0)
    ALONE.mean_(x)
    ALONE.copy_first_(x)
    assert x.tolist() == [0, 1, 2]
    assert torch.equal(ALONE.rows(x), x)
    assert torch.equal(ALONE.stacked(x), x[None])
    assert ALONE.most(4) == 4
    assert (ALONE.any(True), ALONE.any(False)) == (True, False)


def test_each_process_has_a_seed_of_its_own():
    assert ALONE.seed(5) == DistributedContext(0, 4).seed(5) == 5
    seeds = [DistributedContext(rank, 4).seed(seed) for seed in (0, 1, 2**31 - 1) for rank in range(4)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_what_cannot_be_shared_is_refused_by_name(monkeypatch):
    assert share("algo.minibatch", 64, DistributedContext(1, 2)) == 32
    with pytest.raises(ConfigError, match=r"algo\.minibatch is 63: expected a multiple of 2, the number of processes"):
        share("algo.minibatch", 63, DistributedContext(1, 2))
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 2 and RANK.* not set: expected all, as torchrun sets them"):
        train(config(), Path("never"))
    sac = replace(config(), algo=SacCfg(engine="eager"), policy=SquashedCfg())
    with pytest.raises(CapabilityError, match="SacLearner lacks world: it learns in one process, and WORLD_SIZE is 2"):
        _make_learner(sac, None, Path("never"), DistributedContext(0, 2))
    with pytest.raises(ConfigError, match=r"dist_timeout_s is 0\.0: expected above 0 seconds"):
        train(config(dist_timeout_s=0.0), Path("never"))
