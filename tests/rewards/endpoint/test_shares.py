"""Budgets of a run among several processes: all of them together keep to it."""

from __future__ import annotations

from dataclasses import replace

from robotrl.composition import compose
from robotrl.config import WeightedReward
from robotrl.errors import ConfigError
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.shares import share_of_budgets
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.preferences.labelers.served import ServedLabelerCfg
from robotrl.rewards.preferences.preferences import PreferencesCfg
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.training import _refuse_shared_preferences, _with_own_budgets
from tests.kits.refusals import raises_naming

PAID = EndpointCfg(model="m", max_requests=10, max_cost=6.0, prompt_price=1.0)


def test_each_process_has_its_share_however_deep_the_endpoint_lies() -> None:
    asked = PreferencesCfg(labeler=LabelingCfg(by="endpoint", endpoint=ServedLabelerCfg(goal="g", server=PAID)))
    looked = ContrastCfg(model="m", good=("a",), bad=("b",), service=ServiceCfg(max_requests=100))
    cfg = compose("mujoco/reach", "sac")
    algo = replace(cfg.algo, guidance=replace(cfg.algo.guidance, endpoint=PAID))
    rewards = (WeightedReward("preferences", 1.0, asked), WeightedReward("contrast", 2.0, looked))
    found = _with_own_budgets(replace(cfg, algo=algo, rewards=rewards), 3)
    share = replace(PAID, max_requests=3, max_cost=2.0)
    first, second = found.rewards
    assert first.cfg == replace(
        asked, labeler=replace(asked.labeler, endpoint=ServedLabelerCfg(goal="g", server=share))
    )
    assert (second.weight, second.cfg) == (2.0, replace(looked, service=ServiceCfg(max_requests=33)))
    assert found.algo == replace(algo, guidance=replace(algo.guidance, endpoint=share))


def test_one_process_and_what_has_no_budget_stay_as_they_are() -> None:
    assert share_of_budgets(PAID, 1) is PAID
    free = ContrastCfg(model="m", good=("a",), bad=("b",))
    assert share_of_budgets(free, 4) == free


def test_preferences_that_are_learned_on_the_way_are_for_one_process() -> None:
    online = WeightedReward("preferences", 1.0, PreferencesCfg())
    stored = WeightedReward("preferences", 1.0, PreferencesCfg(model="somewhere"))
    cfg = compose("mujoco/reach", "sac")
    _refuse_shared_preferences(replace(cfg, rewards=(online,)), 1)
    _refuse_shared_preferences(replace(cfg, rewards=(stored,)), 2)
    with raises_naming(ConfigError, "reward.preferences.model", "None", "2 processes"):
        _refuse_shared_preferences(replace(cfg, rewards=(online,)), 2)
