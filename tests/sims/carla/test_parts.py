"""Parts of the CARLA adapter that need no server: messages, boxes, pedals, starts, server processes."""

import math
import socket
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from robotrl.errors import ConfigError
from robotrl.sims import starts
from robotrl.sims.carla import channel, scene
from robotrl.sims.carla.client.pedals import BRAKE_MPS2, ENGINE_MPS2, HOLD, PedalControl
from robotrl.sims.carla.routes import CarlaRoute
from robotrl.sims.carla.server import ServerProcess, free_port, listens
from robotrl.sims.carla.towns import StartPlan, split_rows
from robotrl.sims.driving.geometry import boxes_overlap
from tests.kits.refusals import raises_naming

# messages

SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
KINDS = st.sampled_from([np.dtype("u1"), np.dtype("<i4"), np.dtype("<f8"), scene.ROAD_USER, scene.LIGHT])


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text("abc", min_size=1), st.tuples(KINDS, SHAPES), max_size=3), st.integers())
def test_a_message_arrives_as_it_was_sent(kinds, number):
    draw = np.random.default_rng(0)
    sent = {
        name: np.frombuffer(draw.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)
        for name, (kind, shape) in kinds.items()
    }
    one, other = socket.socketpair()
    with one, other:
        channel.send(one, {"number": number}, sent)
        fields, found = channel.receive(other, 1.0)
    assert fields == {"number": number} and found.keys() == sent.keys()
    for name, array in sent.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_a_message_larger_than_the_socket_holds():
    one, other = socket.socketpair()
    sent = np.arange(3_000_000, dtype=np.uint8)
    with one, other:
        sender = threading.Thread(target=channel.send, args=(one, {}, {"a": sent}))
        sender.start()
        _, found = channel.receive(other, 10.0)
        sender.join()
    assert np.array_equal(found["a"], sent)


def test_what_does_not_come_and_who_is_gone():
    one, other = socket.socketpair()
    with other:
        with pytest.raises(channel.DeadlineMissed):
            channel.receive(other, 0.05)
        one.sendall(b"\x10\x00\x00\x00")  # a part of a message
        with pytest.raises(channel.DeadlineMissed):
            channel.receive(other, 0.05)
        one.close()
        with pytest.raises(channel.ChannelClosed):
            channel.receive(other, 1.0)
        with pytest.raises(channel.ChannelClosed):
            channel.send(other, {})
            channel.send(other, {})
    one, other = socket.socketpair()
    with one, other:
        one.sendall(channel.LENGTHS.pack(1 << 30, 0))
        with pytest.raises(channel.ChannelClosed, match="bytes"):
            channel.receive(other, 1.0)


# boxes


def user(x=0.0, y=0.0, yaw=0.0, length=4.0, width=2.0):
    row = np.zeros(1, scene.ROAD_USER)
    row["x"], row["y"], row["yaw"], row["length"], row["width"] = x, y, yaw, length, width
    return row


def test_contact_by_hand():
    ego = user()
    assert scene.touches_ego(np.concatenate([ego, user(x=3.9)]), 0.0)
    assert not scene.touches_ego(np.concatenate([ego, user(x=4.05)]), 0.0)
    assert scene.touches_ego(np.concatenate([ego, user(x=4.05)]), 0.1)
    assert not scene.touches_ego(np.concatenate([ego, user(y=2.05)]), 0.0)
    # across: half a length is half a width away
    assert scene.touches_ego(np.concatenate([ego, user(y=2.9, yaw=math.pi / 2)]), 0.0)
    assert not scene.touches_ego(ego, 1.0)


PLACE = st.tuples(st.floats(-6, 6), st.floats(-6, 6), st.floats(-4, 4), st.floats(0.5, 6), st.floats(0.5, 3))


@settings(deadline=None, max_examples=200)
@given(PLACE, st.floats(-4, 4))
def test_contact_is_that_of_the_world_of_our_own(place, yaw):
    x, y, turn, length, width = place
    users = np.concatenate([user(yaw=yaw), user(x, y, turn, length, width)])
    boxes = (x, y, math.cos(yaw), math.sin(yaw), 2.0, 1.0, math.cos(turn), math.sin(turn), length / 2, width / 2)
    nearly = [boxes_overlap(*boxes[:4], 2.0 + d, 1.0 + d, *boxes[6:]) for d in (-1e-6, 1e-6)]
    if nearly[0] == nearly[1]:
        assert scene.touches_ego(users, 0.0) == nearly[0]


# pedals


def test_pedals_by_hand():
    control = PedalControl()
    assert control.pedals(1.0, 5.0, 0.1) == (1.0 / ENGINE_MPS2, 0.0)
    # the car gained 0.05 m/s in 0.1 s instead of 0.1: 40 % of the missing 0.5 m/s^2 are added
    throttle, brake = control.pedals(1.0, 5.05, 0.1)
    assert (throttle, brake) == (pytest.approx(1.2 / ENGINE_MPS2), 0.0)
    assert PedalControl().pedals(-2.0, 5.0, 0.1) == (0.0, 2.0 / BRAKE_MPS2)
    assert PedalControl().pedals(-2.0, 0.05, 0.1) == (0.0, HOLD)  # stand
    assert PedalControl().pedals(100.0, 5.0, 0.1) == (1.0, 0.0)


@pytest.mark.parametrize("engine", [3.0, 5.0, 8.0])
@pytest.mark.parametrize("drag", [0.0, 0.8])
@pytest.mark.parametrize("wanted", [0.5, 1.5, -1.5])
def test_an_acceleration_is_reached_with_another_engine(engine, drag, wanted):
    control, speed, tick = PedalControl(), 10.0, 0.05
    speeds = []
    for _ in range(60):
        throttle, brake = control.pedals(wanted, speed, tick)
        speed += (throttle * engine - brake * 7.0 - drag) * tick
        speeds.append(speed)
    assert (speeds[-1] - speeds[-21]) / (20 * tick) == pytest.approx(wanted, abs=0.02)


# starts


def test_routes_of_a_town_are_divided_among_the_splits():
    assert split_rows(64) == {"train": (0, 40), "val": (40, 48), "test": (48, 64)}
    assert split_rows(3) == {"train": (0, 1), "val": (1, 2), "test": (2, 3)}
    for count in range(3, 200):
        rows = split_rows(count)
        assert [rows[name][0] for name in ("train", "val", "test")] == [0, rows["train"][1], rows["val"][1]]
        assert all(first < end for first, end in rows.values()) and rows["test"][1] == count


def test_fewer_routes_than_asked_for_are_divided_as_they_are():
    plan = StartPlan("Town01", (), 64)
    ids = starts.SPLITS["val"]
    assert {plan.start(ids.start + k, 16).route for k in range(8)} == {10, 11}
    assert {plan.start(ids.start + k, 2).route for k in range(8)} == {0, 1}


def route(number, town="A"):
    return CarlaRoute(str(number), town, np.zeros((2, 3)), None, (), ())


def test_starts_take_their_routes_in_turn():
    plan = StartPlan("Town01", (), 16)
    for split, (first, end) in split_rows(16).items():
        ids = starts.SPLITS[split]
        found = [plan.start(ids.start + k) for k in range(end - first)]
        assert sorted(one.route for one in found) == list(range(first, end))
        assert {one.town for one in found} == {"Town01"}
    planned = StartPlan("", [route(7, "B"), route(8), route(9, "B")], 0)
    ids = starts.SPLITS["test"]
    found = [planned.start(ids.start + k) for k in range(3)]
    assert {one.planned.id for one in found} == {"7", "8", "9"}
    assert {(one.town, one.route) for one in found} == {("B", 0), ("A", 0), ("B", 1)}
    assert [one.id for one in planned.routes_of("B")] == ["7", "9"] and planned.names == ("7", "8", "9")


# processes


def test_a_server_process_is_killed_with_its_children():
    child = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"
    server = ServerProcess(f'{sys.executable} -c "{child}"', 20.0)
    assert listens(server.host, server.port) and server.ended is None
    port = server.port
    server.kill()
    server.kill()
    assert not listens("127.0.0.1", port)


def test_free_ports_are_free_together():
    port = free_port(3)
    for k in range(3):
        with socket.socket() as one:
            one.bind(("127.0.0.1", port + k))


def test_a_command_without_a_port():
    with raises_naming(ConfigError, "server", "'./CarlaUE4.sh'", "{port}"):
        ServerProcess("./CarlaUE4.sh", 1.0)
