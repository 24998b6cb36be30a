"""The methods `recap` and `rl100`: what they fit, how they judge their critics, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from robotrl.config import SimCfg
from robotrl.errors import CapabilityError
from robotrl.improve.methods.base import FitSettings
from robotrl.improve.methods.recap import METHOD
from robotrl.improve.methods.rl100 import METHOD as RL100
from robotrl.improve.pieces import write_pieces
from robotrl.improve.target import read_target
from robotrl.policies.conditioned import ConditionedClosedFormPolicy
from robotrl.registry import METHODS, SIMS
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy, policy_tree
from tests.kits import learner_kit as kit
from tests.kits import off_policy_kit as off
from tests.kits.improve_kit import SIM, mixed, walker


def test_recap_fits_a_conditioned_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.walk_sim:make")
    assert METHODS.load("recap") is METHOD
    policy = walker(tmp_path / "policy", 0.2)
    data = write_pieces(tmp_path / "data", mixed(20), read_target(policy))
    small = {"algo.value_updates": 20, "algo.updates": 6, "algo.updates_per_iteration": 10, "algo.batch": 16}
    settings = FitSettings(SimCfg(SIM), settings={**small, "algo.engine": "eager"})
    METHOD.check(policy)
    found = METHOD.fit(policy, data, tmp_path / "fit", settings)
    fitted = load_policy(found.policy)
    assert isinstance(fitted, ConditionedClosedFormPolicy)
    assert found.critic is not None and found.critic.episodes == 4 and found.critic.rank is not None
    # the next round goes on from it
    METHOD.check(found.policy)


def test_recap_refuses_what_cannot_be_conditioned(tmp_path: Path) -> None:
    squashed = off.POLICY.build(kit.SPECS, kit.ACTION, kit.flow().transforms)
    with Run.create(tmp_path / "run", {"sim": {"name": SIM, "options": {}}}, seed=0, command=["x"]) as run:
        run.save({"policy": policy_tree(squashed)}, step=1, score=0.0)
    with pytest.raises(CapabilityError, match="cannot be improved: policy SquashedPolicy cannot be conditioned"):
        METHOD.check(tmp_path / "run")


def test_rl100_fits_a_flow_policy_and_says_what_its_critics_believe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.walk_sim:make")
    assert METHODS.load("rl100") is RL100
    flow = kit.flow()
    flow.control_dt_s = 0.1
    with Run.create(tmp_path / "policy", {"sim": {"name": SIM, "options": {}}}, seed=0, command=["x"]) as run:
        run.save({"policy": policy_tree(flow)}, step=1, score=0.0)
    data = write_pieces(tmp_path / "data", mixed(20), read_target(tmp_path / "policy"))
    small = {"algo.critic_updates": 20, "algo.updates": 10, "algo.updates_per_iteration": 10, "algo.batch": 16}
    settings = FitSettings(SimCfg(SIM), settings={**small, "algo.engine": "eager"})
    RL100.check(tmp_path / "policy")
    found = RL100.fit(tmp_path / "policy", data, tmp_path / "fit", settings)
    assert isinstance(load_policy(found.policy), type(flow))
    assert found.critic is not None and found.critic.episodes == 4 and found.critic.gain is not None
    # the next round goes on from it
    RL100.check(found.policy)


def test_rl100_refuses_policies_without_a_chain(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="cannot be improved: policy GaussianPolicy lacks HasChain"):
        RL100.check(walker(tmp_path / "policy", 0.2))
