"""Starts of training that follow how often their scenarios fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.config import SimCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.rollout.collector import Collector
from robotrl.rollout.curriculum import AHEAD, WINDOW, CurriculumSim, weights, with_curriculum
from robotrl.rollout.groups import GroupCollector
from robotrl.spec import (
    HasExpert,
    HasFinalObs,
    HasInstructions,
    HasPrivileged,
    HasScenarios,
    HasState,
    HasStateIds,
    VecSim,
)
from robotrl.training import resume, train
from tests.kits.walk_sim import SPLITS, Walk
from tests.training.test_resume import StopAt, assert_same_end, ppo_config


class Places(Walk):
    """The walk, its five places to start from being scenarios: a step of 0.25 succeeds from the last two in time."""

    scenarios = ("far-left", "left", "middle", "right", "far-right")

    def scenario_of(self, state_id: int) -> str:
        return self.scenarios[state_id % 5]


STEP = torch.full((8, 1), 0.25)


def curriculum(temperature: float = 0.3, seed: int = 0) -> CurriculumSim:
    return with_curriculum(Places(8), temperature, seed)


def test_weights_by_hand() -> None:
    found = weights(np.array([0.5, 1.0, 0.0]), 0.5)
    assert found == pytest.approx(np.array([1.0, np.exp(-1), np.exp(1)]) / (1 + np.exp(-1) + np.exp(1)))
    assert weights(np.full(4, 0.7), 0.1) == pytest.approx(0.25)


def test_starts_are_drawn_by_the_weights() -> None:
    sim = curriculum()
    sim.success[:] = [0.0, 0.25, 0.5, 0.9, 1.0]
    ids = sim.draw(20_000)
    assert ids.min() >= SPLITS["train"].start and ids.max() < SPLITS["train"].stop
    share = np.bincount(ids % 5, minlength=5) / len(ids)
    assert share == pytest.approx(weights(sim.success, 0.3), abs=0.012)
    # within a scenario evenly
    counts = np.bincount(ids[ids % 5 == 0] // 5)
    assert counts.min() > 0.4 * counts.mean()


def test_success_is_a_running_mean_of_each_scenario() -> None:
    sim = curriculum()
    sim.reset(0)
    ended: list[tuple[int, bool]] = []
    for _ in range(2000):
        out = sim.step(STEP)
        ended += [(int(out.info["state_id"][e]) % 5, bool(out.info["success"][e])) for e in out.final_ids.tolist()]
    expected = np.full(5, 0.5)
    seen = np.zeros(5, int)
    for place, success in ended:
        seen[place] += 1
        expected[place] += (success - expected[place]) / min(seen[place], WINDOW)
    assert sim.episodes.tolist() == seen.tolist()
    assert sim.success == pytest.approx(expected)
    assert sim.success.round(2).tolist() == [0, 0, 0, 1, 1]
    # what fails is started from more often
    late = np.bincount([place for place, _ in ended[-1000:]], minlength=5) / 1000
    assert late == pytest.approx(weights(sim.success, 0.3), abs=0.05)


def test_episodes_that_began_in_their_midst_do_not_count() -> None:
    """They had less time than others."""
    sim = curriculum()
    sim.reset(0, {"stagger": True})
    ended = 0
    first = set[int]()
    for _ in range(60):
        out = sim.step(torch.zeros(8, 1))
        ended += len(out.final_ids)
        first |= set(out.final_ids.tolist())
        assert sim.episodes.sum() == ended - len(first)
    assert len(first) == 8 and ended > 8


def test_what_another_process_found_is_taken_up() -> None:
    """Of process 0's checkpoint the others take the rates, and draw and step by themselves."""
    first, other = curriculum(), curriculum(seed=7)
    collector = GroupCollector(first, 4, 0)
    first.success[:], first.episodes[:] = [0.1, 0.2, 0.3, 0.4, 0.5], 9
    second = GroupCollector(other, 4, 7)
    before = other._draws
    second.follow(collector.state(), 11)
    assert other.success.tolist() == first.success.tolist() and other.episodes.tolist() == [9] * 5
    assert other._draws == before
    third = curriculum(seed=8)
    flat = Collector(third, 1, 0.99)
    flat.follow({"env_steps": 3, "sim": first.get_state()}, 12)
    assert third.success.tolist() == first.success.tolist() and flat.env_steps == 3


def test_it_is_an_ordinary_sim_of_the_same_capabilities() -> None:
    plain = robotrl.make_sim("mujoco/tabletop", num_envs=2, seed=0)
    sim: Any = with_curriculum(plain, 0.3, 0)
    assert isinstance(sim, VecSim)
    for capability in (HasExpert, HasFinalObs, HasInstructions, HasPrivileged, HasScenarios, HasState, HasStateIds):
        assert isinstance(sim, capability), capability
    assert not isinstance(with_curriculum(Places(2), 0.3, 0), HasInstructions)
    assert sim.scenarios == plain.scenarios and sim.vocabulary == plain.vocabulary
    sim.reset(0)
    assert sim.instructions() == plain.instructions()


def test_queued_starts_come_first_all_of_them() -> None:
    sim: Any = curriculum()
    wanted = list(range(1000, 1040))
    sim.reset(0)
    sim.step(STEP)
    sim.queue_states(wanted)
    started: list[int] = []
    while len(started) < 60:
        out = sim.step(STEP)
        started += sim.sim._ids[out.final_ids].tolist()
    assert started[:40] == wanted
    assert all(i < SPLITS["train"].stop for i in started[40:])


def test_a_restored_sim_goes_on_the_same() -> None:
    sim: Any = curriculum()
    other: Any = curriculum(seed=5)
    sim.reset(1)
    for _ in range(37):
        sim.step(STEP)
    other.set_state(sim.get_state())
    for _ in range(20 * AHEAD):
        a, b = sim.step(STEP), other.step(STEP)
        assert torch.equal(a.info["state_id"], b.info["state_id"]) and torch.equal(a.obs["walk"], b.obs["walk"])
    assert sim.success.tolist() == other.success.tolist()


def test_a_state_without_a_curriculum_is_refused() -> None:
    sim: Any = curriculum()
    with pytest.raises(ConfigError, match="no curriculum over the 5 scenarios"):
        sim.set_state(Places(8).get_state())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: with_curriculum(Walk(2), 0.3, 0), CapabilityError, "lacks HasScenarios: a curriculum"),
        (lambda: with_curriculum(Places(2), 0.0, 0), ConfigError, "sim.curriculum is 0.0: expected a number from 0.01"),
        (
            lambda: train(replace(ppo_config(), sim=SimCfg("mujoco/peg-insert", 4, curriculum=-1.0)), "nowhere"),
            ConfigError,
            "sim.curriculum is -1.0",
        ),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_stopped_run_ends_the_same(tmp_path: Path) -> None:
    """Training on a sim that speaks, too: words are observations like others."""
    sim = SimCfg("mujoco/tabletop", 4, ("limit_s=1.0", "families=point,lift"), curriculum=0.3)
    cfg = replace(ppo_config(), sim=sim)
    cfg = replace(cfg, algo=replace(cfg.algo, env_steps=4 * 10 * 12))
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(5)])
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
