"""Policies to and from checkpoints: bit for bit, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robotrl.errors import ConfigError, DataError, NumericsError
from robotrl.run.checkpoint import read_checkpoint, write_checkpoint
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import find_checkpoint, load_policy, policy_from_tree, policy_tree
from tests.kits.policy_kit import CFGS, PLAIN, make_policy, observations
from tests.kits.refusals import raises_naming


def stored(tmp_path: Path, name: str = "flow") -> dict[str, Any]:
    """A policy's tree, through real files."""
    path = write_checkpoint(tmp_path / "c", {"policy": policy_tree(make_policy(name))}, step=1, kind="test")
    return read_checkpoint(path).tree["policy"]


@pytest.mark.parametrize("name", CFGS)
@torch.no_grad()
def test_what_is_read_back_acts_the_same_bit_for_bit(tmp_path, name):
    policy = make_policy(name)
    policy.control_dt_s = 0.05
    path = write_checkpoint(tmp_path / "c", {"policy": policy_tree(policy)}, step=1, kind="test")
    loaded = load_policy(path)
    assert type(loaded) is type(policy)
    assert loaded.to_json() == policy.to_json()
    assert loaded.control_dt_s == 0.05
    for mode in ("sample", "mean"):
        obs = observations(33, policy=policy)
        chunks = [p.act(obs, None, torch.Generator().manual_seed(7), mode).chunk for p in (policy, loaded)]
        assert torch.equal(*chunks)


def test_a_tree_holds_copies_of_the_weights():
    policy = make_policy("flow")
    tree = policy_tree(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert not torch.equal(policy_from_tree(tree, "here").net.layers[0].weight, policy.net.layers[0].weight)


def test_missing_weights_are_named(tmp_path):
    tree = stored(tmp_path)
    del tree["weights"]["net.layers.0.bias"]
    with pytest.raises(DataError, match=r"here: the policy lacks weights: net\.layers\.0\.bias$"):
        policy_from_tree(tree, "here")


def test_unknown_weights_are_named(tmp_path):
    tree = stored(tmp_path)
    tree["weights"]["net.extra"] = torch.zeros(1)
    with pytest.raises(DataError, match=r"here: the policy has unknown weights: net\.extra$"):
        policy_from_tree(tree, "here")


def test_misshaped_weights_are_named(tmp_path):
    tree = stored(tmp_path)
    tree["weights"]["net.layers.0.bias"] = torch.zeros(3)
    with pytest.raises(DataError, match=r"'net\.layers\.0\.bias' has shape \(3,\): expected \(32,\)"):
        policy_from_tree(tree, "here")


@pytest.mark.parametrize("name", PLAIN)
def test_altered_weights_change_the_fingerprint(tmp_path, name):
    """Any layer that is off by a hundredth is noticed (the deviation of a Gaussian does not act at deployment)."""
    for weight in policy_tree(make_policy(name))["weights"]:
        tree = stored(tmp_path / weight, name)
        tree["weights"][weight] = tree["weights"][weight] * 1.01 + 1e-3
        if weight == "log_std":
            policy_from_tree(tree, "here")
        else:
            with pytest.raises(DataError, match="here: the policy's fingerprint action differs by"):
                policy_from_tree(tree, "here")


@pytest.mark.parametrize(
    ("side", "number", "field", "column"),
    [("inputs", 0, "scale", 2), ("inputs", 1, "offset", 0), ("outputs", 0, "scale", 1), ("outputs", 1, "high", 0)],
)
def test_altered_normalisation_changes_the_fingerprint(tmp_path, side, number, field, column):
    tree = stored(tmp_path)
    values = list(tree["description"]["transforms"][side][number][field])
    values[column] = values[column] * 1.01 + 0.01 if field != "high" else -1.9
    tree["description"]["transforms"][side][number][field] = values
    with pytest.raises(DataError, match=r"here: the policy's description .* is not the one that was saved"):
        policy_from_tree(tree, "here")
    # as in checkpoints of before
    del tree["description_sha256"]
    with pytest.raises(DataError, match="fingerprint"):
        policy_from_tree(tree, "here")


def test_another_number_of_denoising_steps_changes_the_fingerprint(tmp_path):
    """The weights fit just as well: only what comes out tells."""
    tree = stored(tmp_path)
    tree["description"]["cfg"]["denoising_steps"] = 3
    del tree["description_sha256"]
    with pytest.raises(DataError, match="fingerprint"):
        policy_from_tree(tree, "here")


def test_what_does_not_act_at_deployment_is_noticed_by_its_sum(tmp_path):
    tree = stored(tmp_path)
    tree["description"]["control_dt_s"] = 0.5
    with pytest.raises(DataError, match=r"description .* its SHA-256 is \w{12}: expected \w{12}$"):
        policy_from_tree(tree, "here")
    del tree["description_sha256"]
    assert policy_from_tree(tree, "here").control_dt_s == 0.5


def test_an_altered_fingerprint_is_refused(tmp_path):
    tree = stored(tmp_path)
    tree["fingerprint"]["actions"][2, 1, 0] += 0.01
    with pytest.raises(DataError, match=r"differs by 1\.25e-03 of the action range"):
        policy_from_tree(tree, "here")


def test_a_nan_fingerprint_is_refused(tmp_path):
    tree = stored(tmp_path)
    tree["fingerprint"]["actions"][:] = float("nan")
    with pytest.raises(DataError, match="differs by nan"):
        policy_from_tree(tree, "here")


def test_an_unknown_kind_is_answered_with_the_nearest(tmp_path):
    tree = stored(tmp_path)
    tree["description"]["kind"] = "gausian"
    del tree["description_sha256"]  # as a stranger's checkpoint may come
    with raises_naming(ConfigError, "policy", "gausian", nearest="gaussian"):
        policy_from_tree(tree, "here")


def test_a_description_of_another_version_is_refused(tmp_path):
    tree = stored(tmp_path)
    tree["description"]["cfg"]["wobble"] = 3
    del tree["description_sha256"]
    with pytest.raises(DataError, match=r"here: the policy's description does not fit .*wobble"):
        policy_from_tree(tree, "here")


def test_weights_that_are_not_finite_are_never_stored():
    policy = make_policy("gaussian")
    with torch.no_grad():
        policy.log_std[1, 0] = float("nan")
    with pytest.raises(NumericsError, match="'log_std' is not finite"):
        policy_tree(policy)
    policy = make_policy("flow")
    with torch.no_grad():
        policy.net.layers[0].weight.fill_(3e38)
    with pytest.raises(NumericsError, match="action on a fixed input is not finite"):
        policy_tree(policy)


def test_best_latest_and_nothing(tmp_path):
    run = Run.create(tmp_path / "r", {}, seed=0, command=[])
    with pytest.raises(DataError, match="has no checkpoint yet"):
        load_policy(tmp_path / "r")
    for step, score in ((1, 0.2), (2, 0.9), (3, 0.4)):
        run.save({"policy": policy_tree(make_policy("flow", seed=step))}, step=step, score=score)
    run.close()
    for which, seed in (("best", 2), ("latest", 3)):
        found = load_policy(tmp_path / "r", which)
        assert torch.equal(found.net.layers[0].weight, make_policy("flow", seed=seed).net.layers[0].weight)
    assert find_checkpoint(tmp_path / "r" / "checkpoints" / "step_000000001").step == 1
    write_checkpoint(tmp_path / "other", {"x": 1}, step=1, kind="test")
    with pytest.raises(DataError, match="of kind 'test' holds no policy"):
        load_policy(tmp_path / "other")
