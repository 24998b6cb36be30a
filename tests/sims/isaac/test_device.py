"""The adapter on another device than the CPU: nothing crosses over, and the numbers are the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from robotrl.errors import NumericsError
from robotrl.sims.isaac.wrap import sim_of
from robotrl.spec import Step
from robotrl.testing.sims import copied, leaves
from tests.kits import twin_device
from tests.kits.isaac_standins import CountingLab

ENDS = {2: [1], 3: [0, 1], 7: [0]}


def played(device: Any, **kwargs: Any) -> tuple[list[Step], dict[str, float], list[torch.Tensor]]:
    env = CountingLab(ENDS, limit=4, device=device, **kwargs)
    sim: Any = sim_of(env)
    sim.reset(seed=0, options={"stagger": True})
    actions = torch.linspace(-2, 2, 20).reshape(10, 2, 1).to(device)
    steps = [copied(sim.step(action)) for action in actions]
    return steps, sim.take_episode_log(), env.actions


@pytest.mark.filterwarnings("ignore:.*outside their bounds")
@pytest.mark.parametrize("kwargs", [{}, {"final_obs": False}, {"resets": False}, {"finite": True}])
def test_another_device_gives_the_same(kwargs, monkeypatch):
    here, log, commands = played("cpu", **kwargs)
    twin_device.reach(monkeypatch)
    there, log_there, commands_there = played(twin_device.DEVICE, **kwargs)
    for one, other in zip(here, there, strict=True):
        for a, b in zip(leaves(one), leaves(other), strict=True):
            assert b.device == twin_device.DEVICE
            assert torch.equal(a, b.cpu())
    assert log == pytest.approx(log_there)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(commands, commands_there, strict=True))


def test_an_action_that_is_not_finite_is_noticed_after_the_step(monkeypatch):
    twin_device.reach(monkeypatch)
    sim: Any = sim_of(CountingLab(ENDS, limit=4, device=twin_device.DEVICE))
    sim.reset()
    with pytest.raises(NumericsError, match="not finite"):
        sim.step(torch.full((2, 1), math.nan).to(twin_device.DEVICE))
    assert sim.env.t == 1
