"""The stub of a CARLA server with the genuine client library."""

import math
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import tests.kits.carla_kit as kit
import tests.kits.xodr_kit as xodr
from robotrl.errors import ConfigError
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming

kit.needs_carla()
from robotrl.sims.carla.stub import calls, faults  # noqa: E402
from robotrl.sims.carla.stub.launch import StubServer  # noqa: E402
from robotrl.sims.carla.stub.simulation import physics  # noqa: E402
from robotrl.sims.carla.stub.simulation.sensors import SensorFrame  # noqa: E402
from robotrl.sims.carla.stub.simulation.town import Town  # noqa: E402
from robotrl.sims.carla.stub.simulation.world import World  # noqa: E402
from robotrl.sims.carla.stub.streams import FrameQueue  # noqa: E402


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    (folder / "town.xodr").write_text(kit.town())
    return [folder / "town.xodr", f"Second={folder / 'town.xodr'}"]


@pytest.fixture(scope="module")
def server(files):
    with StubServer(files) as server:
        yield server


def faulty(files, *faults):
    return StubServer(files, faults)


# arithmetic


def test_a_car_speeds_up_brakes_and_rolls_out():
    def after(speed, throttle=0.0, brake=0.0, hand=False, reverse=False):
        given = [np.array([value]) for value in (speed, throttle, brake, hand, reverse)]
        return physics.next_speed(*given, 0.1)[0]

    assert after(0.0, throttle=1.0) == pytest.approx(0.5)
    assert after(25.0, throttle=1.0) == pytest.approx(25.25)  # half of the push at half of the top speed
    assert after(5.0, brake=0.5) == pytest.approx(5.0 - 0.45 - 0.02)
    assert after(0.1, hand=True) == 0.0
    assert after(0.0, throttle=1.0, reverse=True) == pytest.approx(-0.5)


def test_a_car_turns_right_on_a_circle():
    radius = 3.0 / math.tan(physics.MAX_STEER_RAD)
    xy, yaw = np.zeros((1, 2)), np.zeros(1)
    one = np.ones(1)
    for _ in range(1000):
        xy, yaw, _ = physics.bicycle(xy, yaw, one * 2.0, one, one * 3.0, math.pi * radius / 2000)
    assert yaw[0] == pytest.approx(math.pi)
    assert xy[0] == pytest.approx([0.0, 2 * radius], abs=1e-3)  # y grows to the right


def test_boxes_overlap_by_their_sides_and_heights():
    center = np.array([[0, 0, 1], [3.9, 0, 1], [8.2, 0, 1], [0, 3, 1], [0, 0, 4.0]], float)
    extent = np.array([[2.0, 1.0, 1.0]] * 5)
    yaw = np.array([0.0, 0.0, 0.0, 0.0, 0.0])
    assert physics.overlapping(center, yaw, extent).tolist() == [[0, 1]]
    yaw[3] = math.pi / 2
    assert physics.overlapping(center, yaw, extent).tolist() == [[0, 1]]  # it ends at y 1
    center[3, 1] = 2.9
    assert physics.overlapping(center, yaw, extent).tolist() == [[0, 1], [0, 3]]


# the client


def test_a_client_sees_the_world(server):
    found = kit.ask(server, "look")
    assert found["version"] == "0.9.16" and found["map"] == "Carla/Maps/town"
    assert found["maps"][:2] == ["/Game/Carla/Maps/town", "/Game/Carla/Maps/Second"]
    assert len(found["spawn_points"]) > 10 and all(found["on_lanes"])
    assert found["wheels"]["vehicle.tesla.model3"] == 4 and found["wheels"]["vehicle.bh.crossbike"] == 2
    assert found["walkers"] == 14 and "ego_vehicle" in found["roles"] and found["signs"] == ["traffic.stop"]
    assert found["groups"] == {name: ["L0", "L1", "L2"] for name in ("L0", "L1", "L2")} and found["found"]
    assert found["settings"] == [True, 0.05] and found["weather"]
    ((x, y, _, yaw),) = found["stops"]["L0"]  # road 0 leads from the east to the middle
    assert 24.0 < x < 27.5 and y == pytest.approx(-1.75) and abs(yaw) == pytest.approx(180.0)


def test_a_drive_is_the_same_each_time_bit_for_bit(server):
    server.control("forget")
    found = kit.ask(server, "drive")
    assert found == kit.ask(server, "drive")
    path = np.array(found["path"])
    assert found["frames"] == list(range(80)) and found["dt"] == pytest.approx(0.05)
    assert found["blocked"] and found["moved"] and found["destroyed"] == [True, True] and found["left"] == 0
    step = np.diff(path[:, :2], axis=0) / 0.05
    np.testing.assert_allclose(step[:40], path[1:41, 4:6], atol=2e-3)  # float32 in snapshots
    assert np.hypot(*path[70, 4:6]) > np.hypot(*path[-1, 4:6]) + 2.0
    assert path[0, 3] == pytest.approx(-180.0) and path[-1, 3] > -180.0  # a turn to the right
    assert found["walker"] == pytest.approx([5.0, 5.0 + 80 * 0.05 * 1.5, 0.93, 90.0, 1.5], abs=1e-4)
    assert found["control"] == pytest.approx([0.7, 0.05, 1.0, False, False])
    assert found["box"] == pytest.approx([2.4, 1.08, 0.74]) and found["limit"] == 30.0 and found["role"] == "hero"
    sent = server.control("calls", name="apply_control")
    assert len(sent) == 2 * 3  # the client sends a control that differs from the one before
    assert sent[0][1][1] == pytest.approx([0.7, 0.0, 0.0, False, False, False, 0])
    attributes = server.control("calls", name="spawn")[0][1][0][2]
    assert ["role_name", 4, "hero"] in attributes
    assert server.control("count")["tick_cue"] >= 160


def test_batches(server):
    found = kit.ask(server, "batches")
    collision = "Spawn failed because of collision at spawn position"
    assert found["errors"] == ["", collision, "", ""]
    assert found["car"] > 2.0 and found["walker"] == pytest.approx(2.0) and found["prop"] == [-9.0, 9.0]
    assert found["brake"] and found["frozen"]
    assert found["destroyed"] == ["", "", "", "unable to find actor"]


def test_sensors(server):
    found = kit.ask(server, "sensors")
    assert found["images"] == found["frames"] and found["sizes"] == [64, 48, 64 * 48 * 4, 90.0]
    assert found["tags"] == [1, 11, 14]  # road, sky, car
    (ahead, _, up), frame = found["imu"]
    assert ahead == pytest.approx(5.0, abs=0.5) and up == pytest.approx(9.81) and frame == found["frames"][-1]
    own, other, impulse = found["hit"]
    assert own and other and impulse > 1000.0  # it drove towards -x
    assert "Broken" in found["marks"]


def test_lights_take_turns_until_they_are_frozen(server):
    found = kit.ask(server, "lights")
    turns = [["G", "R", "G"], ["Y", "R", "Y"], ["R", "R", "R"], ["R", "G", "R"]]
    assert [states for states, _ in found["seen"]] == turns
    assert [ticks for _, ticks in found["seen"]][1:3] == [60, 40]
    assert found["frozen"] and found["state"] == "Green" and found["green"] == 4.0
    assert found["at"] == [True, True, "Green"] and found["limit"] == 50.0
    assert found["ground"] == [0.0, "Roads"]


def test_maps_are_loaded_and_all_actors_are_gone(server):
    found = kit.ask(server, "maps")
    assert found["episodes"][0] < found["episodes"][1] < found["episodes"][2]
    before, second, third = found["actors"]
    assert before == second + 1 == third + 1
    assert found["synchronous"] == [True, False]
    assert "Nowhere" in found["missing"] and found["made"] == "Carla/Maps/OpenDriveMap"


def test_the_clients_own_traffic_manager_drives(server):
    found = kit.ask(server, "autopilot")
    assert found == kit.ask(server, "autopilot")
    way = np.hypot(*(np.array(found["ends"]) - np.array(found["begins"]))[:, :2].T)
    assert (way > 5.0).all()


def test_an_asynchronous_world_ticks_by_itself(server):
    first, *rest = kit.ask(server, "flowing")["frames"]
    assert rest[-1] > first


def test_others_than_clients_are_hung_up_on(server):
    with socket.create_connection(("127.0.0.1", server.port), 5.0) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert peer.recv(10) == b""
    assert server.control("state")["map"]


# the control socket


def test_tests_place_script_and_see_actors(server):
    made = server.control("spawn", type="vehicle.audi.tt", pose=[300.0, 0.0, 0.0, 90.0], attributes={"role_name": "x"})
    server.control("script", id=made, poses=[[300.0, float(y), 0.0, 90.0] for y in range(3)])
    for _ in range(4):
        server.control("tick")
    (found,) = [actor for actor in server.control("actors", type="vehicle.audi.tt") if actor["id"] == made]
    assert found["pose"][:2] == [300.0, 2.0] and found["attributes"]["role_name"] == "x"
    server.control("script", id=made, poses=[])
    server.control("place", id=made, pose=[0.0, 300.0, 0.0, 0.0], speed=2.0)
    (found,) = [actor for actor in server.control("actors", type="vehicle.audi.tt") if actor["id"] == made]
    assert found["pose"][:2] == [0.0, 300.0] and found["speed"] == 2.0
    assert server.control("destroy", id=made)
    with raises_naming(ConfigError, "id", made):
        server.control("place", id=made, pose=[0.0, 0.0, 0.0, 0.0])
    with raises_naming(ConfigError, "type", "vehicle.audi.t", nearest="vehicle.audi.tt"):
        server.control("spawn", type="vehicle.audi.t", pose=[0.0, 0.0, 0.0, 0.0])
    with raises_naming(ConfigError, "do", "actor", nearest="actors"):
        server.control("actor")


# faults


def test_a_server_dies_in_the_midst_of_a_call(files):
    with faulty(files, "die:tick:3") as server:  # applying settings ticks twice
        first, second, _ = kit.ask(server, "patient_tick")
        assert first["error"] is None and "time-out" in second["error"] and second["frame"] == 1
        assert server.wait() == 70


@pytest.mark.parametrize(
    ("fault", "errors", "frames"),
    [
        ("hang:tick:3:1", [None, "time-out", None], [1, 1, 2]),
        ("late=0.5:tick:3:1", [None, None, None], [1, 2, 3]),
        ("stale:tick:3:1", [None, "time-out", None], [1, 1, 3]),
        ("stale=repeat:tick:3", [None, "time-out", "time-out"], [1, 1, 1]),
        ("close:tick:3:1", [None, "time-out", None], [1, 1, 3]),
    ],
)
def test_ticks_go_wrong(files, fault, errors, frames):
    with faulty(files, fault) as server:
        found = kit.ask(server, "patient_tick")
    assert [error and error in str(tick["error"]) for error, tick in zip(errors, found, strict=True)] == [
        error and True for error in errors
    ]
    assert [tick["frame"] for tick in found] == frames
    if fault.startswith("late"):
        assert found[1]["seconds"] >= 0.5


def test_calls_hang_and_a_whole_server_stops(files):
    with faulty(files, "hang:load_world") as server:
        assert "time-out" in kit.ask(server, "load")["error"]
        server.control("heal")
        assert kit.ask(server, "load")["error"] is None
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            server.control("state", timeout_s=0.2)
        server.kill()
        assert not server.alive


def test_a_server_tells_another_version_and_another_map(files):
    with faulty(files, "version=0.9.14", "map=Elsewhere") as server:
        assert kit.ask(server, "told") == {"version": "0.9.14", "map": "Carla/Maps/Elsewhere"}


def test_spawns_are_refused(server):
    server.control("fault", fault="refuse:vehicle.tesla.*:1")
    server.control("fault", fault="refuse=no such color:vehicle.audi.*")
    found = kit.ask(server, "spawns")
    server.control("heal")
    assert found[0] is None and "collision" in found[1] and found[2] == "no such color"


@pytest.mark.parametrize(
    ("fault", "frames"),
    [
        ("drop::2:2", [0, 1, 4, 5]),
        ("delay=2::1:1", [0, 2, 1, 3, 4, 5]),
        ("swap", [1, 0, 3, 2, 5, 4]),
        ("close:tick:5:1", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_frames_of_cameras_are_lost_late_or_out_of_order(files, fault, frames):
    with faulty(files, fault) as server:
        found = kit.ask(server, "camera")
    if fault.startswith("close"):
        assert len(found) < 6
    else:
        assert found == frames


def test_snapshots_are_lost_late_or_out_of_order_as_well():
    def sent(*texts):
        found, in_force = [], faults.Faults()
        in_force.list += [faults.parse(text, calls.NAMES) for text in texts]
        queue = FrameQueue(in_force, lambda stream, message: found.append(message))
        for number in range(5):
            queue.begin(number)
            queue.put(number, SensorFrame(1, "world", number))
        return found

    assert sent("drop:world:1:2") == [0, 3, 4]
    assert sent("delay=2:world:0:1") == [1, 0, 2, 3, 4]
    assert sent("swap:world") == [1, 0, 3, 2]
    assert sent("drop") == [0, 1, 2, 3, 4]


# how it starts and ends


def test_a_server_ends_with_the_process_that_started_it(files):
    code = f"""
from robotrl.sims.carla.stub.launch import StubServer
server = StubServer([{str(files[0])!r}])
print(server.pid, server.port, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as starter:
        pid, port = map(int, starter.stdout.readline().split())
        os.kill(pid, 0)
        starter.kill()
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                break
        time.sleep(0.05)
    else:
        pytest.fail("the server runs on")


def test_cars_follow_the_height_of_the_road():
    rise = xodr.tag("elevationProfile", xodr.cubic("elevation", 0.0, 2.0, 0.1).replace("sOffset", "s"))
    text = xodr.document(xodr.straight(right=[xodr.lane(-1)]).replace("<lanes>", f"{rise}<lanes>"))
    town = Town("hill", text)
    world = World([town])
    assert not town.flat and town.spawn_points[1][2] == pytest.approx(4.5, abs=0.01)  # 20 m on, and 0.5 m above
    car = world.spawn("vehicle.audi.tt", [], town.spawn_points[1])
    world.set_velocity(car.id, [10.0, 0.0, 0.0])
    for _ in range(20):
        world.advance(0.05)
    x, _, z, *_ = world.actors.pose(car.id)
    assert x == pytest.approx(29.9, abs=0.2) and z == pytest.approx(2.0 + 0.1 * x, abs=0.1)


def test_wrong_options_are_named(files, tmp_path):
    for fault, named in {
        "dye:tick": ("dye", "die"),
        "die:tik": ("tik", "tick"),
        "late=soon:tick": ("late=soon:tick", "soon"),
        "die:tick:x": ("die:tick:x", "whole number"),
        "stale=loud": ("loud", "silent"),
    }.items():
        with raises_naming(ConfigError, "fault", *named):
            faults.parse(fault, calls.NAMES)
    with raises_naming(ConfigError, "fault", "dye", nearest="die"):
        StubServer(files, ["dye"])
    with raises_naming(ConfigError, "map", "nowhere.xodr"):
        StubServer([tmp_path / "nowhere.xodr"])
    (tmp_path / "text.xodr").write_text("no map")
    with raises_naming(ConfigError, "map", "text"):
        StubServer([tmp_path / "text.xodr"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="port"):
        StubServer(files, port=taken.getsockname()[1])
