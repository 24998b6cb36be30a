"""Learning in several processes: two real ones, started by torchrun, against what one process does."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.engine.test_engine as engines
import tests.kits.learner_kit as kit
from robotrl.algos.bc import BcCfg
from robotrl.algos.ppo import PpoLearner
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
from tests.kits.distributed_kit import assert_close, found_by_all, launch
from tests.kits.learner_kit import BETA, GAUSSIAN, PPO
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

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
    rollout = one._collector.rollout(16)
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


def config(**fields: Any) -> TrainCfg[Any, Any]:
    algo = replace(PPO, env_steps=2 * 16 * 16 * 4, minibatch=32)
    evaluation = EvalCfg(every=2, episodes=8, num_envs=4, animation=0)
    return TrainCfg(SimCfg("test/walk", 16), algo, GAUSSIAN, evaluation=evaluation, **fields)


# what comes of it


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


def test_a_run_with_spread_weights_is_saved_whole_and_taken_up_again(tmp_path, monkeypatch):
    """Stopped at an iteration that is no checkpoint's, and resumed."""
    kit.write_walks(tmp_path / "walks")
    for work in (
        # what is left of the group would hold tensors while the interpreter ends, and now and then abort the process
        # (after an import of transformers, as policies with a language model do: without it, torch 2.13 keeps threads)
        "import transformers.activations; train(spread_clone(path), path / 'whole'); write(path, threads_of_groups())",
        "from tests.training.test_resume import StopAt; train(spread_clone(path), path / 'cut', [StopAt(5)])",
    ):
        done = launch(__name__, work, tmp_path)
        assert done.returncode == 0, done.stderr
    assert found_by_all(tmp_path) == [[], []]
    assert [line["step"] for line in read_scalars(tmp_path / "cut" / "scalars.jsonl")] == [1, 2, 3, 4, 5]
    done = launch(__name__, "resume(path / 'cut')", tmp_path)
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
    """Results of two processes, one work after the other, in one launch."""
    path = tmp_path_factory.mktemp("two")
    work = """
with distributed.joined(120) as world:
    out = {"whole": updates(world, "eager"), "parts": updates(world, "eager", 2)}
    out["ppo"] = learned(world)
    out["stopped"] = learned(world, target_kl=1e-9, epochs=4)
    out["beta"] = learned(world, value_clip=0.5, microbatch=8, lr_schedule="adaptive", target_kl=None)
    uneven = torch.arange(3 * (world.rank + 1)) + 10 * world.rank
    out["rows"] = [world.rows(uneven).tolist(), world.rows(uneven > 2).tolist()]
    out["most"], out["any"] = world.most(7 - world.rank), [world.any(rank == 1), world.any(False)]
    nan = float("nan")
    out["means"] = world.means({"a": float(rank), "b": 3.0 if rank else nan, "c": nan})
    moments = RunningMoments(2, world)
    for row in range(2):
        moments.update(torch.arange(8.0).view(2, 2, 2)[row] * (rank + 1))
    out["moments"] = {name: x.tolist() for name, x in moments.state().items()}
write(path, out)
"""
    done = launch(__name__, work, path)
    assert done.returncode == 0, done.stderr
    return found_by_all(path)


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


def test_compiled_halves_are_one_whole(tmp_path):
    """The gradient and the step are compiled apart, the mean over the processes lies between them."""
    work = "with distributed.joined(200) as world: write(path, updates(world, 'compiled'))"
    done = launch(__name__, work, tmp_path)
    assert done.returncode == 0, done.stderr
    one = updates(ALONE, "eager")
    for two in found_by_all(tmp_path):
        assert two["mode"] == "compiled"
        assert_close(two["flat"], one["flat"])


def test_a_run_of_two_processes_is_written_once_and_taken_up_again(tmp_path, monkeypatch):
    run = tmp_path / "run"
    work = "from tests.training.test_resume import StopAt; train(config(), path / 'run', [StopAt(2)])"
    done = launch(__name__, work, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_scalars(run / "scalars.jsonl")] == [1, 2]
    done = launch(__name__, "resume(path / 'run')", tmp_path)
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
except RobotrlError as error:
    os.write(2, str(error).encode())  # at once: torchrun asks this process to end as soon as it sees the other's end
    raise
"""
    done = launch(__name__, work, tmp_path)
    assert done.returncode != 0
    assert "process 0 of 2 lost the others while it" in done.stderr
    assert "the last checkpoint is intact" in done.stderr
    checkpoint = Run.open(tmp_path / "run").latest()
    assert checkpoint is not None
    assert checkpoint.step == 2


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
    done = launch(__name__, work, tmp_path)
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
    with raises_naming(ConfigError, "algo.minibatch", 63, 2):
        share("algo.minibatch", 63, DistributedContext(1, 2))
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 2 and RANK.* not set: expected all, as torchrun sets them"):
        train(config(), Path("never"))
    sac = replace(config(), algo=SacCfg(engine="eager"), policy=SquashedCfg())
    with pytest.raises(CapabilityError, match="SacLearner lacks world: it learns in one process, and WORLD_SIZE is 2"):
        _make_learner(sac, None, Path("never"), DistributedContext(0, 2))
    with raises_naming(ConfigError, "dist_timeout_s", 0.0, 0):
        train(config(dist_timeout_s=0.0), Path("never"))
