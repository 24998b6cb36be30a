"""Reward hacking is told once: the rule on series made by hand, its false alarms under noise, and what a run logs."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from robotrl.composition import compose
from robotrl.config import TrainCfg, WeightedReward
from robotrl.registry import make_sim
from robotrl.rewards.rules import AliveCfg
from robotrl.rewards.trust.divergence import BLOCKS, DIVERGES, DivergenceWatch, divergence
from robotrl.rewards.trust.returns import SIM_RETURN, ReturnsSim, RewardLog
from robotrl.sims.wrapper import declared

RISING, FALLING = np.linspace(0.0, 1.0, BLOCKS), np.linspace(0.9, 0.5, BLOCKS)


def config(score: str = "success") -> TrainCfg[object, object]:
    cfg = compose("mujoco/reach", "ppo")
    rewards = (WeightedReward("alive", 2.0, AliveCfg()),)
    return replace(cfg, rewards=rewards, evaluation=replace(cfg.evaluation, score=score))


def test_a_reward_that_rises_while_the_truth_falls() -> None:
    found = divergence(RISING, FALLING, True)
    assert found is not None and found.iterations == BLOCKS
    # quarters of five blocks: 0 to 4 of 19 parts, and 15 to 19
    assert found.reward == pytest.approx((2 / 19, 17 / 19))
    assert found.truth == pytest.approx((0.9 - 0.4 * 2 / 19, 0.9 - 0.4 * 17 / 19))


@pytest.mark.parametrize(
    ("reward", "truth"),
    [
        (RISING, RISING),
        (RISING, np.full(BLOCKS, 0.3)),
        (-RISING, FALLING),
        (np.zeros(BLOCKS), FALLING),
        (RISING, np.linspace(0.9, 0.81, BLOCKS)),
        (RISING[:-1], FALLING[:-1]),
    ],
    ids=["both rise", "truth is level", "both fall", "reward is level", "within the margin", "too early"],
)
def test_none_of_it_is_a_divergence(reward: np.ndarray, truth: np.ndarray) -> None:
    assert divergence(reward, truth, True) is None


def test_slow_divergence_under_noise_is_seen_in_larger_blocks() -> None:
    rng = np.random.default_rng(0)
    n = 16 * BLOCKS
    reward = np.linspace(0, 1, n) + rng.normal(0, 0.5, n)
    truth = np.linspace(0.9, 0.5, n) + rng.normal(0, 0.2, n)
    found = divergence(reward, truth, True)
    assert found is not None and found.iterations == n
    assert divergence(reward[-BLOCKS:], truth[-BLOCKS:], True) is None


def test_noise_raises_no_alarm() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(40):
        reward, truth = rng.normal(size=200), np.clip(0.5 + rng.normal(0, 0.3, 200), 0, 1)
        alarms += any(divergence(reward[:n], truth[:n], True) is not None for n in range(BLOCKS, 201))
    assert alarms <= 1


def test_learning_under_noise_raises_no_alarm() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        truth = np.clip(1 / (1 + np.exp(-np.linspace(-3, 3, 200))) + rng.normal(0, 0.05, 200), 0, 1)
        reward = 5 * truth + rng.normal(0, 0.5, 200)
        assert not any(divergence(reward[:n], truth[:n], True) for n in range(BLOCKS, 201))


def test_returns_have_a_margin_of_a_tenth_of_their_size() -> None:
    assert divergence(RISING, np.linspace(-100, -105, BLOCKS), False) is None
    assert divergence(RISING, np.linspace(-100, -140, BLOCKS), False) is not None
    assert divergence(RISING, np.zeros(BLOCKS), False) is None


def rows(reward: np.ndarray, truth: np.ndarray, name: str = "rollout_success") -> list[dict[str, float]]:
    return [{"rollout_return": float(a), name: float(b)} for a, b in zip(reward, truth, strict=True)]


def test_it_warns_once_and_marks_each_iteration() -> None:
    watch = DivergenceWatch(config())
    told: list[dict[str, float]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for row in rows(np.linspace(0, 1, 25), np.linspace(0.9, 0.3, 25)):
            told.append(watch.look(row))
    assert (
        len(caught) == 1 and "success fell from" in str(caught[0].message) and "20 iterations" in str(caught[0].message)
    )
    assert told[: BLOCKS - 1] == [{}] * (BLOCKS - 1)
    assert told[BLOCKS - 1 :] == [{DIVERGES: 1.0}] * 6


def test_a_resumed_run_goes_on_with_what_it_logged_and_does_not_warn_again() -> None:
    past = rows(RISING, FALLING)
    past[-1][DIVERGES] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DivergenceWatch(config(), past).look({"rollout_return": 1.05, "rollout_success": 0.48}) == {
            DIVERGES: 1.0
        }
    with pytest.warns(UserWarning, match="fell from"):
        DivergenceWatch(config(), past[:-1]).look(past[-1])


def test_a_run_that_is_scored_by_return_is_watched_by_the_sims_own() -> None:
    watch = DivergenceWatch(config("return"))
    with pytest.warns(UserWarning, match="own return fell from"):
        for row in rows(RISING, 100 * FALLING, SIM_RETURN):
            watch.look(row)


def test_iterations_without_an_ended_episode_are_left_out() -> None:
    watch = DivergenceWatch(config())
    for _ in range(2 * BLOCKS):
        assert watch.look({"rollout_return": float("nan"), "rollout_success": float("nan")}) == {}
        assert watch.look({"loss": 1.0}) == {}


def test_without_a_return_the_weighted_means_are_the_reward() -> None:
    watch = DivergenceWatch(config())
    with pytest.warns(UserWarning, match="rose from 0.2105 to 1.789"):  # weight 2, of 2 / 19 and 17 / 19
        for one in rows(RISING, FALLING):
            watch.look({"reward/alive": one["rollout_return"], "rollout_success": one["rollout_success"]})


def test_of_late_scores_the_mean_over_scored_steps_is_the_reward() -> None:
    """The returns of episodes that ended before their scores came say nothing, and neither do steps without one."""
    watch = DivergenceWatch(config())
    with pytest.warns(UserWarning, match="rose from 0.2105 to 1.789"):
        for k, one in enumerate(rows(RISING, FALLING)):
            valid = 0.9 if k % 2 else 0.1
            watch.look(
                {
                    "reward/alive": valid * one["rollout_return"],
                    "reward_valid/alive": valid,
                    "scoring/alive/queue_length": 1.0,
                    "rollout_return": 7.0,
                    "rollout_success": one["rollout_success"],
                }
            )
    assert watch.look({"reward/alive": 0.0, "reward_valid/alive": 0.0, "rollout_success": 0.1}) == {}


def test_runs_without_sources_are_not_watched() -> None:
    watch = DivergenceWatch(compose("mujoco/reach", "ppo"))
    assert [watch.look(row) for row in rows(RISING, FALLING)] == [{}] * BLOCKS


def test_sim_returns_of_real_episodes() -> None:
    log = RewardLog()
    sim = declared(ReturnsSim, raw := make_sim("gym/CartPole-v1", num_envs=3, seed=0))(raw, log)
    try:
        sim.reset(seed=0)
        lengths, running = list[int](), np.zeros(3, np.int64)
        for step_index in range(80):
            step = sim.step(torch.full((3, 1), float(step_index % 3 == 0)))
            running += 1
            over = (step.terminated | step.truncated).numpy()
            lengths += running[over].tolist()
            running[over] = 0
    finally:
        sim.close()
    # CartPole pays 1 a step, so that a return is a length
    assert len(lengths) > 3
    assert log.take() == {SIM_RETURN: pytest.approx(np.mean(lengths))}
    assert log.take() == {}


def test_running_sums_are_part_of_the_exact_state_and_restarts_count() -> None:
    log = RewardLog()
    sim = declared(ReturnsSim, raw := make_sim("mujoco/push", num_envs=2, seed=0, reward="shaped"))(raw, log)
    try:
        sim.reset(seed=0)
        rest = torch.zeros((2, *sim.action_spec.shape))
        gained = sum((sim.step(rest).reward.double().clone() for _ in range(3)), torch.zeros(2, dtype=torch.float64))
        state = sim.get_state()
        np.testing.assert_allclose(state["sim_return/sums"], gained.numpy())
        sim.restart(torch.tensor([1]))
        assert log.take() == {SIM_RETURN: pytest.approx(float(gained[1]))}
        sim.set_state(state)
        np.testing.assert_allclose(sim.own_state()["sums"], gained.numpy())
        del state["sim_return/sums"]  # a run of an earlier version
        sim.set_state(state)
        assert not sim.own_state()["sums"].any()
    finally:
        sim.close()
