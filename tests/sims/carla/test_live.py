"""A running CARLA server, named by ROBOTRL_CARLA=HOST:PORT: `make carla`."""

import os

import pytest
import torch

import robotrl
import tests.kits.carla_kit as kit

LIVE = os.environ.get("ROBOTRL_CARLA", "")
pytestmark = pytest.mark.skipif(not LIVE, reason="ROBOTRL_CARLA names no running CARLA server")
kit.needs_carla()


@pytest.fixture(scope="module")
def town():
    import carla

    host, _, port = LIVE.partition(":")
    client = carla.Client(host, int(port))
    client.set_timeout(60.0)
    return client.get_world().get_map().name.rpartition("/")[2]


def make(town, **options):
    host, _, port = LIVE.partition(":")
    given = {"vehicles": 20, "walkers": 5, "timeout_s": 60.0, "start_timeout_s": 300.0} | options
    return robotrl.make_sim(f"carla/{town}", num_envs=1, host=host, ports=(int(port),), **given)


def test_the_expert_drives_and_the_clock_is_given_back(town):
    import carla

    sim = make(town)
    sim.queue_states([0])
    sim.reset()
    expert, started = sim.make_expert(mode="calm"), torch.ones(1, dtype=torch.bool)
    for _ in range(900):
        step = sim.step(expert.act(started))
        started = step.terminated | step.truncated
        if started.item():
            break
    assert sim.losses == 0
    assert step.info["route_completion"].item() > 0.2
    sim.close()
    host, _, port = LIVE.partition(":")
    client = carla.Client(host, int(port))
    client.set_timeout(60.0)
    assert not client.get_world().get_settings().synchronous_mode


def test_a_start_gives_the_same_episode(town):
    sim = make(town, front_pixels=64)
    found = []
    for _ in range(2):
        sim.reset(options={"state_ids": [7]})
        steps = [sim.step(torch.tensor([[0.0, 0.5]])).obs["scalars"].clone() for _ in range(30)]
        found.append(torch.stack(steps))
    assert sim.step(torch.zeros(1, 2)).obs["front"].float().std() > 0
    sim.close()
    assert torch.allclose(found[0], found[1], atol=0.02)
