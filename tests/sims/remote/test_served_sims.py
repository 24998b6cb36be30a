"""Sims of robotrl in other processes give the numbers that they give here, and keep what they can do."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError
from robotrl.spec import (
    HasCamera,
    HasExpert,
    HasExpertState,
    HasParams,
    HasPrivileged,
    HasRestart,
    HasScenarios,
    HasState,
    HasTimeLimit,
    HasTrace,
    lost,
    why_lacking,
)
from robotrl.spec.captions import HasActionCaptions, HasCaptions
from robotrl.spec.vehicle import (
    HasPlanFrame,
    HasProgressRatio,
    HasTimeToCollision,
    HasTrajectoryActions,
    HasVehicleObs,
)
from robotrl.testing.sims import assert_same_obs, copied, leaves, random_actions
from tests.kits.warp_kit import small_log

SIMS = {"mujoco/peg-insert": {"limit_s": 0.5}, "bev/drive": {"limit_s": 1.0}}


def both(name: str, n: int, workers: int = 1, **options: Any) -> tuple[Any, Any]:
    given = {**SIMS[name], **options}
    there = robotrl.make_sim(f"remote/{name}", num_envs=n, seed=3, kwargs=given, workers=workers)
    return robotrl.make_sim(name, num_envs=n, seed=3, **given), there


def assert_same_step(here: Any, there: Any) -> None:
    assert not there.info.pop("lost").any()
    assert here.info.keys() == there.info.keys()
    for a, b in zip(leaves(here), leaves(there._replace(info={k: there.info[k] for k in here.info})), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("name", "workers"), [("mujoco/peg-insert", 1), ("bev/drive", 1), ("bev/drive", 2)])
def test_the_numbers_are_those_of_the_sim_in_this_process(name: str, workers: int) -> None:
    n = 6
    here, there = both(name, n, workers)
    assert here.observation_spec == there.observation_spec
    assert here.action_spec == there.action_spec
    assert here.control_dt_s == there.control_dt_s
    assert_same_obs(here.reset(), there.reset())
    actions = random_actions(here, 45)
    for action in actions[:25]:  # ids are drawn
        assert_same_step(copied(here.step(action)), copied(there.step(action)))
    queued = here.state_ids("val")[:20]
    for sim in (here, there):
        sim.queue_states(queued)
    for action in actions[25:]:
        assert_same_step(copied(here.step(action)), copied(there.step(action)))
    for sim in (here, there):
        sim.queue_states(queued[3:])
    assert_same_obs(here.restart(torch.tensor([1, 4])), there.restart(torch.tensor([1, 4])))
    assert_same_step(copied(here.step(actions[0])), copied(there.step(actions[0])))
    assert_same_obs(here.reset(seed=8), there.reset(seed=8))
    there.close()


@pytest.mark.parametrize(("options", "workers"), [({"obs": "both"}, 2), ({"obs": "raster", "packed": True}, 1)])
def test_observations_written_into_shared_memory_are_those_of_the_sim_in_this_process(
    options: dict[str, Any], workers: int
) -> None:
    here, there = both("bev/drive", 4, workers, raster_pixels=32, **options)
    assert_same_obs(here.reset(), there.reset())
    before: dict[str, torch.Tensor] = {}
    for action in random_actions(here, 14):  # each episode ends in between
        a, b = copied(here.step(action)), copied(there.step(action))
        assert_same_step(a, b)
        before = a.obs
    state = there.get_state()
    after = copied(there.step(random_actions(here, 1)[0]))
    assert_same_obs(there.set_state(state), before)
    assert_same_obs(copied(there.step(random_actions(here, 1)[0])).obs, after.obs)
    there.close()


def test_a_robot_sim_keeps_what_it_can_do() -> None:
    here, there = both("mujoco/peg-insert", 4, limit_s=5.0)
    for capability in (HasState, HasCamera, HasParams, HasExpert, HasRestart, HasTimeLimit):
        assert isinstance(there, capability)
    for sim in (here, there):
        sim.reset(seed=0)
        sim.set_params([2], {"servo_gain": np.array([0.7])})
    assert there.get_params()["servo_gain"].tolist() == here.get_params()["servo_gain"].tolist()
    assert torch.equal(here.distance(), there.distance())
    camera = there.cameras[0]
    assert there.cameras == here.cameras
    assert np.array_equal(here.render([2, 0], camera, 32, 24), there.render([2, 0], camera, 32, 24))
    with pytest.raises(ConfigError, match="did you mean 'servo_gain'"):
        there.set_params([0], {"servo_gian": np.array([1.0])})
    experts = [sim.make_expert(noise=0.2, seed=4) for sim in (here, there)]
    assert isinstance(experts[1], HasExpertState)
    assert experts[0].modes == experts[1].modes
    started = torch.ones(4, dtype=torch.bool)
    for _ in range(6):
        actions = [expert.act(started).clone() for expert in experts]
        assert torch.equal(*actions)
        assert torch.equal(experts[0].mode, experts[1].mode)
        here.step(actions[0])
        there.step(actions[1])
        started[:] = False
    assert there.limit_steps == here.limit_steps
    assert there.elapsed_steps().tolist() == here.elapsed_steps().tolist() == [6] * 4
    state, later = experts[1].get_state(), experts[1].act(started).clone()
    experts[1].set_state(state)
    assert torch.equal(experts[1].act(started), later)
    assert "do not travel" in why_lacking(there, "HasGeometry")
    os.kill(there.pool.pids[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match="SIGKILL"):
        there.step(actions[1])
    assert there.get_params()["servo_gain"].tolist() == [1.0, 1.0, 0.7, 1.0]
    there.close()


def test_a_driving_sim_keeps_what_it_can_do() -> None:
    here, there = both("bev/drive", 3)
    kept = (HasPrivileged, HasScenarios, HasCaptions, HasActionCaptions, HasTimeToCollision, HasVehicleObs)
    for capability in kept:
        assert isinstance(there, capability)
    assert there.privileged == here.privileged
    assert there.scenarios == here.scenarios
    assert there.scenario_of(5) == here.scenario_of(5)
    assert there.vehicle_obs == here.vehicle_obs
    assert there.caption_topics == here.caption_topics
    assert there.action_captions == here.action_captions
    for sim in (here, there):
        sim.reset(seed=0)
    assert np.array_equal(here.time_to_collision_s(), there.time_to_collision_s())
    assert np.array_equal(here.caption_classes(), there.caption_classes())
    assert np.array_equal(here.action_contexts(), there.action_contexts())
    assert not isinstance(there, HasTrace)
    assert "do not travel" in why_lacking(there, "HasTrace")
    there.close()


def test_what_planners_ask_of_a_driving_sim_comes_through() -> None:
    options = {"log": small_log(None), "actions": "trajectory", "hold": 10}
    here = robotrl.make_sim("bev/warp", num_envs=2, seed=3, **options)
    there = robotrl.make_sim("remote/bev/warp", num_envs=2, seed=3, kwargs=options)
    assert isinstance(there, HasTrajectoryActions) and isinstance(there, HasProgressRatio)
    assert there.trajectory_dt_s == here.trajectory_dt_s == 0.5
    for sim in (here, there):
        sim.queue_states(list(here.state_ids("val")[:2]))
        sim.reset()
        sim.step(torch.zeros(2, 8))
    assert np.array_equal(here.progress_ratio(), there.progress_ratio())
    assert (here.progress_ratio() < 1).all()
    assert isinstance(there, HasPlanFrame) and np.array_equal(here.plan_frame(), there.plan_frame())
    there.close()


def test_a_sim_that_loses_episodes_by_itself_says_so_and_takes_no_start_for_them() -> None:
    sim = robotrl.make_sim(
        "remote/gym/CartPole-v1", num_envs=2, kwargs={"vectorization": "async", "limit_steps": 6, "camera": False}
    )
    ids = list(sim.state_ids("val")[:8])
    sim.queue_states(ids)
    sim.reset()
    below = psutil.Process(sim.pool.pids[0]).children(recursive=True)
    below[-1].kill()  # the process of a row
    ended: list[int] = []
    gone = 0
    for _ in range(40):
        out = sim.step(torch.zeros(2, 1))
        gone += int(lost(out).sum())
        ended += [int(out.info["state_id"][i]) for i in out.final_ids if not lost(out)[i]]
    assert gone == 1
    assert sorted(ended[:8]) == ids
    assert sim.pool.lost == 0
    sim.close()


def test_a_sim_of_gymnasium() -> None:
    here = robotrl.make_sim("gym/CartPole-v1", num_envs=4, seed=1)
    there = robotrl.make_sim("remote/gym/CartPole-v1", num_envs=4, seed=1, workers=1)
    assert_same_obs(here.reset(), there.reset())
    for action in random_actions(here, 30):
        a, b = copied(here.step(action)), copied(there.step(action))
        assert_same_obs(a.obs, b.obs)
        assert_same_obs(a.final_obs, b.final_obs)
        assert torch.equal(a.info["state_id"], b.info["state_id"])
    assert there.success_rule == here.success_rule
    there.close()
    with pytest.raises(ConfigError, match="workers is 2"):
        robotrl.make_sim("remote/gym/CartPole-v1", num_envs=4, workers=2)
