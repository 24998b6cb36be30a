"""Synthesis with the state of the vehicle: weaving, and the sim's own reward where it is negative."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.registry import make_sim
from robotrl.rewards.source import SimTransition
from robotrl.rewards.vlm.synthesis import RecentOffsets, Shape, SynthesisCfg, synthesis_of
from robotrl.spec import VecSim
from robotrl.spec.vehicle import HasVehicleObs


def drive(num_envs: int) -> Any:
    return make_sim("bev/drive", num_envs=num_envs, seed=0, agents=4, obs="vector", threads=1)


def transition(sim: VecSim, offset_m: list[float], reward: list[float]) -> SimTransition:
    """A step in which each ego stands straight in its lane, this far from its center."""
    assert isinstance(sim, HasVehicleObs)
    where = sim.vehicle_obs
    names = sim.observation_spec[where.key].names
    row = torch.zeros(len(offset_m), len(names))
    row[:, names.index(where.offset)] = torch.tensor(offset_m) / where.offset_m
    row[:, names.index(where.heading_cos)] = 1.0
    action = torch.zeros(len(offset_m), *sim.action_spec.shape)
    step: Any = sim.step(action)
    return SimTransition({}, action, {where.key: row}, step._replace(reward=torch.tensor(reward)))


def rewards(shape: Shape, notes: Tensor) -> list[float]:
    return shape.reward(torch.zeros(len(notes)), notes).tolist()


def test_the_spread_is_that_of_the_last_steps_of_each_episode() -> None:
    recent = RecentOffsets(3, 2)
    assert recent.spread(torch.tensor([1.0, 0.0])).tolist() == [0.0, 0.0]
    assert recent.spread(torch.tensor([3.0, 0.0])).tolist() == [1.0, 0.0]
    recent.forget(torch.tensor([True, False]))
    # the first env is in its first step again, the second has 0, 0 and 3
    found = recent.spread(torch.tensor([5.0, 3.0])).tolist()
    assert found == pytest.approx([0.0, math.sqrt(2.0)])
    # of the second env 0, 3 and 3 are left
    saved = recent.state()
    assert recent.spread(torch.tensor([6.0, 3.0])).tolist() == pytest.approx([0.5, math.sqrt(2.0)])
    recent.load(saved)
    assert recent.spread(torch.tensor([6.0, 3.0])).tolist() == pytest.approx([0.5, math.sqrt(2.0)])


def test_weaving_costs_what_the_spread_of_the_offset_is() -> None:
    sim = drive(2)
    sim.reset()
    shape = synthesis_of(SynthesisCfg(synthesis="driving", weave_m=0.4, weave_steps=4), sim, "contrast")
    assert shape.width == 5
    # standing where the score wants no speed: 1 times the centering, and no spread yet
    first = shape.notes(transition(sim, [0.0, 0.3], [0.0, 0.0]))
    assert rewards(shape, first) == pytest.approx([1.0, 0.9], abs=1e-5)
    second = shape.notes(transition(sim, [0.0, -0.3], [0.0, 0.0]))
    assert rewards(shape, second) == pytest.approx([1.0, 0.9 * (1.0 - 0.3 / 0.4)], abs=1e-5)
    shape.forget(torch.tensor([False, True]))
    third = shape.notes(transition(sim, [0.0, 0.3], [0.0, 0.0]))
    assert rewards(shape, third) == pytest.approx([1.0, 0.9], abs=1e-5)
    sim.close()


def test_a_negative_reward_of_the_sim_is_kept_where_asked() -> None:
    sim = drive(2)
    sim.reset()
    plain = synthesis_of(SynthesisCfg(synthesis="driving"), sim, "contrast")
    kept = synthesis_of(SynthesisCfg(synthesis="driving", keep_negative=True), sim, "contrast")
    step = transition(sim, [0.3, 0.3], [-10.0, 0.5])
    assert rewards(plain, plain.notes(step)) == pytest.approx([0.9, 0.9], abs=1e-5)
    assert rewards(kept, kept.notes(step)) == pytest.approx([-10.0, 0.9], abs=1e-5)
    sim.close()


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (SynthesisCfg(synthesis="drivng"), r"reward.contrast.synthesis.*drivng.*driving"),  # type: ignore[arg-type]
        (SynthesisCfg(weave_m=0.4), r"reward.contrast.weave_m is 0.4, and reward.contrast.synthesis is 'none'"),
        (SynthesisCfg(synthesis="robot", keep_negative=True), r"reward.contrast.keep_negative is True"),
        (SynthesisCfg(synthesis="driving", weave_m=0.0), r"reward.contrast.weave_m is 0.0"),
        (SynthesisCfg(synthesis="driving", weave_m=0.4, weave_steps=1), r"reward.contrast.weave_steps is 1"),
    ],
)
def test_wrong_settings_are_named(cfg: SynthesisCfg, message: str) -> None:
    sim = drive(1)
    with pytest.raises(ConfigError, match=message):
        synthesis_of(cfg, sim, "contrast")
    sim.close()


def test_settings_that_count_nowhere_leave_the_identity_as_it_was() -> None:
    assert SynthesisCfg(synthesis="driving", weave_steps=7).synthesis_settings == ("driving", 10.0)
    assert SynthesisCfg(synthesis="driving", weave_m=0.4).synthesis_settings == ("driving", 10.0, 0.4, 20)
