"""Settings of a stored policy that a run changes: those that weights do not depend on, and none in silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.algos.test_grpo as grpo
import tests.policies.vla.test_flow as flows
from robotrl import config as configs
from robotrl.cli.commands.train import parse_config, split_names
from robotrl.errors import ConfigError
from robotrl.memory_estimate.check import announce
from robotrl.run.policy_checkpoint import changed, changed_description, load_policy
from robotrl.training import resume, train
from tests.kits.commands import TABLETOP_DSRL
from tests.kits.refusals import raises_naming


def test_a_run_draws_at_the_temperature_that_it_was_given(tmp_path: Path) -> None:
    clone = grpo.saved(tmp_path / "clone")
    cfg = replace(grpo.run_cfg(clone, iterations=1), init_changes=("temperature=0.5",))
    run = train(cfg, tmp_path / "run")
    assert (load_policy(clone).temperature, load_policy(run).temperature) == (1.0, 0.5)
    # it is in the checkpoint: a run that goes on, or starts from this one, has it
    resume(run)
    assert load_policy(run).cfg.temperature == 0.5
    weights = load_policy(clone).state_dict()
    other = changed(load_policy(clone), {"temperature": 2, "label_bins": 3.0})
    assert all(torch.equal(x, weights[name]) for name, x in other.state_dict().items())
    assert (other.temperature, other.label_bins) == (2, 3.0)


def test_a_setting_that_is_newer_than_the_policy_can_be_changed(tmp_path: Path) -> None:
    old = load_policy(grpo.saved(tmp_path / "clone")).to_json()
    del old["cfg"]["deploy"]
    assert changed_description(old, {"deploy": "median"})["cfg"]["deploy"] == "median"
    with raises_naming(ConfigError, "deploy", 1, "likeliest"):
        changed_description(old, {"deploy": 1})


def test_the_vision_language_model_of_a_stored_policy_is_frozen() -> None:
    policy = flows.policy_on("smolvla")
    other = changed(policy, {"trained": "expert"})
    free = {name for name, x in other.named_parameters() if x.requires_grad}
    assert free and not any(".vlm." in name for name in free)
    assert all(x.requires_grad for x in policy.parameters())
    obs = flows.observed()
    assert torch.equal(other.encode(obs), policy.encode(obs))
    assert changed(policy, {}) is policy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 64}, "holds 'width': expected of TokenVlaPolicy one of temperature, deploy, label_bins; all else"),
        ({"temperatur": 0.5}, "holds 'temperatur': expected of TokenVlaPolicy one of temperature"),
        ({"temperature": "warm"}, "temperature is 'warm': expected the like of 1.0"),
        ({"temperature": True}, "temperature is True: expected the like of 1.0"),
        ({"temperature": -1.0}, "policy.temperature is -1.0"),
    ],
)
def test_what_cannot_be_changed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(grpo.policy_on(grpo.tabletop(1)), changes)


def test_a_config_without_a_stored_policy_changes_none(tmp_path: Path) -> None:
    cfg = replace(grpo.run_cfg(tmp_path), init_from=None, init_changes=("temperature=0.5",))
    with pytest.raises(ConfigError, match=r"init_changes is \('temperature=0.5',\) and init_from is not given"):
        configs.check(cfg)
    with pytest.raises(ConfigError, match=r"init_changes holds 'temperature': expected \"name=value\""):
        train(replace(grpo.run_cfg(grpo.saved(tmp_path / "c")), init_changes=("temperature",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_memory_is_estimated_for_the_changed_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robotrl.memory_estimate.check.SMALL_BYTES", 0)
    clone = grpo.saved(tmp_path / "clone")
    with pytest.raises(ConfigError, match="holds 'trained': expected of TokenVlaPolicy"):
        announce(replace(grpo.run_cfg(clone), init_changes=("trained=expert",)))


def test_settings_of_a_policy_that_would_not_be_built_are_refused(tmp_path: Path) -> None:
    argv = ["--init-from", str(tmp_path), "--policy.temperature", "0.7"]
    with pytest.raises(ConfigError, match=r"\(temperature=0.7\) beside init_from.*: expected --init-changes temp"):
        parse_config(*split_names(["tabletop-grpo", *argv]))
    assert parse_config(*split_names(["tabletop-bc-token", *argv[2:]]))[0].policy.temperature == 0.7
    # a noise actor is built around the policy that is steered
    steered = parse_config(*split_names([*TABLETOP_DSRL, *argv[:2], "--policy.hidden", "32"]))[0]
    assert steered.policy.hidden == (32,)
