"""Log-only mode, worked by hand on a walk on a line; then on a sim of MuJoCo, with the sim contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import Turn, run_episodes, run_labeled_episodes
from robotrl.sims.log_only import WITHOUT, log_only
from robotrl.sims.perturbation import perturbed
from robotrl.spec import HasExpert, HasFinalObs, HasState, HasStateIds, HasSuccessLabels, SuccessLabel, why_lacking
from robotrl.spec.sim_options import LogOnlyCfg, PerturbCfg
from robotrl.testing.sims import CHECKS, SimCase
from tests.kits.door_sims import RestartWalk, SeenWalk
from tests.kits.walk_sim import Walk

ON = torch.ones(1, 1)
"""Action by which each start succeeds, after one to three steps."""


class Steady:
    """An actor that moves by the same step always."""

    def __init__(self, num_envs: int, step_m: float) -> None:
        self._action = torch.full((num_envs, 1), step_m)

    def act(self, obs: Any, turn: Turn) -> torch.Tensor:
        return self._action


def test_the_budget_ends_with_an_error_that_names_it() -> None:
    sim = log_only(Walk(1), LogOnlyCfg(2), 0)
    sim.reset(seed=0)
    ended = 0
    while ended < 2:
        assert sim.episodes_left == 2 - ended
        ended += len(sim.step(ON).final_ids)
    text = r"log_only\.episodes is 2, and all of them are used up: expected a larger budget"
    for call in (lambda: sim.step(ON), sim.reset):
        with pytest.raises(CapabilityError, match=text):
            call()


def test_an_episode_that_is_given_up_counts_and_has_no_outcome() -> None:
    sim = log_only(Walk(2, limit=4), LogOnlyCfg(4), 0)
    sim.reset(seed=0)
    sim.reset()  # nothing has begun yet
    assert sim.episodes_left == 4
    sim.step(torch.zeros(2, 1))
    sim.reset()
    assert sim.episodes_left == 2
    for _ in range(4):
        sim.step(torch.zeros(2, 1))
    assert sim.take_success_labels() == [SuccessLabel(2, False), SuccessLabel(3, False)]


def test_success_is_told_late_and_the_rest_when_the_budget_is_used_up() -> None:
    sim = log_only(Walk(1), LogOnlyCfg(4, success_delay_episodes=2), 0)
    sim.reset(seed=0)
    told = []
    while sim.episodes_left:
        step = sim.step(ON)
        assert not step.info["success"].any()
        if len(step.final_ids):
            told.append([outcome.number for outcome in sim.take_success_labels()])
    assert told == [[], [], [0], [1, 2, 3]]


def test_success_is_told_in_the_last_step_and_no_reward_before_it() -> None:
    plain, sim = Walk(1), log_only(Walk(1), LogOnlyCfg(50), 0)
    shown = log_only(Walk(1), LogOnlyCfg(50, shows_reward=True), 0)
    for one in (plain, sim, shown):
        one.reset(seed=0)
    for _ in range(40):
        true, step, open_ = plain.step(ON), sim.step(ON), shown.step(ON)
        assert torch.equal(step.info["success"], true.info["success"] & true.terminated)
        assert not step.reward.any() and torch.equal(open_.reward, true.reward)


def test_a_classifier_that_errs_tells_false_outcomes_the_same_for_the_same_seed() -> None:
    def outcomes(seed: int, **rates: float) -> list[bool]:
        sim = log_only(Walk(50, seed=1), LogOnlyCfg(400, **rates), seed)
        return [episode.success for episode in run_labeled_episodes(Steady(50, 1.0), sim, 400)]

    assert all(outcomes(0)) and not any(outcomes(0, false_failure_rate=1.0))
    some = outcomes(0, false_failure_rate=0.25)
    assert some == outcomes(0, false_failure_rate=0.25) != outcomes(1, false_failure_rate=0.25)
    assert 0.68 < sum(some) / 400 < 0.82
    assert all(outcomes(0, false_success_rate=1.0))


def test_episodes_are_those_of_the_budget_in_the_order_of_their_beginnings() -> None:
    sim = log_only(Walk(3), LogOnlyCfg(7, success_delay_episodes=3), 0)
    episodes = run_labeled_episodes(Steady(3, 0.5), sim, 7, record=True)
    assert len(episodes) == 7 and sim.episodes_left == 0
    for episode in episodes:
        # of starts at -1, -0.5 ... 1 m, all are at 2 m within six steps
        assert episode.success and episode.state_id in range(1000) and not episode.rewards.any()
        assert episode.length == round((2 - float(episode.obs["walk"][0, 0])) / 0.5)
    with pytest.raises(CapabilityError, match="lacks HasSuccessLabels: expected one in log-only mode"):
        run_labeled_episodes(Steady(3, 0.5), Walk(3), 7)


def test_an_episode_that_a_classifier_ends_counts() -> None:
    sim = log_only(RestartWalk(2), LogOnlyCfg(3), 0)
    sim.reset(seed=0)
    sim.step(torch.zeros(2, 1))
    assert set(sim.restart(torch.tensor([1]))) == {"walk"} and sim.episodes_left == 2
    for _ in range(6):
        sim.step(torch.zeros(2, 1))
    assert [outcome.number for outcome in sim.take_success_labels()] == [0, 2]


def test_an_episode_outside_of_the_budget_is_told_to_be() -> None:
    sim = log_only(Walk(2, limit=3), LogOnlyCfg(3), 0)
    sim.reset(seed=0)
    inside = [sim.step(torch.zeros(2, 1)).info["in_budget"].tolist() for _ in range(6)]
    assert inside == [[True, True]] * 3 + [[True, False]] * 3 and sim.episodes_left == 0


def test_chosen_starts_are_refused_by_name() -> None:
    sim = log_only(Walk(1), LogOnlyCfg(5), 0)
    why = "in log-only mode nobody chooses where an episode begins"
    with pytest.raises(CapabilityError, match=f"reset option 'state_ids' is given, and {why}"):
        sim.reset(options={"state_ids": [3]})
    sim.reset(options={"stagger": True})
    with pytest.raises(CapabilityError, match=f"lacks HasStateIds: cannot run listed starts: {why}"):
        run_episodes(Steady(1, 1.0), sim, [3])
    assert not isinstance(sim, HasStateIds) and not isinstance(sim, HasState)
    assert isinstance(sim, HasFinalObs) and isinstance(sim, HasSuccessLabels)
    assert all(why_lacking(sim, one.__name__) for one in WITHOUT)


def test_what_a_robot_could_not_measure_is_not_observed() -> None:
    sim = log_only(SeenWalk(1), LogOnlyCfg(5), 0)
    assert set(sim.observation_spec) == set(sim.reset()) == {"walk", "image"}
    while not len((step := sim.step(ON)).final_ids):
        pass
    assert set(step.obs) == set(step.final_obs) == {"walk", "image"}


def test_settings_out_of_range_are_refused() -> None:
    for given, message in (
        ({"episodes": -1}, r"log_only\.episodes is -1"),
        ({"episodes": 3, "false_success_rate": 1.5}, r"log_only\.false_success_rate is 1\.5"),
        ({"success_delay_episodes": 2}, r"log_only\.episodes is 0 beside other settings"),
    ):
        with pytest.raises(ConfigError, match=message):
            log_only(Walk(1), LogOnlyCfg(**given), 0)
    walk = Walk(1)
    assert log_only(walk, LogOnlyCfg(), 0) is walk


def test_a_perturbed_sim_in_log_only_mode_meets_the_perturbations_of_its_starts() -> None:
    plain = perturbed(Walk(2), PerturbCfg(noise={"m": 0.05}), 3)
    sim = log_only(perturbed(Walk(2), PerturbCfg(noise={"m": 0.05}), 3), LogOnlyCfg(50), 3)
    assert torch.equal(plain.reset(seed=3)["walk"], sim.reset(seed=3)["walk"])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sim_in_log_only_mode_keeps_the_contract(check: Any) -> None:
    def make(limit_s: float) -> Any:
        return lambda num_envs, seed: make_sim(
            "mujoco/push", num_envs=num_envs, seed=seed, threads=1, limit_s=limit_s, log_only={"episodes": 100_000}
        )

    assert not isinstance(make(1.0)(1, 0), HasExpert)
    check(SimCase(make(60.0), make(0.5), most_envs=64))
