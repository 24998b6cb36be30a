"""Plans: names, configs that are checked, what a changed file may change, rungs and promotions by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from robotrl.cli.commands.train import parse_config, split_names
from robotrl.config import TrainCfg
from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.run.directory import Run
from robotrl.sweeps.arguments import of_training, session_arguments, train_arguments
from robotrl.sweeps.execution import is_done
from robotrl.sweeps.file import parsed
from robotrl.sweeps.plan import CheckedSetting, SweepSetting, checked, continued, load_plan, plan_of, save_plan
from robotrl.sweeps.results import Rung, promoted, ranked, setting_result, table_json, table_lines, verdict
from tests.kits.refusals import raises_naming
from tests.kits.sweep_kit import tiny

RUNG = Rung("env_steps", 200)
CLONING = {"sim": "mujoco/reach", "algo": "bc"}


def make(words: Sequence[str]) -> TrainCfg[Any, Any]:
    return of_training(parse_config(*split_names(words))[0])


def names(content: dict[str, Any]) -> list[str]:
    return [setting.name for setting in plan_of(parsed(content)).settings]


def test_settings_are_named_by_what_differs():
    vary = {"algo.lr": [3e-4, 0.1], "sim.num_envs": [8]}
    assert names(tiny({"algo.lr": [3e-4, 0.1], "algo.epochs": [8]})) == ["lr-0.0003_epochs-8", "lr-0.1_epochs-8"]
    assert names({"train": {"algo": "ppo"}, "vary": vary | {"sim": ["gym/CartPole-v1"]}})[0] == (
        "lr-0.0003_num_envs-8_sim-gym-CartPole-v1"
    )
    # fields with the same last name are told apart, and so are names that a file system would mix up
    both = {"policy.hidden": [[64, 64]], "algo.hidden": [[32]]}
    assert names(tiny(both)) == ["policy.hidden-64+64_algo.hidden-32"]
    assert names(tiny({"x": ["a", "A", "a/", None]})) == ["x-a", "x-A-2", "x-a-", "x-None"]
    assert len(names(tiny({"x": ["y" * 300]}))[0]) == 100


def test_arguments_are_those_that_a_user_types():
    fields = {
        "algo.lr": 1e-05,
        "sim": "mujoco/reach",
        "algo": "ppo",
        "reward": ["task", "alive"],
        "reward.alive.weight": -0.5,
        "policy.hidden": [32, 32],
        "algo.normalize_obs": False,
        "algo.normalize_reward": False,
        "init_from": None,
        "logger": "wandb",
    }
    words = train_arguments(fields, make)
    expected = (
        "--sim mujoco/reach --algo ppo --reward task alive --algo.lr 1e-05 --reward.alive.weight=-0.5"
        " --policy.hidden 32 32 --algo.no-normalize-obs --init-from None"
    )
    assert " ".join(words) == expected
    config = make(words)
    assert (config.algo.lr, config.algo.normalize_obs, config.policy.hidden) == (1e-05, False, (32, 32))
    assert config.rewards[1].weight == -0.5
    assert session_arguments(fields) == ("--logger", "wandb")


def checked_of(content: dict[str, Any]) -> list[CheckedSetting]:
    return checked(plan_of(parsed(content)), make)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tiny({"algo.lrr": [1.0]}), "with algo.lrr 1.0: unknown option --algo.lrr: did you mean --algo.lr?"),
        (tiny({"algo.lr": [1e-3, -1.0]}), "with algo.lr -1.0: algo.lr is -1.0: expected above 0"),
        (tiny({"algo.lr": ["fast"]}), "with algo.lr fast: --algo.lr is 'fast': expected a number"),
        (tiny({"evaluation.max_share": [2.0]}), "evaluation.max_share is 2.0: expected above 0, at most 1"),
        (tiny({"algo": ["ppo"], "algo.lr": [1.0]}) | {"train": {"sim": "mujoco/rech"}}, "did you mean 'mujoco/reach'?"),
        (tiny({"algo.fast": [True]}), "unknown option --algo.fast"),
        ({"train": {}, "vary": {"algo.lr": [1]}}, "missing: a preset, or --sim NAME and --algo NAME"),
        (
            tiny({"algo.lr": [1e-3]}, halving={"env_steps": [512]}),
            "halving.env_steps ends at 512 and algo.env_steps is 512: expected rungs below the budget",
        ),
        (
            tiny({"algo.lr": [1e-3]}, halving={"iterations": [16]}),
            "halving.iterations ends at 16 and algo.env_steps is 512: expected rungs below the budget",
        ),
        (
            tiny({"algo.lr": [1e-3]}, halving={"env_steps": [40]}),
            "halving.env_steps begins at 40 and the first evaluation comes after 128 env steps",
        ),
        (
            {
                "train": {"sim": "mujoco/reach", "algo": "bc"},
                "vary": {"algo.lr": [1e-3]},
                "halving": {"env_steps": [9]},
            },
            "halving.env_steps is [9] and BcCfg counts no env steps: expected halving.iterations",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_runs(content, said):
    with pytest.raises(RobotrlError) as caught:
        checked_of(content)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_plan_is_read_back_as_it_was_stored(tmp_path):
    content = tiny({"algo.lr": {"log_uniform": [1e-4, 1e-2]}, "algo.epochs": [2, 4]}, samples=2, seeds=[3])
    plan = plan_of(parsed(content | {"halving": {"env_steps": [64], "eta": 2}}))
    assert load_plan(tmp_path) is None
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan and len(plan.paths(tmp_path)) == 4
    stored = json.loads((tmp_path / "sweep.json").read_text())
    for key in ("halving", "train", "settings", "seeds", "file"):
        (tmp_path / "sweep.json").write_text(json.dumps({name: x for name, x in stored.items() if name != key}))
        with raises_naming(DataError, "sweep plan", str(tmp_path / "sweep.json"), f"lacks '{key}'") as error:
            load_plan(tmp_path)
        assert "KeyError" not in str(error.value)
    for key, value in (("halving", {"eta": 2}), ("halving", 3), ("seeds", "x"), ("settings", [{}]), ("train", 1)):
        (tmp_path / "sweep.json").write_text(json.dumps(stored | {key: value}))
        with raises_naming(DataError, "sweep plan", "expected"):
            load_plan(tmp_path)
    for damage in ("{}", '{"schema_version": 1}', '{"schema_version": 9}'):
        (tmp_path / "sweep.json").write_text(damage)
        with raises_naming(DataError, "sweep plan"):
            load_plan(tmp_path)


def test_a_changed_file_is_refused_by_the_field_and_extended_on_request():
    content = tiny({"algo.lr": [1e-3, 1e-2]}, seeds=2)
    stored = plan_of(parsed(content))
    assert continued(stored, parsed(content), extend=False) is stored
    other = parsed(tiny({"algo.lr": [1e-3, 1e-2]}, {"algo.gamma": 0.9}, seeds=2))
    for extend in (False, True):
        with raises_naming(ConfigError, "train.algo.gamma", 0.9, "not given"):
            continued(stored, other, extend)
    more = parsed(tiny({"algo.lr": [1e-4, 1e-3, 1e-2]}, seeds=3))
    with raises_naming(ConfigError, "vary.algo.lr", "[0.0001, 0.001, 0.01]", "[0.001, 0.01]", "--extend"):
        continued(stored, more, extend=False)
    extended = continued(stored, more, extend=True)
    assert [setting.name for setting in extended.settings] == ["lr-0.001", "lr-0.01", "lr-0.0001"]
    assert extended.seeds == (0, 1, 2) and continued(extended, more, extend=False) is extended
    with raises_naming(ConfigError, "FILE", "lr-0.01"):
        continued(stored, parsed(tiny({"algo.lr": [1e-3]}, seeds=2)), extend=True)
    with raises_naming(ConfigError, "seeds", 1):
        continued(stored, parsed(tiny({"algo.lr": [1e-3, 1e-2]}, seeds=1)), extend=True)
    halved = plan_of(parsed(content | {"halving": {"env_steps": [64]}}))
    with raises_naming(ConfigError, "seeds", 3, 2):
        continued(halved, parsed(content | {"halving": {"env_steps": [64]}, "seeds": 3}), extend=True)


def test_more_samples_keep_the_drawn_settings():
    drawn = {"algo.lr": {"uniform": [0, 1]}}
    stored = plan_of(parsed(tiny(drawn, samples=2, seeds=1)))
    extended = continued(stored, parsed(tiny(drawn, samples=4, seeds=1)), extend=True)
    assert extended.settings[:2] == stored.settings and len(extended.settings) == 4


# results


def trained(path: Path, returns: Sequence[float], total: int | None = None, successes: Sequence[float] = ()) -> None:
    """A run that evaluated after every 100 env steps; it has finished if it did its whole number of iterations."""
    rates = successes or [0.5] * len(returns)
    with Run.create(path, {}, seed=0, command=[]) as run:
        run.begin_session(len(returns) if total is None else total, 0)
        for step, (value, rate) in enumerate(zip(returns, rates, strict=True), 1):
            run.log(step, {"env_steps": 100 * step, "eval_return": value, "eval_success": rate})
            run.save({}, step=step)
        if total is not None and total > len(returns):
            run.request_stop("paused")


@pytest.fixture(scope="module")
def config() -> TrainCfg[Any, Any]:
    (one,) = checked_of(tiny({"algo.lr": [1e-3]}))
    return one.config


def rows_of(tmp_path: Path, config: TrainCfg[Any, Any], runs: dict[str, list[list[float]]], rung: Rung | None = RUNG):
    """Rows of settings whose runs evaluated to these returns."""
    rows = []
    for name, seeds in runs.items():
        setting = CheckedSetting(SweepSetting(name, {"x": name}), (), config)
        for seed, returns in enumerate(seeds):
            trained(tmp_path / name / f"seed-{seed}", returns, total=4)
        rows.append(setting_result(setting, tmp_path, range(len(seeds)), rung))
    return rows


def test_a_rung_goes_by_the_last_evaluation_before_it_and_one_of_eta_goes_on(tmp_path, config):
    runs = {
        "late": [[1.0, 2.0, 99.0, 99.0], [1.0, 2.0]],  # beyond the rung nothing counts
        "best": [[1.0, 8.0], [1.0, 4.0]],
        "good": [[1.0, 5.0], [1.0, 5.0]],
        "short": [[1.0], [1.0, 90.0]],  # a run that failed on its way
        "equal": [[1.0, 6.0], [1.0, 4.0]],
    }
    rows = rows_of(tmp_path, config, runs)
    means = {row.checked.setting.name: None if row.ret is None else (row.ret.value, row.ret.runs) for row in rows}
    assert means == {"late": (2, 2), "best": (6, 2), "good": (5, 2), "short": (90, 1), "equal": (5, 2)}
    # equal ones go by the other score, then by the order of the plan
    assert [row.checked.setting.name for row in promoted(rows, "return", 2)] == ["best", "good"]
    assert [row.checked.setting.name for row in promoted(rows, "return", 9)] == ["best"]
    assert promoted(rows[3:4], "return", 2) == []


def test_a_run_is_done_at_a_rung_once_it_has_a_checkpoint_there(tmp_path, config):
    (row,) = rows_of(tmp_path, config, {"a": [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]})
    runs = [row.checked.run(tmp_path, seed) for seed in range(3)]
    assert [is_done(run, RUNG) for run in runs] == [False, True, True]
    assert [is_done(run, None) for run in runs] == [False, False, True]
    with Run.create(tmp_path / "a" / "seed-3", {}, seed=0, command=[]) as run:
        run.log(2, {"env_steps": 200})
    assert not is_done(row.checked.run(tmp_path, 3), RUNG), "logged, and not saved"


def test_the_table_by_hand(tmp_path, config):
    whole = {"a": [[0.0] * 3 + [10.0], [0.0] * 3 + [14.0]], "b": [[0.0] * 3 + [1.0], [0.0] * 3 + [3.0]]}
    rows = ranked(rows_of(tmp_path, config, whole, rung=None), "return")
    lines = table_lines(rows, "return")
    # Student's quantile with one degree of freedom is 12.706: 12 +- 12.706 * 2.828 / sqrt(2)
    assert lines[1].split("  ")[0] == "a" and "12.0 [-13.4 to 37.4]" in lines[1] and "2 of 2" in lines[1]
    assert (
        lines[-1] == "best: a, return 12.0 [-13.4 to 37.4]; its interval overlaps 1 of 1 others', so the order is open"
    )
    found = table_json(rows, "return")
    assert found["verdict"] == lines[-1] and found["settings"][0]["return"]["mean"] == 12
    assert found["settings"][0]["runs"][1] == {
        "run": "a/seed-1",
        "seed": 1,
        "iteration": 4,
        "env_steps": 400.0,
        "success": 0.5,
        "return": 14.0,
        "done": True,
    }


def test_the_best_is_said_with_what_the_intervals_say(tmp_path, config):
    apart = {"a": [[0, 0, 0, 10.0], [0, 0, 0, 10.1]], "b": [[0, 0, 0, 1.0], [0, 0, 0, 1.1]]}
    rows = ranked(rows_of(tmp_path / "1", config, apart, rung=None), "return")
    assert verdict(rows, "return").endswith("; its interval lies above all others'")
    single = ranked(rows_of(tmp_path / "2", config, {"a": [[0, 0, 0, 1.0]], "b": [[0, 0, 0, 2.0]]}, None), "return")
    assert verdict(single, "return") == (
        "best: b, return 2; settings with one seed have no interval, so the order is open"
    )
    out = rows_of(tmp_path / "3", config, {"c": [[1.0, 9.0], [1.0, 9.0]]})
    both = ranked([*out, rows[0]], "return")
    assert [row.checked.setting.name for row in both] == ["a", "c"], "trained to its end comes first"
    assert verdict(both, "return").endswith("; no other was trained to the end")
    assert "out at 200 env steps" in table_lines(both, "return")[2]
    assert verdict(out, "return") == "best: open, no setting has a score"
