"""Cameras on the robot's link: frames in shared memory, and a policy that sees in `robotrl deploy`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.manifest import parse
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.control.frames import frames_path
from robotrl.deploy.control.log import read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Mode, Reason
from robotrl.deploy.robots.cameras import (
    AREA_BYTES,
    SLOTS,
    CameraSlots,
    cameras_of,
    packed_numbers,
    slot_bytes,
    unpacked_numbers,
)
from robotrl.deploy.robots.link import Link, RobotFault, Status, message
from robotrl.deploy.servo.observing import NO_OBSERVATION, Observer
from robotrl.errors import ConfigError, DataError
from robotrl.spec import Spec
from tests.kits import camera_policy
from tests.kits.camera_cart import COLUMNS, PLACES, CameraCart, picture
from tests.kits.deploy_kit import patient
from tests.kits.real_time import undisturbed

CART = "sim:tests.kits.camera_cart:make"
SHAPE = (2, 3, 3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return camera_policy.bundle(tmp_path_factory.mktemp("sight"))


def camera() -> tuple[memoryview, CameraSlots]:
    memory = memoryview(bytearray(64 + SLOTS * slot_bytes(18)))
    return memory, CameraSlots(memory, 0, "front", SHAPE)


def frame(value: int) -> np.ndarray:
    return np.full(SHAPE, value, np.uint8)


def test_frames_are_kept_for_a_few_more() -> None:
    memory, writer = camera()
    reader = CameraSlots(memory, 0, "front", SHAPE)
    assert reader.newest() is None and reader.read(1) is None and reader.read(0) is None
    for i in range(1, SLOTS + 3):
        writer.write(frame(i), stamp_ns=10 * i, episode=7)
        newest = reader.newest()
        assert newest is not None and (newest.number, newest.stamp_ns, newest.episode) == (i, 10 * i, 7)
    assert reader.read(2) is None, "overwritten"
    for i in range(3, SLOTS + 3):
        found = reader.read(i)
        assert found is not None and (found == i).all() and found.shape == SHAPE


def test_a_damaged_frame_is_not_read() -> None:
    memory, writer = camera()
    writer.write(frame(1), 0, 0)
    assert writer.read(1) is not None
    memory[64 + slot_bytes(18) + 64] ^= 255
    assert writer.read(1) is None


@pytest.mark.parametrize("wrong", [np.zeros(SHAPE, np.float32), np.zeros((2, 3, 4), np.uint8)])
def test_a_frame_of_another_kind_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"camera 'front' gave .*: expected uint8 \(2, 3, 3\)"):
        camera()[1].write(wrong, 0, 0)


def test_cameras_lie_one_after_the_other_and_must_fit() -> None:
    def spec(shape: tuple[int, ...], dtype: str) -> Spec:
        ones = (1.0,) * shape[-1]
        return Spec(
            shape, tuple(map(str, range(shape[-1]))), ("1",) * shape[-1], ones, tuple(9 * x for x in ones), dtype
        )

    memory = memoryview(bytearray(AREA_BYTES))
    small, numbers = spec((4, 4, 3), "uint8"), spec((5,), "float32")
    found = cameras_of({"left": small, "joints": numbers, "right": small}, memory, 0)
    assert list(found) == ["left", "right"]
    found["left"].write(np.full((4, 4, 3), 1, np.uint8), 0, 0)
    found["right"].write(np.full((4, 4, 3), 2, np.uint8), 0, 0)
    left = found["left"].read(1)
    assert left is not None and (left == 1).all()
    with pytest.raises(ConfigError, match=r"camera 'huge' has frames of \(4000, 4000, 3\): .* do not fit"):
        cameras_of({"huge": spec((4000, 4000, 3), "uint8")}, memory, 0)


def test_whole_numbers_keep_their_bits_in_floats() -> None:
    numbers = [0, 1, -1, 2**62 + 3, 2**32 - 1, int(np.float32([np.nan]).view(np.int32)[0])]
    floats = packed_numbers(numbers)
    assert floats.dtype == np.float32 and len(floats) == 2 * len(numbers)
    assert unpacked_numbers(np.concatenate([floats])) == numbers


def test_the_picture_shows_both_places() -> None:
    """By hand: the intensity-weighted mean of the columns' places."""
    image = picture(0.3, -0.7) / 255.0
    assert image.shape == (4, COLUMNS, 3)
    assert (image[0, :, 0] * PLACES).sum() == pytest.approx(0.3, abs=1e-3)
    assert (image[0, :, 1] * PLACES).sum() == pytest.approx(-0.7, abs=1e-3)


def test_an_episode_waits_for_an_observation_and_a_frame_of_it(bundle: Path) -> None:
    manifest = parse((bundle / "manifest.json").read_bytes())
    info = RobotInfo(CameraCart.observation_spec, CameraCart.action_spec, 0.02, 0.002, None, range(1))
    with contextlib.closing(Link.create()) as link:
        observer = Observer(link, info, wire(manifest, info))
        (camera,) = link.cameras(info.observation_spec).values()
        pixels = np.zeros(camera.shape, np.uint8)
        assert observer.missing(1) == NO_OBSERVATION
        speed = np.zeros(1, np.float32)
        link.observations.write(message(Status.READY, tick=0, episode=1, state_id=0, values=speed))
        assert observer.missing(1) == 0, "no frame of the first camera"
        camera.write(pixels, stamp_ns=5, episode=0)
        assert observer.missing(1) == 0, "one of the episode before"
        camera.write(pixels, stamp_ns=6, episode=1)
        assert observer.missing(1) is None
        opened = observer.open_tick(0, 10, 1)
        assert opened.complete and opened.stamp_ns == 6, "the oldest part counts"
        assert observer.missing(2) == NO_OBSERVATION


@undisturbed
def test_a_policy_that_sees_controls_a_robot_and_replays_exactly(
    bundle: Path, tmp_path: Path, runtime: Runtime
) -> None:
    """The robot lists its channels in another order, and sends frames more rarely than numbers."""
    log = tmp_path / "log.jsonl"
    report = run_control(bundle, CART, episodes=2, log=log, runtime=runtime)
    assert report.successes == 2
    assert (report.safety.held, report.safety.damped) == (0, 0)
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick"]
    asked = [r for r in ticks if r["asked"] >= 0]
    assert [r["mode"] for r in ticks if r["tick"] == 0] == [Mode.ACTIVE] * 2, "an episode begins with its first frame"
    assert all(r["frames"]["image"]["at"] is not None for r in asked)
    assert all(r["frames"]["image"]["at"] is None for r in ticks if r["asked"] < 0)
    again = replay(log, bundle)
    assert again.decisions == len(asked) > 10
    assert again.policy_max_abs == again.sent_max_abs == 0.0
    # the pixels of another run, or damaged ones, are refused
    place = frames_path(log)
    data = bytearray(place.read_bytes())
    data[len(b"robotrl frames 1\n") :] = bytes(len(data) - len(b"robotrl frames 1\n"))
    place.write_bytes(bytes(data))
    with pytest.raises(
        DataError, match=r"frames '.*log\.jsonl\.frames' hold other pixels at byte 17 than the log states"
    ):
        replay(log, bundle)
    place.write_bytes(bytes(data[:100]))
    with pytest.raises(DataError, match=r"frames '.*log\.jsonl\.frames' end at byte 100: expected a frame of 384"):
        replay(log, bundle)


@pytest.mark.parametrize(
    ("fault", "reason", "says"),
    [
        ("CAMERA_SILENT_AT", Reason.OBS_STALE, r"the last observation is 0\.\d+ s old"),
        ("CAMERA_STUCK_AT", Reason.OBS_FROZEN, r"observation 'image' stands still while the robot is told to move"),
    ],
)
@undisturbed
def test_a_camera_that_is_silent_or_stuck_holds_then_damps(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    reason: Reason,
    says: str,
    runtime: Runtime,
) -> None:
    monkeypatch.setenv(fault, "100")
    log = tmp_path / "log.jsonl"
    with pytest.raises(RobotFault, match=says):
        run_control(bundle, CART, episodes=1, log=log, runtime=runtime)
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick"]
    assert [r["mode"] for r in ticks][-6:] == [Mode.ACTIVE, *[Mode.HOLD] * 4, Mode.DAMP]
    assert all(Reason(r["reason"]) & reason for r in ticks[-5:])
    assert replay(log, bundle).sent_max_abs == 0.0


def test_what_cannot_be_is_refused_before_anything_moves(
    bundle: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, runtime: Runtime
) -> None:
    blind = patient("goal", tmp_path_factory.getbasetemp())
    with pytest.raises(ConfigError, match="robot has no observation 'image' of the bundle"):
        run_control(bundle, "sim:tests.kits.deploy_cart:make_cart", episodes=1, runtime=runtime)
    with pytest.raises(ConfigError, match=r"the shadow .* sees images \(image\)"):
        run_control(bundle, CART, episodes=1, shadow=bundle, runtime=runtime)
    assert blind.exists()
    log = tmp_path / "log.jsonl"
    frames_path(log).write_text(json.dumps({"years": "of work"}))
    with pytest.raises(DataError, match="is no file of a control log's frames"):
        run_control(bundle, CART, episodes=1, log=log, runtime=runtime)
    assert "years" in frames_path(log).read_text()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("float", r"camera 'image' gave float32 \(4, 32, 3\): expected uint8"),
        ("cut", r"camera 'image' gave uint8 \(2, 32, 3\): expected uint8 \(4, 32, 3\)"),
        ("missing", r"the robot's observe lacks 'speed': expected it of shape \(1,\); it gave"),
        ("longer", r"the robot's observe gave 'speed' of shape \(2,\): expected \(1,\)"),
    ],
)
def test_a_robot_that_observes_otherwise_than_it_says_ends_with_the_reason(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, fault: str, says: str
) -> None:
    monkeypatch.setenv("CAMERA_ODD", fault)
    with pytest.raises(RobotFault, match=says):
        run_control(bundle, "sim:tests.kits.camera_cart:make_odd", episodes=1)
