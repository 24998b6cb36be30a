"""Sweep files: what they mean, draws, and mistakes by name."""

from __future__ import annotations

import pytest

from robotrl.errors import ConfigError, DataError
from robotrl.sweeps.file import parsed, read_sweep_file
from robotrl.sweeps.search import distribution, settings
from tests.kits.refusals import raises_naming

TOML = """
seeds = [3, 5]
samples = 2

[train]
preset = "gym-ppo"
sim.num_envs = 8

[vary]
"algo.epochs" = [2, 4]
algo.lr = {log_uniform = [1e-4, 1e-2]}

[halving]
env_steps = [1000, 3000]
eta = 2
"""


def test_both_languages_say_the_same(tmp_path):
    (tmp_path / "a.toml").write_text(TOML)
    content = {
        "seeds": [3, 5],
        "samples": 2,
        "train": {"preset": "gym-ppo", "sim": {"num_envs": 8}},
        "vary": {"algo": {"epochs": [2, 4]}, "algo.lr": {"log_uniform": [1e-4, 1e-2]}},
        "halving": {"env_steps": [1000, 3000], "eta": 2},
    }
    (tmp_path / "b.py").write_text(f"def sweep():\n    return {content!r}\n")
    (tmp_path / "c.py").write_text(f"sweep = {content!r}\n")
    first, *others = (read_sweep_file(tmp_path / name) for name in ("a.toml", "b.py", "c.py"))
    assert others == [first, first]
    assert first.train == {"preset": "gym-ppo", "sim.num_envs": 8} and first.seeds == (3, 5)
    found = first.settings()
    # each of two draws at each of two points of the grid
    assert [one["algo.epochs"] for one in found] == [2, 4, 2, 4]
    assert found[0]["algo.lr"] == found[1]["algo.lr"] != found[2]["algo.lr"]


def test_draws_lie_in_their_ranges_and_more_of_them_begin_alike():
    kinds = {
        "a": distribution("a", "uniform", [-1, 2]),
        "b": distribution("b", "log_uniform", [1e-4, 1.0]),
        "c": distribution("c", "integer", [1, 3]),
        "d": distribution("d", "choice", ["x", "y"]),
    }
    many = settings({}, kinds, 400, 0)
    assert many[:50] == settings({}, kinds, 50, 0) and many[:50] != settings({}, kinds, 50, 1)
    assert {one["c"] for one in many} == {1, 2, 3} and {one["d"] for one in many} == {"x", "y"}
    assert all(-1 <= one["a"] <= 2 and 1e-4 <= one["b"] <= 1 for one in many)
    # half of the log-uniform draws lie below the middle of the exponents
    assert 150 < sum(one["b"] < 1e-2 for one in many) < 250
    assert 150 < sum(one["a"] < 0.5 for one in many) < 250
    # a further field leaves the others' draws as they are
    alone = settings({}, {"a": kinds["a"]}, 20, 0)
    assert [one["a"] for one in alone] == [one["a"] for one in many[:20]]
    assert all(float(f"{one['b']:.4g}") == one["b"] for one in many)


def test_equal_draws_are_drawn_again_and_too_many_are_refused():
    two = {"c": distribution("c", "integer", [1, 2])}
    assert sorted(one["c"] for one in settings({}, two, 2, 0)) == [1, 2]
    with raises_naming(ConfigError, "samples", 3, 2):
        settings({}, two, 3, 0)


GRID = {"train": {"preset": "gym-ppo"}, "vary": {"algo.lr": [1, 2]}}


@pytest.mark.parametrize(
    ("change", "named", "nearest"),
    [
        ({"seedz": 3}, ("sweep key", "seedz"), "seeds"),
        ({"seeds": 0}, ("seeds", 0), None),
        ({"seeds": [1, 1]}, ("seeds", 1, 2), None),
        ({"seeds": [-1]}, ("seeds", -1), None),
        ({"seeds": "many"}, ("seeds", "many"), None),
        ({"vary": {}}, ("vary", "empty"), None),
        ({"vary": {"algo.lr": []}}, ("vary.algo.lr", "empty"), None),
        ({"vary": {"algo.lr": 3}}, ("vary.algo.lr", 3), None),
        ({"vary": {"algo.lr": [1, 1]}}, ("vary.algo.lr", 1, 2), None),
        ({"vary": {"preset": ["a"]}}, ("preset", "train", "vary"), None),
        ({"vary": {"seed": [0, 1]}}, ("vary.seed", "seeds"), None),
        ({"vary": {"logger": ["wandb"]}}, ("vary.logger", "train"), None),
        ({"train": {"run_dir": "x"}}, ("train.run_dir", "--out"), None),
        ({"vary": {"algo.lr": {"log_unform": [1, 2]}}}, ("vary.algo.lr", "log_unform"), "log_uniform"),
        ({"vary": {"algo.lr": {"uniform": [1, 2], "choice": [1]}}}, ("vary.algo.lr", "uniform", "choice"), None),
        ({"vary": {"algo.lr": {"uniform": [2, 1]}}, "samples": 1}, ("vary.algo.lr.uniform", "[2, 1]", "low"), None),
        ({"vary": {"algo.lr": {"uniform": [1]}}, "samples": 1}, ("vary.algo.lr.uniform", "[1]"), None),
        ({"vary": {"algo.lr": {"log_uniform": [0, 1]}}, "samples": 1}, ("vary.algo.lr.log_uniform", "[0, 1]"), None),
        ({"vary": {"algo.lr": {"integer": [0.5, 1]}}, "samples": 1}, ("vary.algo.lr.integer", "[0.5, 1]"), None),
        ({"vary": {"algo.lr": {"choice": []}}, "samples": 1}, ("vary.algo.lr.choice", "[]"), None),
        ({"vary": {"algo.lr": {"uniform": [1, 2]}}}, ("samples", "None"), None),
        ({"vary": {"algo.lr": {"uniform": [1, 2]}}, "samples": 0}, ("samples", 0), None),
        ({"samples": 3}, ("samples", 3), None),
        ({"draw_seed": -1}, ("draw_seed", -1), None),
        ({"train": 3}, ("train", 3), None),
        ({"train": {"preset": "gym-ppo", "a": object}}, ("train.a",), None),
        ({"train": {"algo.lr": float("nan")}}, ("train.algo.lr", "nan"), None),
        ({"halving": {}}, ("halving", "env_steps", "iterations"), None),
        ({"halving": {"env_steps": [1], "iterations": [1]}}, ("halving", "env_steps", "iterations"), None),
        ({"halving": {"env_step": [1]}}, ("halving key", "env_step"), "env_steps"),
        ({"halving": {"env_steps": []}}, ("halving.env_steps", "[]"), None),
        ({"halving": {"env_steps": [2, 1]}}, ("halving.env_steps", "[2, 1]"), None),
        ({"halving": {"env_steps": [0]}}, ("halving.env_steps", 0), None),
        ({"halving": {"env_steps": [1], "eta": 1}}, ("halving.eta", 1), None),
    ],
)
def test_mistakes_are_named(change, named, nearest):
    with raises_naming(ConfigError, *named, nearest=nearest):
        parsed(GRID | change)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "seeds = ", "is not TOML"),
        ("a.toml", '[train]\nsim = "x"\nsim.num_envs = 3', "is not TOML"),
        ("a.py", "1 / 0", "raised ZeroDivisionError: division by zero"),
        ("a.py", "x = 3", "sweep is None: expected a dict with train and vary"),
        ("a.txt", "", "expected a name that ends in .toml or .py"),
        ("gone.toml", None, "does not exist"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises((ConfigError, DataError)) as caught:
        read_sweep_file(tmp_path / name)
    assert said in str(caught.value) and "\n" not in str(caught.value)
