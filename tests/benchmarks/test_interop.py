"""The bench of doors: both ways do the same, and what does other work is noticed."""

from __future__ import annotations

import pytest

from benchmarks.interop import remote, sb3, sb3_methods
from benchmarks.kit.figures import Paired
from robotrl.errors import RobotrlError


def test_the_added_time_is_that_of_pairs() -> None:
    load = remote.Load("mujoco/peg-insert", 64, 1)
    measured = Paired({remote.HERE: (100.0, 200.0, 300.0), remote.THERE: (130.0, 210.0, 320.0)})
    found = remote.figures_of(load, measured)
    assert set(found) == {"remote_peg_insert_64_envs_step", "remote_peg_insert_64_envs_added"}
    added = found["remote_peg_insert_64_envs_added"]
    assert (added.value, added.low, added.high) == (20.0, 10.0, 30.0)
    ratio = found["remote_peg_insert_64_envs_step"].ratio
    assert ratio == pytest.approx(300 / 320)


def test_other_work_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = remote.measure(remote.Load("mujoco/reach", 2, 3), 1)
    assert set(found.samples) == {remote.HERE, remote.THERE}
    route = remote._route

    def other(sim: object, actions: object, rewards: list[float]) -> object:
        rewards.append(float(id(sim)))
        return route(sim, actions, rewards)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(remote, "_route", other)
    with pytest.raises(RobotrlError, match="other rewards"):
        remote.measure(remote.Load("mujoco/reach", 2, 3), 1)


def test_the_better_number_of_threads_counts_for_both_ways_of_stable_baselines3() -> None:
    samples = {
        "as_sb3, 2 torch threads": (80.0, 90.0),
        "as_sb3, 1 torch threads": (100.0, 120.0),
        "SubprocVecEnv, 2 torch threads": (50.0, 60.0),
        "SubprocVecEnv, 1 torch threads": (20.0, 30.0),
    }
    (figure,) = sb3.figures_of("mb512", Paired(samples)).values()
    assert figure.value == 110.0 and figure.peer_value == 55.0
    assert figure.ratio == pytest.approx(2.0)


@pytest.mark.parametrize("method", sb3_methods.METHODS)
def test_stable_baselines3_trains_both_ways(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sb3_methods.SETTINGS, "tiny", sb3_methods.Setting(2, 8, 8, 1))
    trainer = sb3_methods.make(method, "tiny")
    assert trainer.run(2) == 32
    trainer.close()
