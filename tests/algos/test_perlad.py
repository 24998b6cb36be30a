"""PerlAD: REINFORCE and the curriculum by hand, drives in scenes, a run of its commands, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.algos.perlad import PerladCfg, PerladLearner, agents_predicted, reinforce_loss
from robotrl.cli.main import main
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.fn.advantage import group_relative
from robotrl.learners.learner import Setup
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.path_speed import PathSpeedCfg, PathSpeedPolicy, at_mode
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.writer import LogWriter
from robotrl.spec.vehicle import CAR
from robotrl.testing.algorithms import fresh_policy
from robotrl.training import resume, train
from tests.kits import warp_kit
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk
from tests.training.test_resume import StopAt, assert_same_end

CFG = PerladCfg(
    imitation_updates=4,
    updates=6,
    updates_per_iteration=2,
    minibatch=8,
    forecaster_updates=2,
    forecaster_minibatch=4,
    predicted=1 / 3,
    every=10,
    agents=4,
    forecaster_hidden=8,
)
POLICY = PathSpeedCfg(hidden=(32, 32), modes=3)
OPTIONS: dict[str, Any] = {"actions": "trajectory", "threads": 1}


def sim(**options: Any) -> Any:
    """Clips of 9 s."""
    return robotrl.make_sim("bev/warp", num_envs=4, seed=0, **{"log": warp_kit.small_log(None), **OPTIONS, **options})


def learner(cfg: PerladCfg = CFG, policy: Any = POLICY, **options: Any) -> PerladLearner:
    return cfg.build(Setup(lambda: sim(**options), policy, None, None, 0))


# losses by hand


def test_the_gradient_of_reinforce_by_hand() -> None:
    """Two classes with probabilities 3/4 and 1/4; both were drawn, the second one was worth more.

    Group-standardized rewards 0 and 2 are -1/sqrt(2) and 1/sqrt(2). The gradient of -A log p with respect to the logits
    is A (p - onehot), here the mean of two.
    """
    logits = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64, requires_grad=True)
    advantage = group_relative(torch.tensor([[0.0, 2.0]], dtype=torch.float64))
    a = 1 / math.sqrt(2)
    assert advantage.tolist()[0] == pytest.approx([-a, a], abs=1e-5)
    loss = reinforce_loss(logits.log_softmax(1), torch.tensor([[0, 1]]), advantage)
    assert loss.item() == pytest.approx(-(-a * math.log(3 / 4) + a * math.log(1 / 4)) / 2, abs=1e-5)
    loss.backward()
    assert logits.grad is not None
    expected = [(-a * (0.75 - 1) + a * (0.75 - 0)) / 2, (-a * (0.25 - 0) + a * (0.25 - 1)) / 2]
    assert logits.grad[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_equal_rewards_teach_nothing() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    advantage = group_relative(torch.full((3, 4), -30.0))
    reinforce_loss(logits.log_softmax(1), torch.tensor([[0, 1, 2, 2]] * 3), advantage).backward()
    assert logits.grad is not None and logits.grad.abs().max() == 0


def test_agents_are_predicted_in_the_last_third() -> None:
    assert [agents_predicted(k, 9, 1 / 3) for k in range(9)] == [False] * 6 + [True] * 3
    assert not any(agents_predicted(k, 9, 0.0) for k in range(9))
    assert all(agents_predicted(k, 9, 1.0) for k in range(9))


def test_parts_of_training_follow_each_other() -> None:
    made = learner()
    assert made.iterations == 5
    rows = [made.iterate() for _ in range(made.iterations)]
    assert [row["updates"] for row in rows] == [2, 4, 6, 8, 10]
    assert ["speed_accuracy" in row for row in rows] == [True, True, False, False, False]
    assert ["forecaster_loss" in row for row in rows] == [True, True, False, False, False]
    assert [row.get("predicted_agents") for row in rows] == [None, None, 0.0, 0.0, 1.0]


def test_without_predicted_agents_there_is_no_forecaster() -> None:
    made = learner(replace(CFG, predicted=0.0))
    assert "forecaster_loss" not in made.iterate()
    assert learner(replace(CFG, updates=0)).iterations == 2


# scenes


def crash_log(path: Path, gap_m: float = 12.0) -> Path:
    """A log of one clip: the ego stands, and a car stands `gap_m` ahead of it, bumper to bumper."""
    steps = warp_kit.steps_of(np.zeros((60, 3)), 0.0)
    steps["speed"] = 4.0
    steps["x"] = 0.4 * np.arange(60)
    agents = np.zeros((60, 1), layout.AGENT)
    agents["kind"], agents["length"], agents["width"] = CAR, 4.7, 1.9
    agents["x"] = steps["x"][:, None] + gap_m + 4.7
    route = np.stack([np.arange(0.0, 120.0), np.zeros(120)], axis=1)
    with LogWriter(path, "tests", 1) as writer:
        writer.add_clip("one", "train", steps, agents, route)
    return path


def test_drives_of_one_scene_by_hand(tmp_path: Path) -> None:
    """Somebody stands 12 m ahead of where the ego drives at 4 m/s: 4 m/s for 2 s is well, 12 m/s is a collision.

    In the log that car keeps its distance; what counts here is that faster drives reach it where it is at their time.
    """
    made = learner(replace(CFG, every=5, agents=1), log=str(crash_log(tmp_path / "log", 3.0)))
    pseudo = made._pseudo
    rows = {name: x[:1] for name, x in pseudo.rows.items()}
    found = pseudo.drive(rows, rows["way"], torch.tensor([[0.0, 4.0, 12.0]]), None)
    assert found.collision.tolist() == [[0.0, 0.0, -30.0]]
    # 8 m at 4 m/s of the way at the limit
    assert found.progress[0, 1].item() == pytest.approx(8.0 / (2.0 * rows["limit_mps"].item()), rel=0.02)
    assert found.total[0].argsort(descending=True).tolist()[0] == 1
    advantage = group_relative(found.total)[0]
    z = (found.total[0] - found.total[0].mean()) / found.total[0].std()
    assert torch.allclose(advantage, z, atol=1e-5)


def test_one_scene_is_overfitted(tmp_path: Path) -> None:
    """With a car 3 m ahead, the fastest speed that does not hit it within 2 s becomes the most probable one."""
    cfg = replace(CFG, every=100, agents=1, imitation_updates=0, updates=150, predicted=0.0, rl_lr=3e-3, minibatch=16)
    cfg = replace(cfg, anchor_coef=0.0)
    made = learner(cfg, log=str(crash_log(tmp_path / "log", 3.0)))
    assert made._pseudo.num_scenes == 1
    rows = made._pseudo.rows
    for _ in range(75):
        made.iterate()
    with torch.no_grad():
        paths = made.policy.paths(made.policy.encode({key: rows[f"obs/{key}"] for key in made.policy.observation_spec}))
        path, turns = at_mode(paths.points, paths.likely), at_mode(paths.turns, paths.likely)
        every = made._pseudo.drive(rows, path, made.policy.classes_mps[None], None).total[0]
        chosen = made.policy.speed_logits(paths.features, turns).argmax(1).item()
    assert every.max() - every[chosen] < 0.05
    assert every.min() < -29.0


def test_forecast_agents_react_where_logged_ones_do_not() -> None:
    made = learner(replace(CFG, agents=4))
    rows = {name: x[:6] for name, x in made._pseudo.rows.items()}
    target = torch.tensor([[0.0, 12.0]]).expand(6, 2)
    wide = {name: x.repeat_interleave(2, dim=0) for name, x in rows.items()}
    ego = torch.zeros(12, 21, 4)
    ego[1::2, :, 0] = torch.linspace(0.0, 24.0, 21)
    forecaster = made._forecaster
    assert forecaster is not None
    with torch.no_grad():
        agents = made._pseudo._forecast(forecaster, rows, wide, ego)
        assert agents.shape == (12, 21, 4, 4)
        cars = (rows["kind"] == CAR)[:, None].expand(-1, 21, -1)
        assert not torch.equal(agents[::2][cars], agents[1::2][cars])
        assert torch.allclose(agents[::2][:, 0], rows["agents"][:, 10])
        assert made._pseudo.drive(rows, rows["way"], target, forecaster).total.isfinite().all()


# a run


def test_a_run_to_a_bundle_and_on_another_sim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    given = {"log": warp_kit.small_log(None), **OPTIONS}
    argv = ["train", "--sim", "bev/warp", *(f"--sim.{name}={value}" for name, value in given.items())]
    argv += [
        "--algo",
        "perlad",
        "--policy.hidden",
        "32",
        "32",
        "--algo.minibatch",
        "8",
        "--algo.imitation-updates",
        "4",
    ]
    argv += ["--algo.updates", "6", "--algo.updates-per-iteration", "2", "--algo.forecaster-updates", "2"]
    argv += ["--algo.forecaster-minibatch", "4", "--evaluation.episodes", "4", "--evaluation.num-envs", "4"]
    assert main([*argv, "--run-dir", str(run)]) == 0
    lines = read_scalars(run / "scalars.jsonl")
    assert lines[-1]["updates"] == 10
    policy = load_policy(run)
    assert isinstance(policy, PathSpeedPolicy)
    assert policy.control_dt_s == pytest.approx(0.5)
    assert main(["eval", str(run), "--episodes", "4", "--num-envs", "4"]) == 0
    drive = ["--sim", "bev/drive", "--sim.actions", "trajectory", "--sim.limit-s", "5"]
    assert main(["eval", str(run), *drive, "--episodes", "4", "--num-envs", "4"]) == 0
    assert "success" in capsys.readouterr().out
    assert main(["export", str(run), "--out", str(tmp_path / "bundle")]) == 0
    assert (tmp_path / "bundle" / "policy.onnx").is_file()


def test_a_run_that_was_stopped_ends_as_one_that_never_was(tmp_path: Path) -> None:
    options = {**OPTIONS, "log": warp_kit.small_log(None)}
    cfg = TrainCfg(
        SimCfg("bev/warp", 4, tuple(f"{key}={value}" for key, value in options.items())),
        CFG,
        POLICY,
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0),
        checkpoint_every=1,
    )
    train(cfg, tmp_path / "whole")
    # once in the part of imitation, where the forecaster learns
    for cut in (1, 4):
        train(cfg, tmp_path / f"cut-{cut}", [StopAt(cut)])
        resume(tmp_path / f"cut-{cut}")
        assert_same_end(tmp_path / "whole", tmp_path / f"cut-{cut}")


# refusals


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"imitation_updates": -1}, "algo.imitation_updates", -1),
        ({"imitation_updates": 0, "updates": 0}, "algo.updates", 0),
        ({"imitation_updates": 0}, "algo.imitation_updates", 0),
        ({"samples": 1}, "algo.samples", 1),
        ({"minibatch": 0}, "algo.minibatch", 0),
        ({"predicted": 1.5}, "algo.predicted", 1.5),
        ({"label_s": 3.0}, "algo.label_s", 3.0),
        ({"horizon_s": 0.0}, "algo.horizon_s", 0.0),
        ({"rl_lr": 0.0}, "algo.rl_lr", 0.0),
        ({"car_price": -1.0}, "algo.car_price", -1.0),
        ({"forecaster_updates": 0}, "algo.forecaster_updates", 0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(changes: dict[str, Any], field: str, value: object) -> None:
    with raises_naming(ConfigError, field, value):
        learner(replace(CFG, **changes))


def test_sims_without_a_log_or_trajectories_are_refused() -> None:
    with raises_naming(CapabilityError, "HasLoggedScenes", "bev/warp"):
        CFG.build(Setup(lambda: Walk(4), POLICY, None, None, 0))
    with raises_naming(CapabilityError, "HasTrajectoryActions", nearest="trajectory"):
        learner(actions="controls")


def test_policies_without_paths_are_refused() -> None:
    with raises_naming(CapabilityError, "GaussianPolicy", "PathSpeedPolicy"):
        given = fresh_policy(GaussianCfg(horizon=1, hidden=(8,)), sim())
        CFG.build(Setup(sim, POLICY, given, None, 0))
    with raises_naming(CapabilityError, "GaussianCfg", "path-speed"):
        learner(policy=GaussianCfg(horizon=1, hidden=(8,)))
    with raises_naming(ConfigError, "policy.point_dt_s", 0.4, 0.5):
        learner(policy=replace(POLICY, point_dt_s=0.4))


def test_a_horizon_longer_than_the_log_is_refused() -> None:
    with raises_naming(DataError, "horizon", 90, 91, 80):
        learner(replace(CFG, horizon_s=8.0))
