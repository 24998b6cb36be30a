"""Training runs from end to end: the presets through the command line, the runner's own rules on the walk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl import config as configs
from robotrl.cli.commands.train import config_of
from robotrl.cli.main import main
from robotrl.config import RENAMED, EvalCfg, SimCfg, TrainCfg, WeightedReward, class_named
from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError
from robotrl.registry import PRESETS, SIMS, make_sim
from robotrl.rewards.rules import AliveCfg
from robotrl.rewards.task import TaskRewardCfg
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.evaluate import EvalResult, evaluate
from robotrl.run.callbacks import Callback
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from robotrl.training import resume, train
from tests.kits.commands import PEG_BC, PEG_BC_GAUSSIAN, PEG_PPO
from tests.kits.walk_sim import SPLITS, Walk

PEG = "mujoco/peg-insert"
TINY = ["--evaluation.episodes", "4", "--evaluation.num-envs", "16", "--evaluation.animation", "1"]
TINY_RL = [
    *TINY,
    "--sim.num-envs",
    "4",
    "--algo.num-steps",
    "8",
    "--algo.env-steps",
    "128",
    "--algo.minibatch",
    "8",
]


@pytest.fixture(autouse=True)
def walk_is_known(monkeypatch):
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    path = tmp_path_factory.mktemp("demos") / "d"
    collect_demos(PEG, path, episodes=4, num_envs=4)
    return path


@pytest.fixture(scope="module")
def clone(tmp_path_factory, demos):
    path = tmp_path_factory.mktemp("clone") / "r"
    arguments = ["--dataset", str(demos), "--algo.updates", "20", "--algo.updates-per-iteration", "10", *TINY]
    assert main(["train", *PEG_BC, "--run-dir", str(path), *arguments]) == 0
    return path


def check_run(path: Path, evaluations: list[int], iterations: int) -> list[dict[str, Any]]:
    """Everything a finished run leaves behind; gives its scalars."""
    scalars = list(read_scalars(path / "scalars.jsonl"))
    assert [line["step"] for line in scalars] == list(range(1, iterations + 1))
    assert [line["step"] for line in scalars if "eval_success" in line] == evaluations
    for line in scalars:
        if "eval_success" in line:
            assert 0 <= line["eval_low"] <= line["eval_success"] <= line["eval_high"] <= 1
    run = Run.open(path)
    latest, best = run.latest(), run.best()
    assert latest is not None
    assert best is not None
    assert latest.step == iterations
    assert best.score == max(line["eval_success"] for line in scalars if "eval_success" in line)
    assert list((path / "tb").iterdir())
    for step in evaluations:
        with Image.open(path / "rollouts" / f"step_{step:06d}.gif") as picture:
            assert picture.n_frames > 1
    for which in ("best", "latest"):
        policy = load_policy(path, which)
        assert policy.control_dt_s == 0.05
    return scalars


def test_a_flow_policy_is_cloned(clone):
    scalars = check_run(clone, [2], 2)
    assert all(np.isfinite(line["loss"]) for line in scalars)
    assert load_policy(clone).kind == "flow"


def test_a_gaussian_policy_is_cloned(tmp_path, demos):
    arguments = ["--dataset", str(demos), "--algo.updates", "20", "--algo.updates-per-iteration", "10", *TINY]
    assert main(["train", *PEG_BC_GAUSSIAN, "--run-dir", str(tmp_path / "r"), *arguments]) == 0
    check_run(tmp_path / "r", [2], 2)
    assert load_policy(tmp_path / "r").kind == "gaussian"


def test_reinflow_fine_tunes_the_clone(tmp_path, clone):
    arguments = [
        "--init-from",
        str(clone),
        "--evaluation.every-env-steps",
        "64",
        "--algo.critic-warmup-env-steps",
        "1",
        *TINY_RL,
    ]
    assert main(["train", "peg-insert-reinflow", "--run-dir", str(tmp_path / "r"), *arguments]) == 0
    scalars = check_run(tmp_path / "r", [2, 4], 4)
    assert [line["env_steps"] for line in scalars] == [32, 64, 96, 128]
    assert "pg_loss" not in scalars[0]
    assert scalars[1]["ratio_error"] <= 1e-5  # the first iteration that trains the policy
    before, after = load_policy(clone), load_policy(tmp_path / "r", "latest")
    assert before.transforms == after.transforms
    assert not kit.same(before.state_dict(), after.state_dict())


def test_ppo_trains_from_scratch_and_from_a_clone(tmp_path):
    arguments = [
        "--evaluation.every-env-steps",
        "64",
        "--algo.critic-warmup-env-steps",
        "0",
        "--algo.engine",
        "eager",
        *TINY_RL,
    ]
    assert main(["train", *PEG_PPO, "--run-dir", str(tmp_path / "a"), *arguments]) == 0
    scalars = check_run(tmp_path / "a", [2, 4], 4)
    assert scalars[0]["ratio_error"] <= 1e-5
    arguments += ["--init-from", str(tmp_path / "a"), "--algo.env-steps", "32"]
    assert main(["train", *PEG_PPO, "--run-dir", str(tmp_path / "b"), *arguments]) == 0
    assert load_policy(tmp_path / "a").transforms == load_policy(tmp_path / "b").transforms


def test_evaluation_of_the_checkpoint_is_that_of_the_run(tmp_path, clone):
    """What was logged is what `evaluate` finds on the policy read back: same starts, same noise."""
    logged = list(read_scalars(clone / "scalars.jsonl"))[-1]
    sim = make_sim(PEG, num_envs=16, seed=0)
    found = evaluate(load_policy(clone), sim, episodes=4, split="val", seed=0)
    assert found.rate.value == logged["eval_success"]
    assert float(found.length.mean()) == logged["eval_length"]


# the runner's rules


def walk_config(**changes: Any) -> TrainCfg[Any, Any]:
    base: TrainCfg[Any, Any] = TrainCfg(
        sim=SimCfg("test/walk", 16),
        algo=replace(kit.PPO, env_steps=16 * 16 * 6),
        policy=kit.GAUSSIAN,
        evaluation=EvalCfg(every=2, episodes=8, num_envs=4),
        checkpoint_every=1,
    )
    return replace(base, **changes)


class Watcher(Callback):
    def __init__(self, stop_at: int = 0, fail_at: int = 0) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.stop_at, self.fail_at = stop_at, fail_at

    def on_start(self, run):
        self.run = run
        self.calls.append(("start", run.path))

    def on_iteration(self, step, scalars):
        self.calls.append(("iteration", step))
        if step == self.stop_at:
            self.run.request_stop("enough")
        if step == self.fail_at:
            raise RuntimeError("my own mistake")

    def on_evaluation(self, step, result):
        assert isinstance(result, EvalResult)
        self.calls.append(("evaluation", step))

    def on_checkpoint(self, step, path):
        assert path.is_dir()
        self.calls.append(("checkpoint", step))

    def on_end(self, run):
        self.calls.append(("end", run.path))


def test_callbacks_are_called_in_order(tmp_path):
    watcher = Watcher()
    train(walk_config(checkpoint_every=4, algo=replace(kit.PPO, env_steps=16 * 16 * 5)), tmp_path / "r", [watcher])
    expected: list[tuple[str, Any]] = [("start", tmp_path / "r")]
    for step in range(1, 6):
        expected += [("evaluation", step)] if step in (2, 4, 5) else []
        expected += [("iteration", step)]
        expected += [("checkpoint", step)] if step in (2, 4, 5) else []
    assert watcher.calls == [*expected, ("end", tmp_path / "r")]


def test_a_callback_stops_the_run_at_once_and_it_is_saved(tmp_path):
    watcher = Watcher(stop_at=3)
    train(walk_config(checkpoint_every=100), tmp_path / "r", [watcher])
    assert watcher.calls[-3:] == [("iteration", 3), ("checkpoint", 3), ("end", tmp_path / "r")]


def test_a_failing_callback_saves_and_is_named(tmp_path):
    with pytest.raises(Exception, match=r"callback Watcher\.on_iteration failed: RuntimeError: my own mistake"):
        train(walk_config(checkpoint_every=100), tmp_path / "r", [Watcher(fail_at=3)])
    latest = Run.open(tmp_path / "r").latest()
    assert latest is not None
    assert latest.step == 3


def test_success_twice_in_a_row_stops_the_run_for_good(tmp_path):
    """A policy that always walks right reaches the goal from every start within the limit."""
    policy = kit.gaussian()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        policy.net.layers[-1].bias.fill_(2.0)
        policy.log_std.fill_(-4.0)
    run = Run.create(tmp_path / "start", {}, seed=0, command=[])
    from robotrl.run.policy_checkpoint import policy_tree

    run.save({"policy": policy_tree(policy)}, step=0)
    run.close()
    cfg = walk_config(
        init_from=str(tmp_path / "start"), stop_at_success=0.99, algo=replace(kit.PPO, env_steps=10**6, lr=1e-6)
    )
    train(cfg, tmp_path / "r")
    assert [line["step"] for line in read_scalars(tmp_path / "r" / "scalars.jsonl")] == [1, 2, 3, 4]
    # a run that is done stays done
    before = (tmp_path / "r" / "scalars.jsonl").read_bytes()
    resume(tmp_path / "r")
    assert (tmp_path / "r" / "scalars.jsonl").read_bytes() == before


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path):
    train(walk_config(keep=2), tmp_path / "r")
    run = Run.open(tmp_path / "r")
    best = run.best()
    assert best is not None
    kept = {int(path.name.split("_")[1]) for path in (tmp_path / "r" / "checkpoints").glob("step_*")}
    assert kept == {5, 6, best.step}


def test_evaluation_does_not_change_training(tmp_path):
    ends = []
    for name, every in (("often", 1), ("seldom", 0)):
        train(walk_config(evaluation=EvalCfg(every=every, episodes=8, num_envs=4)), tmp_path / name)
        latest = Run.open(tmp_path / name).latest()
        assert latest is not None
        ends.append(latest.tree)
    assert kit.same(ends[0]["learner"], ends[1]["learner"])
    assert kit.same(ends[0]["rng"], ends[1]["rng"])


def test_two_runs_of_one_config_are_identical_and_seeds_differ(tmp_path):
    ends = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(walk_config(seed=seed, checkpoint_every=100), tmp_path / name)
        latest = Run.open(tmp_path / name).latest()
        assert latest is not None
        ends.append(latest.tree["learner"])
    assert kit.same(ends[0], ends[1])
    assert not kit.same(ends[0]["policy"], ends[2]["policy"])


def test_nan_from_the_sim_stops_the_run_and_the_last_checkpoint_is_intact(tmp_path):
    cfg = walk_config(sim=SimCfg("test/walk", 16, (f"nan_step={16 * 3 + 5}",)))
    with pytest.raises(NumericsError, match="env 0, rollout step 5: reward is nan: expected finite"):
        train(cfg, tmp_path / "r")
    survivor(tmp_path / "r", 3)


def test_an_absurd_learning_rate_stops_the_run_and_the_last_checkpoint_is_intact(tmp_path):
    cfg = walk_config(algo=replace(kit.PPO, env_steps=16 * 16 * 6, critic_lr=1e30, critic_warmup_env_steps=3 * 16 * 16))
    with pytest.raises(
        NumericsError, match=r"iteration 1, minibatch \d+: (loss|grad_norm/critic\.) is (inf|nan) .*: expected finite"
    ):
        train(cfg, tmp_path / "r")
    assert not (tmp_path / "r").exists()
    cfg = walk_config(algo=replace(kit.PPO, env_steps=16 * 16 * 6, lr=1e30, critic_warmup_env_steps=3 * 16 * 16))
    with pytest.raises(
        NumericsError, match=r"iteration 4, minibatch \d+: (loss|grad_norm/policy\.) is (inf|nan) .*: expected"
    ):
        train(cfg, tmp_path / "s")
    survivor(tmp_path / "s", 3)


def survivor(path: Path, step: int) -> None:
    latest = Run.open(path).latest()
    assert latest is not None
    assert latest.step == step
    assert all(torch.isfinite(p).all() for p in load_policy(path, "latest").parameters())


# configs


@pytest.mark.parametrize("name", PRESETS.names())
def test_every_preset_survives_the_way_through_json(name):
    cfg = PRESETS.load(name)()
    # a published recipe changes the policy that it is given, and is none without
    given = replace(cfg, init_from="somewhere") if cfg.init_changes else cfg
    configs.check(given)
    data = json.loads(json.dumps(configs.to_json(given)))
    assert configs.from_json(data, {"algo": type(cfg.algo), "policy": type(cfg.policy)}) == configs.resolved(given)
    assert PRESETS.load(name)() == cfg


def test_a_saved_config_of_another_version_is_refused():
    cfg = config_of("--sim mujoco/peg-insert --sim.reward shaped --algo ppo")
    types = {"algo": type(cfg.algo), "policy": type(cfg.policy)}
    data = configs.to_json(cfg)
    with pytest.raises(ConfigError, match=r"does not fit this version of robotrl: .*wobble"):
        configs.from_json({**data, "algo": {**data["algo"], "wobble": 1}}, types)
    with pytest.raises(ConfigError, match="does not fit this version of robotrl: 'sim'"):
        configs.from_json({key: value for key, value in data.items() if key != "sim"}, types)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed is -1: expected 0 to 2147483647"),
        ({"sim": SimCfg("test/walk", 0)}, "sim.num_envs is 0: expected 1 or more"),
        ({"sim": SimCfg("test/wlk", 4)}, r"sim 'test/wlk' is unknown: did you mean 'test/walk'\?"),
        ({"sim": SimCfg("test/walk", 4, ("limt=3",))}, r"option 'limt' of sim 'test/walk' is unknown: did you mean"),
        ({"sim": SimCfg("test/walk", 4, ("limit",))}, r"sim.options holds 'limit': expected \"name=value\""),
        ({"evaluation": EvalCfg(every=-1)}, "evaluation.every is -1"),
        ({"evaluation": EvalCfg(episodes=-1)}, "evaluation.episodes is -1"),
        ({"evaluation": EvalCfg(episodes=101)}, "evaluation.episodes is 101: expected 100 or less, the size of val"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"keep": 0}, "keep is 0"),
        ({"torch_threads": 0}, "torch_threads is 0"),
        ({"update_threads": 0}, "update_threads is 0"),
        ({"stop_at_success": 0.0}, "stop_at_success is 0.0: expected above 0, at most 1"),
        ({"stop_at_success": 1.5}, "stop_at_success is 1.5"),
    ],
)
def test_bad_configs_are_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        train(walk_config(**changes), tmp_path / "r")


def test_a_run_that_is_refused_before_it_begins_leaves_nothing(tmp_path, capsys):
    path = tmp_path / "r"
    assert main(["train", "peg-insert-reinflow", "--run-dir", str(path), *TINY_RL]) == 2
    assert "init_from is not given: ReinFlow fine-tunes a policy that flows or denoises" in capsys.readouterr().err
    assert not path.exists()


def test_a_run_with_checkpoints_is_never_discarded(tmp_path):
    run = Run.create(tmp_path / "r", {}, seed=0, command=[])
    with run:
        run.save({"x": 1}, step=1)
        with pytest.raises(ConfigError, match="holds checkpoints"):
            run.discard()
    assert Run.open(tmp_path / "r").latest() is not None


def test_a_sim_that_cannot_be_evaluated_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(SIMS._rows, "test/bare", "tests.kits.walk_sim:BareWalk")
    with pytest.raises(CapabilityError, match="sim 'test/bare' lacks HasStateIds"), pytest.warns(UserWarning):
        train(walk_config(sim=SimCfg("test/bare", 4)), tmp_path / "r")


def test_what_a_run_needs_is_asked_for(tmp_path, capsys):
    cases = {
        "--sim mujoco/peg-insert --algo bc": "dataset is not given",
        "peg-insert-reinflow": "init_from is not given",
    }
    for name, message in cases.items():
        assert main(["train", *name.split(), "--run-dir", str(tmp_path / "run")]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(DataError, match="does not exist"):
        train(walk_config(init_from=str(tmp_path / "nowhere")), tmp_path / "r")


def test_a_config_class_that_is_no_config_is_never_called(tmp_path):
    """A run's directory may come from elsewhere; naming a function of the system in it must not run it."""
    train(walk_config(algo=replace(kit.PPO, env_steps=1)), tmp_path / "r")
    text = (tmp_path / "r" / "config.json").read_text()
    for name in ("os:system", "subprocess:Popen", "robotrl.spec:Spec", "nowhere:Cfg", "robotrl.config:"):
        (tmp_path / "r" / "config.json").write_text(text.replace("robotrl.algos.ppo:PpoCfg", name))
        with pytest.raises(ConfigError, match=f"config class '{name}' is"):
            resume(tmp_path / "r", accept_changed_inputs=True)


def test_a_config_class_that_has_moved_is_found_by_its_old_name():
    for old, new in RENAMED.items():
        module, _, name = new.partition(":")
        found = class_named(old)
        assert (found.__module__, found.__qualname__) == (module, name)


def test_the_walk_splits_are_disjoint():
    assert len(set().union(*SPLITS.values())) == sum(map(len, SPLITS.values()))
    assert isinstance(make_sim("test/walk", num_envs=2), Walk)


def test_an_actor_process_logs_the_reward_sources_of_its_sim(tmp_path: Path) -> None:
    algo = replace(off.SAC, env_steps=8 * 4 * 3, warmup=16, num_steps=4)
    rewards = (WeightedReward("alive", 2.0, AliveCfg()), WeightedReward("task", 1.0, TaskRewardCfg()))
    cfg = TrainCfg(SimCfg("mujoco/reach", 8, ("limit_s=0.5",)), algo, off.POLICY, rewards=rewards)
    cfg = replace(cfg, actor=replace(cfg.actor, process=True), evaluation=EvalCfg(0, 2, 2, 0))
    train(cfg, tmp_path / "run")
    rows = read_scalars(tmp_path / "run" / "scalars.jsonl")
    assert len(rows) == 3 and all(row["reward/alive"] == 1.0 and "reward/task" in row for row in rows)
    # 8 envs for 12 steps of 0.05 s: each ended an episode
    assert any("sim_return" in row for row in rows)
