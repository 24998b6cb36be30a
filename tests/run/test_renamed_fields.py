"""Configs of earlier revisions are read under the names that their fields have now; the command line names them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from robotrl.cli.commands.train import config_of
from robotrl.cli.main import main
from robotrl.composition import compose
from robotrl.config import WeightedReward, from_json, to_json
from robotrl.errors import ConfigError
from robotrl.registry import ALGORITHMS, PRESETS
from robotrl.removed_presets import REMOVED_PRESETS
from robotrl.rewards.success import SuccessRewardCfg
from robotrl.spec.json_fields import (
    RENAMED_FIELDS,
    RENAMED_LATER,
    RENAMED_VALUES,
    REVISION,
    check_settings,
    migrated,
    renamed_field,
)

RENAMED = {section: RENAMED_FIELDS[section] | RENAMED_LATER[section] for section in RENAMED_FIELDS}


def as_stored_before(data: dict[str, Any]) -> dict[str, Any]:
    """A config as revision 2 would have written it."""
    old = {section: {new: name for name, new in names.items()} for section, names in RENAMED.items()}
    out = {old[""].get(name, name): value for name, value in data.items()}
    return {**out, "algo": {old["algo"].get(name, name): value for name, value in out["algo"].items()}, "revision": 2}


@pytest.mark.parametrize("name", PRESETS.names())
def test_a_config_of_revision_2_means_the_same(name):
    cfg = PRESETS.load(name)()
    types = {"algo": type(cfg.algo), "policy": type(cfg.policy)}
    now = json.loads(json.dumps(to_json(cfg)))
    before = as_stored_before(now)
    assert from_json(migrated(before), types) == from_json(now, types)
    assert migrated(before)["revision"] == REVISION
    assert migrated(now) == now


def stored_with_classifier(**sim: Any) -> dict[str, Any]:
    """A config of revision 3, whose sim names its reward."""
    data = json.loads(json.dumps(to_json(config_of("--sim mujoco/peg-insert --sim.reward shaped --algo ppo"))))
    del data["rewards"]
    return {**data, "sim": {**data["sim"], **sim}, "revision": 3}


@pytest.mark.parametrize("ends", [False, True])
def test_the_sims_classifier_is_a_reward_source_now(ends):
    cfg = config_of("--sim mujoco/peg-insert --sim.reward shaped --algo ppo")
    types = {"algo": type(cfg.algo), "policy": type(cfg.policy)}
    found = from_json(migrated(stored_with_classifier(reward="runs/c", reward_ends=ends)), types)
    assert found == replace(cfg, rewards=(WeightedReward("success", 1.0, SuccessRewardCfg("runs/c", ends=ends)),))
    assert from_json(migrated(stored_with_classifier(reward=None, reward_ends=False)), types) == cfg


def test_every_new_name_is_a_field_of_some_config():
    presets = (PRESETS.load(name)() for name in PRESETS.names())
    composed = (compose("mujoco/reach", algo) for algo in ALGORITHMS.names())
    configs = [to_json(cfg) for cfg in (*presets, *composed)]
    for section, names in RENAMED.items():
        known = {field for data in configs for field in (data[section] if section else data)}
        assert set(names.values()) <= known and not set(names) & known


def test_an_old_name_beside_the_new_one_is_refused():
    cfg = PRESETS.load("gym-ppo")()
    both = {**as_stored_before(json.loads(json.dumps(to_json(cfg))))}
    both["algo"]["gae_lambda"] = 0.5
    with pytest.raises(ConfigError, match="lam"):
        from_json(migrated(both), {"algo": type(cfg.algo), "policy": type(cfg.policy)})


def test_a_file_that_is_no_config_is_left_alone():
    for data in ({}, {"sim": 3, "algo": {"lam": 1}}, {"revision": "x", "sim": {}, "algo": {"lam": 1}}):
        assert migrated(data) == data


def test_an_old_flag_is_answered_with_the_new_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for typed, now in (
        ("--algo.lam", "--algo.gae-lambda"),
        ("--algo.steps-per-env", "--algo.num-steps"),
        ("--algo.steps_per_env", "--algo.num-steps"),
        ("--shard", "--fsdp"),
    ):
        assert main(["train", "gym-ppo", "--sim", "gym/CartPole-v1", typed, "1"]) == 2
        assert f"unknown option {typed}: it is now {now};" in capsys.readouterr().err
    assert renamed_field("algo.gamma") is None


CRITIC_ALONE = {
    "drive-dppo": 8,
    "drive-ppo": 0,
    "drive-ppo-raster": 0,
    "drive-reinflow": 8,
    "gym-ppo": 0,
    "halfcheetah-ppo": 0,
    "hopper-ppo": 0,
    "peg-insert-dppo": 2,
    "peg-insert-flow-noise": 2,
    "peg-insert-flow-sde": 2,
    "peg-insert-ppo": 2,
    "peg-insert-reinflow": 2,
    "pi-rl": 2,
    "pi-rl-noise": 2,
    "push-ppo": 2,
    "quadruped-velocity-ppo": 0,
    "reach-ppo": 2,
    "tabletop-flow-sde": 2,
    "tabletop-reinflow": 2,
    "tabletop-vla-rl": 5,
    "vla-rl": 5,
}
"""Iterations that train the critic alone, as presets stated them before they counted env steps."""


def test_presets_warm_their_critic_up_for_as_many_iterations_as_before():
    found = {}
    former = {name: command.removeprefix("robotrl train ") for name, command in REMOVED_PRESETS.items()}
    for name, arguments in {**former, **{name: name for name in PRESETS.names()}}.items():
        cfg = config_of(arguments)
        data = json.loads(json.dumps(to_json(cfg)))
        if (steps := data["algo"].get("critic_warmup_env_steps")) is None:
            continue
        length = cfg.algo.num_steps * cfg.sim.num_envs
        assert steps % length == 0
        found[name] = steps // length
        # revision 4 stated the iterations
        before = {key: value for key, value in data["algo"].items() if key != "critic_warmup_env_steps"}
        stored = {**data, "algo": {**before, "critic_warmup": found[name]}, "revision": 4}
        assert migrated(stored) == data
    assert found == CRITIC_ALONE


def test_a_flag_that_counted_iterations_is_answered_with_the_one_that_counts_env_steps(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "gym-ppo", "--sim", "gym/CartPole-v1", "--algo.critic-warmup", "1"]) == 2
    wanted = "unknown option --algo.critic-warmup: it is now --algo.critic-warmup-env-steps, in env steps"
    assert wanted in capsys.readouterr().err


def test_choices_of_revision_5_are_read_under_their_present_names(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = config_of("tabletop-grpo --algo.progress embedding")
    cfg = replace(cfg, cache="image-features", init_from="clone")
    now = json.loads(json.dumps(to_json(cfg)))
    before = {**now, "cache": "sight", "algo": {**now["algo"], "progress": "sight"}, "revision": 5}
    assert migrated(before) == now and now["algo"]["progress"] == "embedding"
    for section, names in RENAMED_VALUES.items():
        for field, values in names.items():
            assert (now[section] if section else now)[field] in values.values()
    flags = ("--cache", "image-features"), ("--algo.progress", "embedding")
    for flag, new in flags:
        assert main(["train", "tabletop-grpo", flag, "sight"]) == 2
        assert f"{flag} 'sight' is unknown: it is now {new};" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="cache is 'sight': it is now 'image-features', expected"):
        check_settings(replace(cfg, cache="sight"))  # pyright: ignore[reportArgumentType]
