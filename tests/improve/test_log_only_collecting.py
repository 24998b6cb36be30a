"""Episodes of a sim in log-only mode: what improve collects, what it learns of success, and the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from robotrl.errors import ConfigError
from robotrl.improve.collecting import collect
from robotrl.improve.rounds import ImproveSettings, improve
from robotrl.improve.target import read_target
from robotrl.registry import METHODS, SIMS
from tests.kits.improve_kit import SIM, SetStepMethod, walker


@pytest.fixture(autouse=True)
def _walk(monkeypatch):
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.improve_kit:WalkOptions")


def budget(episodes: int, **given: float) -> dict[str, object]:
    return {"log_only": {"episodes": episodes, **given}}


def test_the_label_of_a_collected_episode_is_what_was_told(tmp_path: Path) -> None:
    run = walker(tmp_path / "run", 1.0)
    true = collect(run, read_target(run, options=budget(40)), 40, 0, 8).episodes
    told = collect(run, read_target(run, options=budget(40, false_failure_rate=1.0)), 40, 0, 8).episodes
    assert len(true) == len(told) == 40 and len(true[0].actions) < 6
    assert any(one.success for one in true) and not any(one.success for one in told)
    assert [one.start for one in true] == [one.start for one in told] and max(one.start for one in true) < 1000


def test_improve_collects_in_log_only_mode_and_judges_outside_of_it(tmp_path: Path, monkeypatch) -> None:
    method = SetStepMethod(1.0)
    monkeypatch.setattr(METHODS, "load", lambda name: method)
    run = walker(tmp_path / "run", 0.2)
    settings = ImproveSettings(
        run, tmp_path / "out", method="successes", collect_episodes=40, options=budget(40), num_envs=40, starts=60
    )
    state, target = improve(settings)
    assert state.improved and state.last.episodes == 40 and "log_only" not in target.options


def test_a_budget_smaller_than_the_rounds_is_refused_before_the_first(tmp_path: Path) -> None:
    run = walker(tmp_path / "run", 0.2)
    settings = ImproveSettings(
        run, tmp_path / "out", method="successes", rounds=3, collect_episodes=60, options=budget(100)
    )
    with pytest.raises(ConfigError, match=r"log_only\.episodes is 100: expected 180 or more, for 3 rounds"):
        improve(settings)
    with pytest.raises(ConfigError, match="nothing is collected: expected --collect-episodes N"):
        improve(settings._replace(rounds=1, collect_episodes=0, logs=(tmp_path / "a.jsonl",)))
