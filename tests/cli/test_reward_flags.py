"""`--reward` and the flags of sources: what they make of a preset's config, and what is refused in one line."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robotrl import config as configs
from robotrl.cli.commands.rewards.flags import RewardFlags
from robotrl.cli.commands.train import config_of, parse_config, split_names
from robotrl.cli.main import main
from robotrl.config import TrainCfg, WeightedReward, check, from_json, resolved, to_json
from robotrl.errors import ConfigError
from robotrl.registry import PRESETS
from robotrl.rewards.progress import ProgressRewardCfg
from robotrl.rewards.rules import ActionRateCfg
from robotrl.rewards.success import SuccessRewardCfg
from robotrl.rewards.task import TaskRewardCfg
from tests.kits.commands import REACH_PPO

PLAIN = config_of(shlex.join(REACH_PPO))


def parsed(*words: str) -> TrainCfg[Any, Any]:
    return parse_config(*split_names([*REACH_PPO, *words]))[0]


def test_without_it_the_reward_is_the_sims() -> None:
    assert parsed() == resolved(PLAIN) and PLAIN.rewards == ()


def test_sources_have_weights_and_typed_settings() -> None:
    given = ["--reward", "task", "progress", "action-rate", "--reward.progress.scale", "0.2", "--seed", "3"]
    found = parsed(*given, "--reward.progress.form=raw", "--reward.action-rate.weight", "0.05")
    assert found.rewards == (
        WeightedReward("task", 1.0, TaskRewardCfg()),
        WeightedReward("progress", 1.0, ProgressRewardCfg(scale=0.2, form="raw")),
        WeightedReward("action-rate", 0.05, ActionRateCfg()),
    )
    assert found.seed == 3
    assert replace(found, rewards=(), seed=0) == resolved(PLAIN)
    assert parsed("--reward=success", "--reward.success.path", "c", "--reward.success.ends").rewards == (
        WeightedReward("success", 1.0, SuccessRewardCfg("c", ends=True)),
    )


def test_a_presets_sources_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(
        PLAIN,
        rewards=(WeightedReward("task", 2.0, TaskRewardCfg()), WeightedReward("progress", 0.5, ProgressRewardCfg(0.3))),
    )
    flags, rest = RewardFlags.split(own, ["--reward.progress.form", "raw"])
    assert flags.names == ("task", "progress") and rest == ["--reward.progress.form", "raw"]
    monkeypatch.setitem(PRESETS._rows, "with-sources", f"{__name__}:with_sources")
    found = parse_config(*split_names(["with-sources", "--reward.progress.form", "raw"]))[0]
    assert found.rewards == (own.rewards[0], WeightedReward("progress", 0.5, ProgressRewardCfg(0.3, "raw")))
    found = parse_config(*split_names(["with-sources", "--reward", "progress", "alive"]))[0]
    assert [(one.name, one.weight) for one in found.rewards] == [("progress", 0.5), ("alive", 1.0)]


def with_sources() -> TrainCfg[Any, Any]:
    rewards = (WeightedReward("task", 2.0, TaskRewardCfg()), WeightedReward("progress", 0.5, ProgressRewardCfg(0.3)))
    return replace(PLAIN, rewards=rewards)


@pytest.mark.parametrize(
    "words, message",
    [
        ("--reward", "--reward is given without a name"),
        ("--reward --seed 1", "--reward is given without a name"),
        ("--reward=", "--reward is given without a name"),
        ("--reward taks", "reward 'taks' is unknown: did you mean 'task'?"),
        ("--reward task task", "--reward task is given 2 times: expected once"),
        ("--reward task --reward alive", "--reward is given 2 times: expected once, with all names"),
        (
            "--reward.progress.scale 1",
            "--reward.progress.scale is given, and reward 'progress' is not picked: expected",
        ),
        ("--reward progress --reward.progress.scael 1", "unknown option --reward.progress.scael: did you mean"),
        ("--reward progress --reward.progress.scale x", "--reward.progress.scale is 'x': expected a number"),
        ("--reward progress --reward.progress.form rwa", "'rwa' is unknown: did you mean 'raw'?"),
        ("--reward success", "missing: --reward.success.path"),
        ("--sim.reward ./dir", "--sim.reward is now --reward success --reward.success.path ./dir"),
        (
            "--sim.reward=a/b --sim.reward-ends",
            "--sim.reward --sim.reward-ends is now --reward success --reward.success.path a/b --reward.success.ends",
        ),
        (
            "--sim.reward_ends",
            "--sim.reward-ends is now --reward success --reward.success.path DIR --reward.success.ends",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *REACH_PPO, *words.split()]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ") and message in said


def test_help_lists_the_sources_and_the_settings_of_those_picked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *REACH_PPO, "--reward", "success", "alive", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--reward NAME [NAME ...]" in said and "--reward.success.path" in said and "--reward.alive.weight" in said
    assert "--reward.progress" not in said


def test_a_config_is_read_back_with_its_sources() -> None:
    cfg = with_sources()
    types = {"algo": type(cfg.algo), "policy": type(cfg.policy)}
    data = to_json(cfg)
    assert data["rewards"][1] == {"name": "progress", "weight": 0.5, "cfg": {"scale": 0.3, "form": "potential"}}
    assert from_json(data, types) == resolved(cfg)
    data["rewards"][1]["cfg"]["scael"] = 1
    with pytest.raises(ConfigError, match=r"does not fit this version of robotrl: .*scael"):
        from_json(data, types)


@pytest.mark.parametrize(
    "rewards, message",
    [
        ((WeightedReward("task", float("nan"), TaskRewardCfg()),), r"reward\.task\.weight is nan: expected a number"),
        ((WeightedReward("a/b", 1.0, TaskRewardCfg()),), "reward 'a/b': expected a name of letters"),
        ((WeightedReward("task", 1.0, TaskRewardCfg()),) * 2, "reward 'task' is given 2 times"),
        (
            (WeightedReward("progress", 1.0, ProgressRewardCfg(scale="x")),),  # pyright: ignore[reportArgumentType]
            r"reward\.progress\.scale is 'x': expected a number",
        ),
    ],
)
def test_bad_sources_are_refused_by_name(rewards: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(replace(PLAIN, rewards=rewards))


@pytest.mark.parametrize(
    "arguments",
    [
        "--sim mujoco/reach --algo bc",
        "--sim mujoco/peg-insert --algo iql",
        "tabletop-vision",
        "tabletop-grpo --algo opd",
        "tabletop-grpo",
    ],
)
def test_what_learns_from_no_reward_refuses_sources(arguments: str, tmp_path: Path) -> None:
    cfg = replace(config_of(arguments), init_from=str(tmp_path))
    with pytest.raises(ConfigError, match=r"rewards are task, and \w+ as it is set learns from no reward of the sim"):
        configs.check(replace(cfg, rewards=(WeightedReward("task", 1.0, TaskRewardCfg()),)))


def test_what_goes_on_online_takes_them() -> None:
    cfg = config_of("--sim mujoco/peg-insert --algo iql")
    algo = replace(cfg.algo, env_steps=100)
    configs.check(replace(cfg, algo=algo, rewards=(WeightedReward("task", 1.0, TaskRewardCfg()),)))
