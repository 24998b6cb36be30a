"""`carla/...` with the genuine client and the stub of a server: contract, scenes, actions, events, routes, cameras."""

import json
import math
import warnings

import numpy as np
import pytest
import torch

import tests.kits.carla_kit as kit
from benchmarks.carla.agreement import compare, overlap
from benchmarks.carla.town import town as grid
from robotrl.api.evaluation import sim_of
from robotrl.cli.main import main
from robotrl.errors import ConfigError
from robotrl.sims.carla.stub.launch import StubServer
from robotrl.sims.driving.render.vectors import SCALARS
from robotrl.spec import HasState, HasStateIds
from robotrl.testing.sims import CHECKS, SimCase
from tests.kits.refusals import raises_naming

kit.needs_carla()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("town")
    (path / "town.xodr").write_text(kit.town())
    return path


@pytest.fixture(scope="module")
def server(folder):
    with StubServer([folder / "town.xodr"]) as one:
        yield one


@pytest.fixture
def connected(folder, server):
    """Makes sims on the module's server, one at a time."""
    made = []

    def make(**options):
        server.control("heal")
        server.control("forget")
        made.append(kit.make(folder, 1, 0, server=None, ports=(server.port,), **options))
        return made[-1]

    yield make
    for sim in made:
        sim.close()


def drive(sim, steps, steer=0.0, accel=0.0):
    action = torch.tensor([[steer, accel]])
    return [sim.step(action) for _ in range(steps)][-1]


def park_ahead(server, distance_m):
    """Put a car on the ego's lane."""
    ego = server.control("actors", type="vehicle.lincoln*")[0]["pose"]
    yaw = math.radians(ego[4] if len(ego) == 6 else ego[3])
    x, y = ego[0] + distance_m * math.cos(yaw), ego[1] + distance_m * math.sin(yaw)
    server.control("spawn", type="vehicle.tesla.model3", pose=[x, y, 0.1, math.degrees(yaw)])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(folder, check):
    made = []

    def make(num_envs, seed, **options):
        made.append(kit.make(folder, num_envs, seed, vehicles=2, **options))
        return made[-1]

    try:
        check(SimCase(make, lambda num_envs, seed: make(num_envs, seed, limit_s=1.5), 4))
    finally:
        for sim in made:
            sim.close()


def test_what_it_declares(connected):
    sim = connected()
    assert isinstance(sim, HasStateIds) and not isinstance(sim, HasState)
    sim.reset()
    assert sim.core.links[0].version == "0.9.16"


# scenes


def test_a_scene_is_observed_and_drawn_as_in_our_own_world(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # lanes that end in junctions which the converter does not write
        scenes = compare(grid(), 5, 0, tmp_path)
    found = overlap(scenes)
    assert {"road", "route", "solid_lines", "broken_lines", "shoulder", "vehicles"} <= found.keys()
    assert min(found.values()) > 0.95
    # rates are differences to the step before, in which the cars were elsewhere
    put = {"accel", "steer_action", "accel_action", "yaw_rate"}
    for scene in scenes:
        assert scene.agents < 0.01
        assert max(value for name, value in scene.scalars.items() if name not in put) < 0.02


def test_lights_are_those_of_the_server(connected, server):
    sim = connected(vehicles=0)
    seen = set()
    for state_id in range(8):
        sim.reset(options={"state_ids": [state_id]})
        for state, name in ((0, "light_red"), (1, "light_yellow"), (2, "light_green")):
            for light in ("L0", "L1", "L2"):
                server.control("light", id=light, state=state)
            scalars = sim.step(torch.zeros(1, 2)).obs["scalars"][0]
            lit = {one for one in ("light_red", "light_yellow", "light_green") if scalars[SCALARS.index(one)]}
            assert lit in ({name}, set())
            seen |= lit
    assert seen == {"light_red", "light_yellow", "light_green"}


def test_a_red_light_that_is_run_ends_the_episode(connected, server):
    sim = connected(vehicles=0, limit_s=30.0)
    sim.reset(options={"state_ids": [0]})
    for light in ("L0", "L1", "L2"):
        server.control("light", id=light, state=0)
    expert, started = sim.make_expert(mode="brisk"), torch.ones(1, dtype=torch.bool)
    scalars = None
    for _ in range(150):
        step = sim.step(expert.act(started))
        started = torch.zeros(1, dtype=torch.bool)
        scalars = step.obs["scalars"][0]
        assert not step.terminated.item()
    if scalars[SCALARS.index("light_red")]:
        assert scalars[SCALARS.index("speed")] == pytest.approx(0.0, abs=1e-3)  # it waits
        step = None
        for _ in range(80):
            step = sim.step(torch.tensor([[0.0, 1.0]]))
            if step.terminated.item():
                break
        assert step.info["events"].item() & 8  # red_light


# actions


def test_an_acceleration_is_kept_by_feedback(connected):
    sim = connected(vehicles=0)
    sim.reset()
    drive(sim, 5, accel=0.5)
    speeds = [float(drive(sim, 1, accel=0.5).obs["scalars"][0, 0]) * 15.0 for _ in range(15)]
    rate = np.polyfit(np.arange(15) * 0.1, speeds, 1)[0]
    assert rate == pytest.approx(0.5 * 2.4, rel=0.05)
    braking = [float(drive(sim, 1, accel=-0.2).obs["scalars"][0, 0]) * 15.0 for _ in range(12)][4:]
    assert np.polyfit(np.arange(8) * 0.1, braking, 1)[0] == pytest.approx(-0.2 * 4.95, rel=0.1)
    still = drive(sim, 60, accel=-0.5)
    assert float(still.obs["scalars"][0, 0]) == pytest.approx(0.0, abs=1e-3)


def test_pedals_are_sent_as_they_are_and_a_positive_steer_is_left(connected, server):
    sim = connected(vehicles=0, pedals="direct")
    sim.reset()
    server.control("forget")
    drive(sim, 1, steer=0.25, accel=0.5)
    throttle, steer, brake = server.control("calls", name="apply_control")[-1][1][1][:3]
    assert (throttle, brake) == (0.5, 0.0) and steer == pytest.approx(-0.25)
    drive(sim, 1, steer=0.0, accel=-0.75)
    throttle, steer, brake = server.control("calls", name="apply_control")[-1][1][1][:3]
    assert (throttle, brake) == (0.0, 0.75) and steer == 0.0


def test_the_ego_is_the_hero_and_the_clock_is_ours(connected, server):
    sim = connected(vehicles=3, tick_s=0.025)
    sim.reset()
    (hero,) = [one for one in server.control("actors", type="vehicle.*") if one["attributes"]["role_name"] == "hero"]
    assert hero["type"] == "vehicle.lincoln.mkz_2020"
    assert len(server.control("actors", type="vehicle.*")) in (3, 4)  # a bus does not find room everywhere
    state = server.control("state")
    assert state["synchronous"] and state["settings"][2] == [True, 0.025]
    before = state["frame"]
    drive(sim, 3)
    assert server.control("state")["frame"] == before + 12


def test_a_trajectory_is_followed(connected):
    sim = connected(vehicles=0, actions="trajectory")
    sim.reset()
    assert sim.control_dt_s == pytest.approx(0.5)
    ahead = torch.tensor([[2.5, 0.0, 5.0, 0.0, 7.5, 0.0, 10.0, 0.0]])
    for _ in range(6):
        step = sim.step(ahead)
    assert float(step.obs["scalars"][0, 0]) * 15.0 == pytest.approx(5.0, abs=0.8)


# events


def test_running_into_a_parked_car_is_a_collision(connected, server):
    sim = connected(vehicles=0)
    sim.reset(options={"state_ids": [0]})
    park_ahead(server, 15.0)
    gap = float(drive(sim, 1).obs["scalars"][0, SCALARS.index("leader_gap")]) * 60.0
    assert 8.0 < gap < 13.0
    for _ in range(60):
        step = drive(sim, 1, accel=1.0)
        if step.terminated.item():
            break
    assert step.info["events"].item() == 1 and not step.info["success"].item()  # vehicle
    assert sim.core.drives[0].vehicles == 1 and sim.core.drives[0].at_fault == 1


# routes


def write_routes(path, *scenarios, count=1):
    def route(number):
        points = '<position x="-70" y="1.75" z="0"/><position x="70" y="1.75" z="0"/>'
        return (
            f'<route id="{number}" town="town"><waypoints>{points}</waypoints>'
            f"<scenarios>{''.join(scenarios)}</scenarios></route>"
        )

    path.write_text(f"<routes>{''.join(route(number) for number in range(count))}</routes>")
    return path


def scenario(kind, x=-40.0, inside=""):
    place = f'<trigger_point x="{x}" y="1.75" z="0" yaw="0"/>'
    return f'<scenario name="{kind}_1" type="{kind}">{place}{inside}</scenario>'


def test_routes_of_a_file_are_driven_in_turn(connected, tmp_path):
    path = write_routes(tmp_path / "routes.xml", count=3)
    sim = connected(world=str(path), vehicles=0, limit_s=1.0)
    assert sim.scenarios == ("0", "1", "2")
    sim.queue_states(list(sim.state_ids("test")[:3]))
    sim.reset()
    seen = []
    while len(seen) < 3:
        step = drive(sim, 1)
        if step.truncated.item():
            seen.append(sim.scenario_of(int(step.info["state_id"].item())))
    assert sorted(seen) == ["0", "1", "2"]


def test_the_expert_arrives_on_a_route_of_a_file(connected, tmp_path):
    sim = connected(world=str(write_routes(tmp_path / "routes.xml")), vehicles=3)
    sim.reset()
    expert, started = sim.make_expert(mode="brisk"), torch.ones(1, dtype=torch.bool)
    for _ in range(600):
        step = sim.step(expert.act(started))
        started = step.terminated | step.truncated
        if started.item():
            break
    assert step.info["success"].item() and step.info["route_completion"].item() == 1.0


def test_a_pedestrian_steps_out_when_the_ego_comes(connected, server, tmp_path):
    path = write_routes(tmp_path / "routes.xml", scenario("PedestrianCrossing"))
    sim = connected(world=str(path), vehicles=0, pedals="direct")
    sim.reset()
    (walker,) = server.control("actors", type="walker.*")
    drive(sim, 5)
    assert server.control("actors", type="walker.*")[0]["pose"] == pytest.approx(walker["pose"], abs=1e-3)
    for _ in range(60):
        if drive(sim, 1, accel=0.5).terminated.item():
            break
        if abs(server.control("actors", type="walker.*")[0]["pose"][1] - walker["pose"][1]) > 1.0:
            break
    else:
        pytest.fail("the walker stands")
    assert (sim.core.world.agents["kind"][0] == 3).any()  # a pedestrian is seen


def test_hooks_of_ones_own_and_types_without_one(connected, server, tmp_path, monkeypatch):
    path = write_routes(tmp_path / "routes.xml", scenario("ParkedObstacle"), scenario("Mine"), scenario("Unheard"))
    (tmp_path / "own_hooks.py").write_text(
        "class Mine:\n"
        "    def __init__(self, trigger):\n"
        "        self.trigger = trigger\n"
        "    def begin(self, episode):\n"
        "        at = episode.on_road(self.trigger.x + 60, self.trigger.y, 0.0)\n"
        "        episode.actors.append(episode.world.spawn_actor(episode.blueprint('vehicle.audi.tt'), at))\n"
        "    def tick(self, episode): pass\n"
        "    def end(self, episode): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    sim = connected(world=str(path), vehicles=0, hooks={"Mine": "own_hooks:Mine"})
    with pytest.warns(UserWarning, match="types without a hook: Unheard"):
        sim.reset()
    types = {one["type"] for one in server.control("actors", type="vehicle.*")}
    assert types == {"vehicle.lincoln.mkz_2020", "vehicle.tesla.model3", "vehicle.audi.tt"}


def test_a_route_off_the_map_is_refused_by_name(connected, tmp_path):
    path = tmp_path / "routes.xml"
    path.write_text(
        '<routes><route id="7" town="town"><waypoints><position x="-70" y="1.75" z="0"/>'
        '<position x="70" y="400" z="0"/></waypoints></route></routes>'
    )
    sim = connected(world=str(path))
    with raises_naming(ConfigError, "route '7'", "waypoints[1]"):
        sim.reset()


def test_a_server_makes_a_world_of_an_opendrive_file(folder, connected, server):
    sim = connected(world=str(folder / "town.xodr"), vehicles=2)
    sim.reset()
    assert drive(sim, 3).reward.isfinite().all()
    assert server.control("calls", name="generate_opendrive_world")
    assert sim.scenarios == ("town",)


# cameras


def test_pictures_are_of_the_frame_of_the_scene(connected, server):
    sim = connected(vehicles=0, front_pixels=48)
    assert sim.observation_spec["front"].shape == (48, 96, 3)
    sim.reset(options={"state_ids": [0]})
    park_ahead(server, 20.0)
    first = drive(sim, 1).obs["front"].clone()
    assert first.float().std() > 0
    server.control("fault", fault="swap:sensor.camera.*")
    server.control("fault", fault="delay=1:sensor.camera.*")
    # late pictures and pictures in another order are waited for; the driver's view changes
    second = drive(sim, 20, accel=1.0).obs["front"].clone()
    assert not torch.equal(first, second)
    assert sim.losses == 0


# through the command line


def test_a_policy_of_our_own_world_drives_on_a_server(folder, tmp_path):
    run, report = tmp_path / "run", tmp_path / "report.json"
    routes = "--sim.routes 8 --sim.route-length-m 60"
    tiny = "--algo ppo --algo.env-steps 256 --algo.num-steps 32 --algo.minibatch 64 --evaluation.episodes 0"
    # another acceleration and another number of road users: the policy takes both along
    meant = "--sim.throttle-mps2 1.5 --sim.nearest 3"
    train = f"train --sim bev/drive --sim.map {folder / 'town.xodr'} {routes} --sim.num-envs 4 {meant} {tiny}"
    assert main([*train.split(), "--run-dir", str(run)]) == 0
    carried = sim_of(run, "carla/town")[1]
    assert (carried["throttle_mps2"], carried["nearest"]) == (1.5, 3) and not {"map", "limit_s", "reward"} & set(
        carried
    )
    assert sim_of(run, "mujoco/reach") == ("mujoco/reach", {})
    judge = f"eval {run} --sim carla/town {routes} --sim.vehicles 2 --sim.walkers 0 --sim.limit-s 2 --num-envs 1"
    assert main([*judge.split(), *f"--episodes 2 --report {report}".split(), "--sim.server", kit.command(folder)]) == 0
    assert len(json.loads(report.read_text())["episodes"]) == 2


def test_a_policy_is_trained_on_servers(folder, tmp_path):
    tiny = "--algo ppo --algo.env-steps 64 --algo.num-steps 16 --algo.minibatch 32 --evaluation.episodes 0"
    sim = "--sim carla/town --sim.vehicles 2 --sim.walkers 0 --sim.num-envs 2 --sim.routes 8 --sim.route-length-m 60"
    train = f"train {sim} {tiny} --run-dir {tmp_path / 'run'}"
    assert main([*train.split(), "--sim.server", kit.command(folder)]) == 0
