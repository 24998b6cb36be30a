"""Waymo-style logs: checksums, the wire format, and scenarios of ours in that layout."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robotrl
from robotrl.errors import DataError
from robotrl.sims.driving.logs import tfrecord
from robotrl.sims.driving.logs.layout import read_log
from robotrl.sims.driving.logs.protobuf import ProtoMessage, varint
from robotrl.sims.driving.logs.roads import read_roads
from robotrl.sims.driving.logs.waymo import read_waymo

STEPS = 30
FAR = (8_000.0, -3_000.0)
"""Where the scenarios lie: coordinates of the layout are not near the origin."""


# the wire format, written here by hand


def number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def integer(field: int, value: int) -> bytes:
    return number(field << 3) + number(value)


def double(field: int, value: float) -> bytes:
    return number(field << 3 | 1) + struct.pack("<d", value)


def single(field: int, value: float) -> bytes:
    return number(field << 3 | 5) + struct.pack("<f", value)


def inside(field: int, data: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(data)) + data


def point(field: int, x: float, y: float) -> bytes:
    return inside(field, double(1, x + FAR[0]) + double(2, y + FAR[1]) + double(3, 12.0))


def state(
    x: float, y: float, yaw: float, speed: float, valid: bool = True, size: tuple[float, float] = (4.5, 2.0)
) -> bytes:
    data = double(2, x + FAR[0]) + double(3, y + FAR[1]) + double(4, 12.0) + single(5, size[0]) + single(6, size[1])
    data += single(7, 1.6) + single(8, yaw) + single(9, speed * math.cos(yaw)) + single(10, speed * math.sin(yaw))
    return inside(3, data + integer(11, int(valid)))


def track(number_: int, kind: int, states: list[bytes]) -> bytes:
    return inside(2, integer(1, number_) + integer(2, kind) + b"".join(states))


def lane(number_: int, points: list[tuple[float, float]], following: list[int], **extra: bytes) -> bytes:
    data = double(1, 25.0) + integer(2, 2) + b"".join(point(8, *xy) for xy in points)
    data += inside(10, b"".join(map(number, following)))
    return inside(8, integer(1, number_) + inside(3, data + b"".join(extra.values())))


def scenario(ego_valid: range = range(STEPS), name: str = "abc", **changed: Any) -> bytes:
    """An ego that drives 6 m/s along x, a car ahead, somebody on foot, two lanes in a row, one beside, a light."""
    times = b"".join(double(1, 0.1 * k) for k in range(STEPS))
    ego = [state(0.6 * k, 0.0, 0.0, 6.0, k in ego_valid) for k in range(STEPS)]
    car = [state(20.0 + 0.5 * k, 3.5, 0.1, 5.0, k >= 5) for k in range(STEPS)]
    walker = [state(30.0, -5.0 + 0.1 * k, math.pi / 2, 1.0, size=(0.6, 0.5)) for k in range(STEPS)]
    tracks = track(70, 1, car) + track(71, 1, ego) + track(72, 2, walker[: changed.get("walker", STEPS)])
    neighbor = inside(11, integer(1, 102))
    map_ = lane(100, [(-10.0, 0.0), (0.0, 0.0), (40.0, 0.0)], [101, 999], left=neighbor)
    map_ += lane(101, [(40.0, 0.0), (90.0, 0.0)], [], joins=integer(3, 1))
    map_ += lane(102, [(-10.0, 3.5), (40.0, 3.5)], [])
    map_ += lane(103, [(0.0, 50.0), (0.0, 50.2)], [])  # too short
    map_ += inside(8, integer(1, 200) + inside(7, integer(1, 102) + point(2, 35.0, 3.5)))
    corners = b"".join(point(1, *xy) for xy in ((20.0, -5.0), (23.0, -5.0), (23.0, 8.0), (20.0, 8.0)))
    map_ += inside(8, integer(1, 201) + inside(8, corners))
    lights = b""
    for k in range(STEPS):
        signal = integer(1, 100) + integer(2, 6 if k < 10 else 5 if k < 20 else 4) + point(3, 39.0, 0.0)
        lights += inside(7, inside(1, signal))
    own = integer(6, changed.get("own", 1))
    return inside(5, name.encode()) + times + integer(10, 10) + tracks + lights + map_ + own


def write(path: Path, *bodies: bytes) -> Path:
    path.write_bytes(b"".join(map(tfrecord.record, bodies)))
    return path


# checksums


@pytest.mark.parametrize(
    ("data", "crc"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (bytes([0xFF] * 32), 0x62A8AB43)],
)
def test_crc32c_of_known_data(data: bytes, crc: int) -> None:
    """The test vectors of RFC 3720, and the check value of the polynomial."""
    assert tfrecord.crc32c(data) == crc


def test_long_records_have_the_same_checksum_as_byte_by_byte() -> None:
    data = np.random.default_rng(0).integers(0, 256, 8 * tfrecord.LANES + 777, dtype=np.uint8).tobytes()
    rows, remainder = tfrecord.table().tolist(), 0xFFFFFFFF
    for byte in data:
        remainder = rows[(remainder ^ byte) & 0xFF] ^ (remainder >> 8)
    assert tfrecord.crc32c(data) == remainder ^ 0xFFFFFFFF
    changed = bytearray(data)
    changed[5000] ^= 1
    assert tfrecord.crc32c(bytes(changed)) != tfrecord.crc32c(data)


def test_records_are_read_in_order(tmp_path: Path) -> None:
    bodies = [b"one", b"", bytes(70_000)]
    assert list(tfrecord.records(write(tmp_path / "a", *bodies))) == bodies


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: d[:-1], "record 1: .* of which"),
        (lambda d: d + b"abc", "record 2: truncated, 3 bytes"),
        (lambda d: bytes([d[0] ^ 1]) + d[1:], "record 0: its length has a wrong checksum"),
        (lambda d: d[:14] + bytes([d[14] ^ 1]) + d[15:], "record 0: its contents have a wrong checksum"),
    ],
)
def test_altered_files_are_refused(spoil: Any, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", b"hello there", b"again")
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=rf"a\.tfrecord, {says}"):
        list(tfrecord.records(path))


# the wire format


def test_fields_of_a_message() -> None:
    data = (
        integer(1, 300)
        + integer(1, -5)
        + double(2, 2.5)
        + single(3, 0.5)
        + inside(4, b"hey")
        + inside(5, integer(1, 7))
    )
    data += inside(6, number(1) + number(300) + number(-1)) + inside(7, struct.pack("<2d", 1.5, -2.0))
    message = ProtoMessage(data)
    assert message.integers(1) == [300, -5] and message.integer(1) == -5 and message.integer(9, 4) == 4
    assert message.double(2) == 2.5 and message.single(3) == 0.5 and message.text(4) == "hey"
    assert [one.integer(1) for one in message.messages(5)] == [7]
    assert message.integers(6) == [1, 300, -1] and message.doubles(7) == [1.5, -2.0]
    assert message.messages(8) == [] and message.text(8) == "" and message.double(8, 3.0) == 3.0
    assert varint(b"\x96\x01", 0) == (150, 2)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80", "does not end"),
        (b"\xff" * 12, "does not end"),
        (number(4 << 3 | 2) + number(9) + b"abc", "field 4 has 9 bytes"),
        (number(4 << 3 | 3), "wire type 3 of field 4"),
        (number(4 << 3 | 1) + b"abc", "field 4 has 8 bytes"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        ProtoMessage(data)


# scenarios


def test_scenario_becomes_a_clip(tmp_path: Path) -> None:
    index = read_waymo([write(tmp_path / "a.tfrecord", scenario())], tmp_path / "log", slots=2)
    log = read_log(tmp_path / "log")
    (clip,) = log.meta.clips
    assert log.meta == index and (clip.name, clip.split, clip.steps, clip.map) == ("abc", "train", STEPS, "abc")
    # the origin is where the ego begins
    assert np.allclose(log.steps["x"], 0.6 * np.arange(STEPS)) and np.allclose(log.steps["y"], 0.0)
    assert np.allclose(log.steps["time_s"], 0.1 * np.arange(STEPS)) and np.allclose(log.steps["speed"], 6.0)
    # the walker comes nearer than the car: it has the first slot
    walker, car = log.agents[:, 0], log.agents[:, 1]
    assert walker["kind"].tolist() == [3] * STEPS and car["kind"].tolist() == [0] * 5 + [1] * (STEPS - 5)
    assert np.allclose(walker["y"], -5.0 + 0.1 * np.arange(STEPS), atol=1e-4)
    assert np.allclose(car["x"][5:], 20.0 + 0.5 * np.arange(5, STEPS), atol=1e-4)
    assert np.allclose(car["speed"][5:], 5.0, atol=1e-5) and np.allclose(walker["width"], 0.5)
    assert log.lights[:, 0].tolist() == [0] * 10 + [1] * 10 + [2] * 10
    roads = read_roads(log.map_file("abc"))
    assert roads["lane_sizes"].tolist() == [3, 2, 2] and roads["lane_next"].tolist() == [[0, 1]]
    assert roads["lane_left"].tolist() == [2, -1, -1] and roads["lane_junction"].tolist() == [False, True, False]
    assert roads["lane_control"].tolist() == [1, 0, 2] and roads["lane_light"].tolist() == [0, -1, -1]
    assert roads["lane_stop_m"].tolist() == [49.0, -1.0, 45.0]
    assert roads["lane_speed"][0] == pytest.approx(25.0 * 0.44704)
    assert roads["crosswalks"].tolist() == [[21.5, -5.0, 21.5, 8.0, 3.0]]


def test_sim_drives_in_a_scenario(tmp_path: Path) -> None:
    read_waymo([write(tmp_path / "a", scenario())], tmp_path / "log")
    sim = robotrl.make_sim("bev/warp", num_envs=1, log=tmp_path / "log", threads=1)
    names = sim.observation_spec["scalars"].names
    obs = sim.reset(options={"state_ids": [0]})
    scalars = dict(zip(names, obs["scalars"][0].tolist(), strict=True))
    assert scalars["light_green"] == 1.0 and scalars["speed_limit"] == pytest.approx(25.0 * 0.44704 / 15.0, abs=1e-4)
    assert scalars["left_lane"] == 1.0 and abs(scalars["lane_offset"]) < 1e-3
    # the light is 39 m ahead of where the ego begins, less half its length
    assert scalars["stop_line_distance"] == pytest.approx((39.0 - 2.25) / 60.0, abs=0.02)


def test_ten_scenarios_are_split_and_part_of_a_drive_is_cut(tmp_path: Path) -> None:
    bodies = [scenario(range(3, 25), name=f"s{k}") for k in range(10)]
    index = read_waymo([write(tmp_path / "a", *bodies[:6]), write(tmp_path / "b", *bodies[6:])], tmp_path / "log")
    assert [clip.split for clip in index.clips] == ["train"] * 8 + ["val", "test"]
    assert {clip.steps for clip in index.clips} == {22}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (scenario(own=3), "sdc_track_index is 3: expected 0 to 2"),
        (scenario(range(5)), "the ego is there in 5 steps: expected 10 or more in a row"),
        (scenario(walker=29), "track 72 has 29 states and the scenario 30 timestamps"),
        (b"\x80", "does not end"),
        (b"", "sdc_track_index is -1"),
    ],
)
def test_bad_scenarios_are_refused_by_name(body: bytes, says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", scenario(), body)
    with pytest.raises(DataError, match=rf"a\.tfrecord, scenario 1: .*{says}"):
        read_waymo([path], tmp_path / "log")
    assert not (tmp_path / "log" / "log.json").exists()


def test_scenario_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="clip 'abc' was added before"):
        read_waymo([write(tmp_path / "a", scenario(), scenario())], tmp_path / "log")
