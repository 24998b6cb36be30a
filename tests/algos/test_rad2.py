"""RAD-2: first ratios, rows by hand, relabeled plans, ablations, a run of its commands, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import robotrl
from robotrl.algos.rad2 import Rad2Cfg, Rad2Learner
from robotrl.cli.main import main
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.learner import Setup
from robotrl.policies.flow import FlowCfg
from robotrl.policies.reranked import RerankedCfg, RerankedPolicy, chosen
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.groups import together
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from robotrl.testing.algorithms import fresh_policy
from robotrl.training import resume, train
from tests.kits import warp_kit
from tests.kits.learner_kit import flow
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk
from tests.training.test_resume import StopAt, assert_same_end

CFG = Rad2Cfg(
    iterations=4,
    buffer=2,
    minibatch=16,
    updates=2,
    lr=1e-3,
    generator_every=1,
    generator_updates=2,
    generator_lr=1e-3,
)
RANKED = RerankedCfg(candidates=4, width=16, rounds=1)
ALONE = replace(RANKED, candidates=1)
FLOW = FlowCfg(horizon=1, denoising_steps=2, hidden=(32,), set_features=8, set_attention=1)
WIDE: dict[str, Any] = {"max_aside_m": 100.0, "max_turned_deg": 180.0, "min_covered": 0.0}
"""No episode leaves its log."""
OPTIONS: dict[str, Any] = {"reward": "sequence", "actions": "trajectory", "hold": 10, "threads": 1}


def sim(**options: Any) -> Any:
    """Clips of 9 s, each plan followed for 1 s."""
    return robotrl.make_sim("bev/warp", num_envs=8, seed=0, **{"log": warp_kit.small_log(None), **OPTIONS, **options})


def planner() -> Any:
    return fresh_policy(FLOW, sim())


def learner(cfg: Rad2Cfg = CFG, ranked: Any = RANKED, **options: Any) -> Rad2Learner:
    torch.manual_seed(0)
    return cfg.build(Setup(lambda: sim(**options), ranked, planner(), None, 0))


def weights(module: torch.nn.Module) -> list[Tensor]:
    return [x.detach().clone() for x in module.parameters()]


def equal(module: torch.nn.Module, before: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))


# choices


def test_the_first_ratio_is_one() -> None:
    made = learner()
    first = made.iterate()
    assert first["ratio_error"] <= 1e-5
    assert first["groups_kept"] > 0
    # the buffer holds choices of the discriminator before its updates
    assert made.iterate()["ratio_error"] > 1e-5


def test_a_decision_is_a_latched_plan_of_ten_control_steps() -> None:
    made = learner()
    found = made._collector.collect(made.decide, made._collector.draw())
    world = sim()
    world.queue_states(found.start.numpy())
    world.reset()
    at = world.core.replays["at"].copy()
    plans = made.policy.to_actions(chosen(found.record["chunks"], found.record["choice"]))
    first = torch.stack([plans[found.episode == k][0, 0] for k in range(8)])
    out = world.step(first)
    going = ~(out.terminated | out.truncated)
    assert going.any()
    assert (world.core.replays["at"] - at)[going.numpy()].tolist() == [10] * int(going.sum())
    # each episode has one record per plan, not per control step
    assert torch.bincount(found.episode, minlength=8).max() <= warp_kit.STEPS // 10 + 1


def test_rows_of_choices_by_hand() -> None:
    """Z-scores of the returns within groups, shared by an episode's decisions; episodes weigh the same."""
    made = learner()
    found = made._collector.collect(made.decide, made._collector.draw())
    returned = found.returned.view(2, 4).double()
    z = ((returned - returned.mean(1, keepdim=True)) / returned.std(1, keepdim=True)).flatten()
    rows = made._choice_rows(found, z.float())
    for k in range(8):
        mine = found.episode == k
        assert torch.allclose(rows["advantage"][mine], z[k].float())
        assert rows["weight"][mine].sum().item() == pytest.approx(len(found.episode) / 8, rel=1e-5)
    assert torch.equal(rows["log_prob"], found.record["log_prob"])
    assert rows["chunks"].shape == (len(found.episode), 4, 1, 8)
    # what was drawn is what was executed
    with torch.no_grad():
        obs = {key: found.obs[key] for key in made.policy.observation_spec}
        again = made.policy.discriminator(obs, rows["chunks"]).log_softmax(1).gather(1, rows["choice"][:, None])
    assert torch.allclose(again[:, 0], rows["log_prob"], atol=1e-5)


def test_what_did_better_than_its_group_becomes_more_probable() -> None:
    made = learner(replace(CFG, updates=30, minibatch=64, train="discriminator", lr=3e-3, target_entropy=0.0))
    made.iterate()
    rows = made._choices.rows()
    with torch.no_grad():
        obs = {key: rows[f"obs/{key}"] for key in made.policy.observation_spec}
        logits = made.policy.discriminator(obs, rows["chunks"])
    gain = logits.log_softmax(1).gather(1, rows["choice"][:, None])[:, 0] - rows["log_prob"]
    better = rows["advantage"] > 0
    assert gain[better].mean() > 0.01 > -0.01 > gain[~better].mean()


@pytest.mark.parametrize("aside_m", [0.4, 2.0])
def test_episodes_that_left_the_log_teach_neither_network(aside_m: float) -> None:
    """Rows hold the decisions of the others alone; groups in which one or none is left are not kept."""
    made = learner(replace(CFG, least_std=0.0), max_aside_m=aside_m)
    found = made._collector.collect(made.decide, made._collector.draw())
    again = learner(replace(CFG, least_std=0.0), max_aside_m=aside_m)
    scalars = again.iterate()
    whole = ~found.cut.view(2, 4)
    assert found.cut.any()
    assert scalars["rollout_cut"] == pytest.approx(1.0 - float(whole.float().mean()))
    returned = found.returned.view(2, 4).double()
    spread = [len(set(returned[k][whole[k]].tolist())) > 1 for k in range(2)]
    assert scalars["groups_kept"] == sum(spread)
    taught = [k for k in range(8) if whole.flatten()[k]]
    assert len(again._plans.rows()["shift"]) == sum(int((found.episode == k).sum()) for k in taught)
    ranked = [k for k in taught if spread[k // 4]]
    rows = again._choices.rows()
    assert len(rows["choice"]) == sum(int((found.episode == k).sum()) for k in ranked)
    # by hand: the z-score among those of the group that are left
    for k in ranked:
        mine = returned[k // 4][whole[k // 4]]
        z = (returned.flatten()[k] - mine.mean()) / mine.std()
        assert torch.isclose(rows["advantage"].double(), z, atol=1e-3).sum() >= (found.episode == k).sum()


def test_groups_of_equal_returns_teach_the_discriminator_nothing() -> None:
    made = learner(replace(CFG, least_std=1e5, train="discriminator"))
    before = weights(made.policy)
    scalars = made.iterate()
    assert scalars["groups_kept"] == 0
    assert scalars["group_std"] > 0
    assert "pg_loss" not in scalars
    assert equal(made.policy, before)


def test_the_buffer_holds_the_last_rollouts() -> None:
    made = learner(**WIDE)
    sizes = [int(made.iterate()["decisions"]) for _ in range(3)]
    assert len(made._plans.rows()["label"]) == sum(sizes[1:])


# plans


def test_plans_are_relabeled_by_the_sims_own_signals() -> None:
    made = learner(replace(CFG, unsafe_ttc_s=4.0))
    found = together([made._collector.collect(made.decide, made._collector.draw()) for _ in range(3)])
    rows = made._plan_rows(found)
    ttc_s, progress = found.record["ttc_s"].tolist(), found.record["progress"].tolist()
    before = found.record["ttc_ahead_s"].tolist()
    expected = list[float]()
    for k in range(len(ttc_s)):
        mine = torch.nonzero(found.episode == found.episode[k])[:, 0].tolist()
        ahead = [ttc_s[j] for j in mine if j >= k][:2]
        safe = min(ahead) >= 4.0 and progress[k] < 0.95
        danger = min([before[j] for j in mine if j >= k][:2]) < 4.0
        expected.append(-1.5 if danger else 0.75 if safe else 0.0)
    assert rows["shift"].tolist() == expected
    assert len(set(expected)) == 3
    plan = made.policy.to_actions(chosen(found.record["chunks"], found.record["choice"])).view(-1, 4, 2)
    label = made.policy.to_actions(rows["label"]).view(-1, 4, 2)
    shift = rows["shift"]
    assert torch.allclose(label[shift == 0], plan[shift == 0], atol=1e-3)

    def travel(points: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(points[:, :1]), points], 1).diff(dim=1).norm(dim=-1).sum(1)

    assert (travel(label) <= travel(plan) + 1e-3)[shift < 0].all()
    moves = (shift < 0) & (travel(plan) > 1.0)
    assert moves.any() and (travel(label) < travel(plan) - 0.1)[moves].all()


def test_signals_are_those_of_the_moment_of_the_decision() -> None:
    world = sim()
    assert world.trajectory_dt_s == 0.5 and sim(actions="controls", hold=1).trajectory_dt_s is None
    world.queue_states(list(world.state_ids("val")[:8]))
    world.reset()
    assert world.progress_ratio().tolist() == [1.0] * 8
    stand = torch.zeros(8, 8)
    for _ in range(2):
        out = world.step(stand)
    going = ~(out.terminated | out.truncated).numpy()
    assert going.any()
    assert np.allclose(world.progress_ratio()[going], out.info["progress_ratio"].numpy()[going])
    assert (world.progress_ratio()[going] < 1).all()


# ablations


@pytest.mark.parametrize(
    ("train", "ranked", "learn"),
    [("both", RANKED, (True, True)), ("discriminator", RANKED, (True, False)), ("generator", ALONE, (False, True))],
)
def test_only_the_parts_that_are_trained_change(train: Any, ranked: Any, learn: tuple[bool, bool]) -> None:
    made = learner(replace(CFG, train=train), ranked)
    parts = made.policy.discriminator, made.policy.base
    before = [weights(part) for part in parts]
    scalars = made.iterate()
    assert [not equal(part, x) for part, x in zip(parts, before, strict=True)] == list(learn)
    assert ("pg_loss" in scalars, "generator_loss" in scalars) == learn


def test_a_trained_policy_goes_on_as_it_is() -> None:
    policy = RANKED.build(planner())
    made = CFG.build(Setup(sim, ALONE, policy, None, 0))
    assert made.policy is policy


# commands


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny planner, cloned from the sim's expert."""
    folder = tmp_path_factory.mktemp("rad2")
    options = [f"--sim.{name}={value}" for name, value in {**OPTIONS, "log": warp_kit.small_log(None)}.items()]
    given = {**OPTIONS, "log": warp_kit.small_log(None)}
    demos = collect_demos("bev/warp", folder / "demos", episodes=4, num_envs=4, sim_options=given, keep="all").path
    argv = ["train", "--sim", "bev/warp", *options, "--algo", "bc", "--policy", "flow", "--dataset", str(demos)]
    argv += ["--algo.updates", "400", "--algo.batch", "64", "--policy.hidden", "32", "--policy.set-features", "8"]
    argv += ["--policy.set-attention", "1", "--policy.horizon", "1", "--run-dir", str(folder / "clone")]
    assert main([*argv, "--evaluation.episodes", "4", "--evaluation.num-envs", "4"]) == 0
    return folder


def test_a_run_from_a_clone_to_a_bundle(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--sim.{name}={value}" for name, value in {**OPTIONS, "log": warp_kit.small_log(None)}.items()]
    run = clone / "rad2"
    argv = ["train", "--sim", "bev/warp", *options, "--sim.num-envs", "8", "--algo", "rad2"]
    argv += ["--policy.candidates", "4", "--policy.width", "16", "--init-from", str(clone / "clone")]
    argv += ["--algo.iterations", "2", "--algo.generator-every", "1", "--algo.generator-updates", "2"]
    argv += ["--algo.updates", "2", "--algo.minibatch", "16", "--run-dir", str(run)]
    assert main([*argv, "--evaluation.episodes", "4", "--evaluation.num-envs", "4"]) == 0
    lines = read_scalars(run / "scalars.jsonl")
    assert lines[0]["ratio_error"] <= 1e-5
    assert [line["env_steps"] for line in lines] == sorted(line["env_steps"] for line in lines)
    assert Run.open(run).latest() is not None
    policy = load_policy(run)
    assert isinstance(policy, RerankedPolicy)
    assert policy.cfg.candidates == 4
    assert policy.control_dt_s == pytest.approx(1.0)
    assert main(["eval", str(run), "--episodes", "4", "--num-envs", "4"]) == 0
    assert "success" in capsys.readouterr().out
    assert main(["view", str(run), "--episodes", "1", "--candidates", "3", "--out", str(clone / "drives.html")]) == 0
    assert main(["export", str(run), "--out", str(clone / "bundle")]) == 0
    assert (clone / "bundle" / "policy.onnx").is_file()


def test_a_planner_that_is_told_to_brake_proposes_shorter_plans(clone: Path) -> None:
    brake = replace(CFG, train="generator", unsafe_ttc_s=50.0, safe_ttc_s=50.0, brake_mps2=2.0, anchors=0.0)
    cfg = replace(brake, generator_every=2, generator_updates=200, minibatch=64)
    made = cfg.build(Setup(lambda: sim(**WIDE), ALONE, load_policy(clone / "clone"), None, 0))
    before = weights(made.policy.base)

    assert "plans_shortened" not in made.iterate()
    assert equal(made.policy.base, before)
    rows = made._plans.rows()
    obs = {key: rows[f"obs/{key}"] for key in made.policy.observation_spec}
    noise = torch.randn((len(rows["label"]), 1, 8), generator=torch.Generator().manual_seed(0))

    def reach() -> float:
        """Mean distance ahead of the last points of plans in the scenes of the first rollout."""
        with torch.no_grad():
            return float(made.policy.deploy(obs, noise).actions[:, 0, 6].mean())

    at_first = reach()
    scalars = made.iterate()
    assert scalars["plans_shortened"] == 1.0
    assert scalars["plans_lengthened"] == 0.0
    for _ in range(4):
        made.iterate()
    # 2 m/s^2 for 2 s are 4 m in each of three rounds, which follow one another's plans
    assert reach() < at_first - 3.0


def test_a_run_that_was_stopped_ends_as_one_that_never_was(clone: Path) -> None:
    options = {**OPTIONS, "log": warp_kit.small_log(None)}
    cfg = TrainCfg(
        SimCfg("bev/warp", 8, tuple(f"{key}={value}" for key, value in options.items())),
        CFG,
        RANKED,
        init_from=str(clone / "clone"),
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0),
        checkpoint_every=1,
    )
    train(cfg, clone / "whole")
    train(cfg, clone / "cut", [StopAt(2)])
    resume(clone / "cut")
    assert_same_end(clone / "whole", clone / "cut")


# refusals


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"train": "discriminators"}, "algo.train", "discriminators"),
        ({"group_size": 1}, "algo.group_size", 1),
        ({"buffer": 0}, "algo.buffer", 0),
        ({"updates": 0}, "algo.updates", 0),
        ({"generator_every": 0}, "algo.generator_every", 0),
        ({"ttc_ahead": -1}, "algo.ttc_ahead", -1),
        ({"lr": 0.0}, "algo.lr", 0.0),
        ({"generator_lr": -1.0}, "algo.generator_lr", -1.0),
        ({"clip_low": 0.0}, "algo.clip_low", 0.0),
        ({"least_std": -0.1}, "algo.least_std", -0.1),
        ({"target_entropy": 1.5}, "algo.target_entropy", 1.5),
        ({"initial_alpha": 0.0}, "algo.initial_alpha", 0.0),
        ({"anchors": 1.0}, "algo.anchors", 1.0),
        ({"brake_mps2": -1.0}, "algo.brake_mps2", -1.0),
        ({"speed_up_mps2": 11.0}, "algo.speed_up_mps2", 11.0),
        ({"unsafe_ttc_s": 5.0}, "algo.unsafe_ttc_s", 5.0),
        ({"group_size": 3}, "algo.group_size", 3),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changes: dict[str, Any], field: str, value: object) -> None:
    with raises_naming(ConfigError, field, value):
        learner(replace(CFG, **changes))


def test_candidates_that_leave_nothing_to_learn_are_refused() -> None:
    with raises_naming(ConfigError, "policy.candidates", 1, 2):
        learner(CFG, ALONE)
    with raises_naming(ConfigError, "policy.candidates", 4, 1, nearest="generator"):
        learner(replace(CFG, train="generator"))


def test_a_run_needs_a_planner() -> None:
    with raises_naming(ConfigError, "init_from", "bc"):
        CFG.build(Setup(sim, RANKED, None, None, 0))
    with raises_naming(CapabilityError, "policy", "FlowCfg", "RerankedCfg"):
        CFG.build(Setup(sim, FLOW, planner(), None, 0))


def test_sims_that_cannot_tell_what_relabeling_needs_are_refused() -> None:
    # steering and acceleration are no trajectory: the discriminator may learn, the generator not
    controls = {"actions": "controls", "hold": 10, **WIDE}
    steers = fresh_policy(FLOW, sim(**controls))
    with raises_naming(CapabilityError, "HasTrajectoryActions", "sim.actions", nearest="trajectory"):
        CFG.build(Setup(lambda: sim(**controls), RANKED, steers, None, 0))
    made = replace(CFG, train="discriminator").build(Setup(lambda: sim(**controls), RANKED, steers, None, 0))
    assert "pg_loss" in made.iterate()

    def drive() -> Any:
        return robotrl.make_sim("bev/drive", num_envs=8, seed=0, actions="trajectory", hold=10, threads=1, limit_s=3.0)

    drives = fresh_policy(FLOW, drive())
    with raises_naming(CapabilityError, "algo.speed_up_mps2", "HasProgressRatio", 0):
        CFG.build(Setup(drive, RANKED, drives, None, 0))
    slow = replace(CFG, speed_up_mps2=0.0, unsafe_ttc_s=6.0, safe_ttc_s=6.0)
    assert "plans_shortened" in slow.build(Setup(drive, RANKED, drives, None, 0)).iterate()
    long = fresh_policy(replace(FLOW, horizon=2), sim())
    with raises_naming(ConfigError, "policy.horizon", 2, 1):
        CFG.build(Setup(sim, RANKED, long, None, 0))
    with raises_naming(CapabilityError, "sim", "Walk", "HasTrajectoryActions"):
        CFG.build(Setup(lambda: Walk(8), replace(RANKED, point_width=1), flow(), None, 0))
