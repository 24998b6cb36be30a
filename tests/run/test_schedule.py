"""The schedule of evaluations and checkpoints by hand, and that every preset keeps the iterations that it had."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from robotrl.algos.ppo import PpoCfg
from robotrl.cli.commands.train import config_of
from robotrl.composition import algorithm_cfg, compose, with_algo, with_schedule
from robotrl.config import EvalCfg, SimCfg, TrainCfg, check, in_env_steps
from robotrl.errors import ConfigError
from robotrl.registry import ALGORITHMS, PRESETS
from robotrl.run.rules.schedule import EvalBudget, Progress, is_due, is_evaluated, is_marked
from robotrl.spec import TrainDefaults
from tests.kits import learner_kit as kit
from tests.kits.refusals import raises_naming

SCHEDULES = {
    "drive-dppo": (0, 20),
    "drive-dsrl": (0, 20),
    "drive-ppo": (0, 50),
    "drive-ppo-raster": (0, 50),
    "drive-reinflow": (0, 20),
    "gym-ppo": (5, 10),
    "gym-sac": (250, 250),
    "halfcheetah-ppo": (0, 100),
    "hopper-ppo": (0, 100),
    "peg-insert-dsrl": (8, 8),
    "peg-insert-dsrl-na": (8, 8),
    "peg-insert-fql-online": (4, 10),
    "peg-insert-reinflow": (10, 10),
    "peg-insert-rlpd": (100, 100),
    "pi-rl": (10, 10),
    "pi-rl-noise": (10, 10),
    "quadruped-velocity-ppo": (0, 25),
    "tabletop-reinflow": (10, 5),
    "vla-rl": (10, 10),
}
"""Presets whose budget is in env steps, to the iterations between evaluations and between checkpoints; of those of
version 0.1 they are what they were then."""


def test_a_mark_of_env_steps_is_crossed_once_by_hand():
    # iterations of 30 steps, marks at 50, 100, 150: crossed by the iterations that end at 60, 120, 150
    ends = [Progress(k, 30 * (k - 1), 30 * k) for k in range(1, 7)]
    assert [at.env_steps for at in ends if is_marked(at, None, 50)] == [60, 120, 150]
    # an iteration that crosses several marks is marked once
    assert is_marked(Progress(1, 0, 500), None, 50)
    assert not any(is_marked(at, None, 0) for at in ends)
    assert [at.iteration for at in ends if is_marked(at, 2, None)] == [2, 4, 6]
    assert [k for k in range(1, 31) if is_marked(Progress(k, 0, 0), None, None)] == [10, 20, 30]
    assert not any(is_marked(at, 0, 50) for at in ends), "0 iterations: only at the end, whatever the env steps"


def test_another_number_of_envs_keeps_the_env_steps():
    cfg = PRESETS.load("gym-ppo")()
    for envs, expected in ((16, [5, 10, 15, 20]), (8, [10, 20, 30, 40]), (64, [2, 3, 4, 5])):
        length = cfg.algo.num_steps * envs
        at = (Progress(k, length * (k - 1), length * k) for k in range(1, 50))
        assert [found.iteration for found in at if is_evaluated(cfg, found)][:4] == expected


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_preset_keeps_its_iterations(name):
    cfg = PRESETS.load(name)()
    check(replace(cfg, init_changes=()))
    length = cfg.algo.num_steps * cfg.sim.num_envs
    count = min(2200, -(-cfg.algo.env_steps // length))
    at = [Progress(k, length * (k - 1), length * k) for k in range(1, count + 1)]
    every, saved = SCHEDULES[name]
    assert [p.iteration for p in at if is_evaluated(cfg, p)] == [
        k for k in range(1, count + 1) if every and k % every == 0
    ]
    due = [k for k in range(1, count + 1) if (every and k % every == 0) or k % saved == 0]
    assert [p.iteration for p in at if is_due(cfg, p)] == due


def test_presets_count_env_steps_where_their_budget_does():
    for name in PRESETS.names():
        cfg = PRESETS.load(name)()
        counted = cfg.evaluation.every_env_steps is not None
        assert counted == (name in SCHEDULES), name
        assert counted == (cfg.checkpoint_every_env_steps is not None), name
    with pytest.raises(ConfigError, match="BcCfg counts no env steps"):
        in_env_steps(config_of("--sim mujoco/reach --algo bc"))


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        (
            "gym-ppo",
            {"every": 3},
            r"evaluation.every is 3 iterations beside evaluation.every_env_steps 10240: expected"
            r" evaluation.every_env_steps alone; 3 iterations of 16 envs are 6144",
        ),
        ("gym-ppo", {"every_env_steps": -1}, "evaluation.every_env_steps is -1: expected 0 or more"),
        ("gym-ppo", {"max_share": 0.0}, "evaluation.max_share is 0.0: expected above 0, at most 1"),
        (
            "--sim mujoco/reach --algo bc",
            {"every_env_steps": 100},
            "evaluation.every_env_steps is 100 and BcCfg steps no sim: expected"
            " evaluation.every, in iterations of 100 updates",
        ),
    ],
)
def test_schedules_that_cannot_be(preset, changes, message):
    cfg = config_of(preset)
    with pytest.raises(ConfigError, match=message):
        check(replace(cfg, evaluation=replace(cfg.evaluation, **changes)))


def test_a_composed_config_counts_env_steps_where_its_budget_does():
    ppo, cloned, offline = (with_schedule(compose("mujoco/reach", name)) for name in ("ppo", "bc", "iql"))
    assert ppo.algo.env_steps == 1_000_000
    assert (ppo.evaluation.every_env_steps, ppo.checkpoint_every_env_steps) == (100_000, 100_000)
    # after the flags, of which one may set another budget or schedule
    shorter = config_of("--sim mujoco/reach --algo ppo --algo.env-steps 5000 --evaluation.every 3")
    assert (shorter.evaluation.every, shorter.evaluation.every_env_steps) == (3, None)
    assert shorter.checkpoint_every_env_steps == 500
    for cfg in (cloned, offline):
        assert (cfg.evaluation.every_env_steps, cfg.checkpoint_every_env_steps) == (None, None)
    # offline in iterations of updates, then in env steps
    online = config_of("--sim mujoco/reach --algo iql --algo.env-steps 20000")
    assert (online.evaluation.every, online.evaluation.every_env_steps) == (10, 2000)
    assert (online.checkpoint_every, online.checkpoint_every_env_steps) == (10, 2000)
    check(online)


def test_an_offline_part_is_scheduled_by_iterations_and_an_online_part_by_env_steps():
    """Two offline iterations of updates, then iterations of 128 env steps; every 2 iterations and every 256 steps."""
    offline = [Progress(i, 0, 0) for i in (1, 2, 3, 4)]
    assert [is_marked(at, 2, 256) for at in offline] == [False, True, False, True]
    online = [Progress(4 + i, 128 * (i - 1), 128 * i) for i in (1, 2, 3, 4)]
    assert [is_marked(at, 2, 256) for at in online] == [False, True, False, True]
    # twice the envs: the same env steps, half the iterations
    assert [is_marked(Progress(4 + i, 256 * (i - 1), 256 * i), 2, 256) for i in (1, 2)] == [True, True]
    assert not any(is_marked(at, 0, 256) for at in [*offline, *online])
    # without a number of iterations an iteration that takes no env steps reaches no mark
    assert not any(is_marked(at, None, 256) for at in offline)


@pytest.mark.parametrize("name", ["iql", "fql"])
def test_what_learns_offline_and_online_becomes_another_algorithm_and_back(name):
    cfg = config_of(f"--sim mujoco/peg-insert --algo {name} --algo.env-steps 20000")
    for other in ("ppo", "bc", "fql"):
        check(with_algo(cfg, algorithm_cfg(other)))
    ppo = with_algo(cfg, algorithm_cfg("ppo")).evaluation
    assert (ppo.every, ppo.every_env_steps) == (None, cfg.evaluation.every_env_steps)
    back = with_algo(with_algo(cfg, algorithm_cfg("ppo")), algorithm_cfg("iql"))
    assert (back.evaluation.every, back.evaluation.every_env_steps) == (10, cfg.evaluation.every_env_steps)
    check(back)


def test_another_algorithm_is_scheduled_by_what_it_counts():
    sparse, ppo = PRESETS.load("peg-insert-reinflow")(), with_schedule(compose("mujoco/reach", "ppo"))
    assert with_algo(sparse, algorithm_cfg("dppo")).evaluation == sparse.evaluation
    assert with_algo(sparse, algorithm_cfg("dppo")).tuned_on == "success", "it states so itself"
    assert with_algo(sparse, algorithm_cfg("ppo")).tuned_on == "any"
    assert with_algo(sparse, replace(sparse.algo, lr=1e-5)).tuned_on == "success"
    cloned = with_algo(ppo, algorithm_cfg("bc"))
    check(cloned)
    assert (cloned.evaluation.every_env_steps, cloned.checkpoint_every_env_steps) == (None, None)
    # evaluated only at the end, it stays so
    assert with_algo(PRESETS.load("hopper-ppo")(), algorithm_cfg("bc")).evaluation.every == 0


def test_a_checkpoint_schedule_has_one_unit():
    cfg = PRESETS.load("gym-ppo")()
    with pytest.raises(ConfigError, match="checkpoint_every is 1 iterations beside checkpoint_every_env_steps 20480"):
        check(replace(cfg, checkpoint_every=1))
    with raises_naming(ConfigError, "checkpoint_every_env_steps", 0, 1):
        check(replace(cfg, checkpoint_every_env_steps=0))
    plain = TrainCfg(SimCfg("gym/Pendulum-v1"), kit.PPO, kit.GAUSSIAN, evaluation=EvalCfg(every=2))
    check(plain)


def test_the_bound_on_evaluations_by_hand():
    budget = EvalBudget(0.5)
    assert budget.allows(100), "the first"
    budget.env_steps += 100
    assert budget.allows(100), "100 of 200 is a share of 0.5"
    budget.env_steps += 100
    with pytest.warns(UserWarning, match=r"evaluations took 200 env steps beside 150 of training, a share of 0\.57"):
        assert not budget.allows(150)
    assert not budget.allows(199), "said once"
    assert budget.allows(200)
    assert budget.allows(0), "an algorithm that steps no sim has no bound"
    assert EvalBudget(1.0, 10**9).allows(1)


@dataclass(frozen=True)
class MisspeltCfg(PpoCfg):
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_env": 8})


def test_a_default_that_no_training_has_is_refused(monkeypatch):
    """Fields of algorithms and policies may be lacking, those of every training may not."""
    monkeypatch.setitem(ALGORITHMS._rows, "misspelt", f"{__name__}:MisspeltCfg")
    with pytest.raises(ConfigError, match="train_defaults 'num_env' is unknown: did you mean 'num_envs'"):
        compose("mujoco/reach", "misspelt")
