"""A bundle as AlpaSim's driver, driven by the contract's own client over real gRPC."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from carla_driver_interface.driver import CameraFrame
from carla_driver_interface.geometry import Pose, Trajectory, waypoints_to_proto
from carla_driver_interface.inprocess import in_process_channel
from carla_driver_interface.protocol import (
    CarlaDriveDebugInfo,
    CarlaRendererData,
    DriveRequest,
    DriveSessionCloseRequest,
    DriveSessionRequest,
    DynamicState,
    EgodriverServiceStub,
    RolloutCameraImage,
    RolloutEgoTrajectory,
    Route,
    RouteRequest,
    TrafficLightState,
    Vec3,
)
from carla_driver_interface.server import serving
from carla_driver_interface.testing import FakeCamera, FakeLoop
from PIL import Image

import tests.kits.deploy_kit as kit
from robotrl.deploy.driver.bundle_driver import DECISIONS, BundleDriver, braking, in_rig
from robotrl.deploy.driver.sensing import DriverCfg, light_of, limit_of, resized, users_of
from robotrl.deploy.driver.serving import LOG_BEGINS, Runtime, check_address
from robotrl.errors import ConfigError, DataError
from robotrl.sims.driving import tables
from robotrl.sims.driving.geometry import REAR_M
from robotrl.sims.driving.reported import phases
from robotrl.sims.driving.reported.scene import ReportedEgo
from tests.kits import driver_kit

CAMERA = FakeCamera(width=64, height=48)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("drivers")
    return {
        "controls": driver_kit.exported(root / "controls", noisy=True),
        "trajectory": driver_kit.exported(root / "trajectory", "trajectory"),
        "seeing": driver_kit.exported(root / "seeing", sees=True),
    }


class Client:
    """One session of a driver, asked call by call."""

    def __init__(self, place: int | grpc.Channel, seed: int = 0, camera: bool = False) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{place}") if isinstance(place, int) else place
        self.stub, self.session = EgodriverServiceStub(self.channel), str(uuid.uuid4())
        request = DriveSessionRequest(session_uuid=self.session, random_seed=seed)
        if camera:
            request.rollout_spec.vehicle.available_cameras.append(CAMERA.available_camera())
        self.stub.start_session(request)

    def close(self) -> None:
        self.channel.close()

    def moves(self, time_us: int, pose: Pose, speed: float) -> None:
        message = RolloutEgoTrajectory(session_uuid=self.session)
        message.trajectory.CopyFrom(Trajectory([time_us], [pose]).to_proto())
        message.dynamic_states.append(DynamicState(linear_velocity=Vec3(x=speed, y=0.0, z=0.0)))
        self.stub.submit_egomotion_observation(message)

    def routed(self, time_us: int, points: np.ndarray) -> None:
        route = Route(timestamp_us=time_us, waypoints=waypoints_to_proto(points))
        self.stub.submit_route(RouteRequest(session_uuid=self.session, route=route))

    def sees(self, time_us: int, content: bytes) -> None:
        message = RolloutCameraImage(session_uuid=self.session)
        message.camera_image.logical_id = CAMERA.logical_id
        message.camera_image.frame_start_us = message.camera_image.frame_end_us = time_us
        message.camera_image.image_bytes = content
        self.stub.submit_image_observation(message)

    def drive(self, time_us: int, step_us: int = 100_000, data: CarlaRendererData | None = None) -> Trajectory:
        told = b"" if data is None else data.SerializeToString()
        request = DriveRequest(
            session_uuid=self.session, time_now_us=time_us, time_query_us=time_us + step_us, renderer_data=told
        )
        answer = self.stub.drive(request)
        self.debug_info = answer.debug_info.unstructured_debug_info
        return Trajectory.from_proto(answer.trajectory)

    @property
    def told(self) -> dict[str, float]:
        """Scalars of the last answer, of a driver for a CARLA runtime."""
        return dict(CarlaDriveDebugInfo.FromString(self.debug_info).scalars)


STRAIGHT = np.stack([np.arange(0.0, 100.0, 2.0), np.zeros(50), np.zeros(50)], axis=1)


@contextmanager
def served(
    bundle: Path, cfg: DriverCfg | None = None, mode: Runtime = "alpasim"
) -> Generator[tuple[BundleDriver, int], None, None]:
    with (
        closing(BundleDriver(bundle, cfg or DriverCfg())) as driver,
        serving(driver, port=0, host="127.0.0.1", mode=mode) as port,
    ):
        yield driver, port


def speed_at(plan: Trajectory, k: int) -> float:
    """Speed between two poses of a plan, m/s."""
    step_s = (plan.timestamps_us[k + 1] - plan.timestamps_us[k]) * 1e-6
    return float(np.linalg.norm(plan.positions[k + 1] - plan.positions[k]) / step_s)


@pytest.mark.parametrize("mode", ["alpasim", "carla"])
def test_it_drives_the_loop_of_the_contract(bundles: dict[str, Path], mode: Runtime) -> None:
    with served(bundles["controls"], mode=mode) as (driver, port):
        with FakeLoop(
            f"127.0.0.1:{port}", [CAMERA], initial_speed_mps=5.0, initial_lateral_offset_m=1.0, initial_heading_rad=0.1
        ) as loop:
            result = loop.run(80)
        assert result.steps == 80 and not result.terminated_by_policy
        assert abs(result.lateral_offsets_m[-1]) < 0.05, "in the middle of its lane"
        # 10 m/s where the simulator tells no limit
        assert 9.0 < result.speeds_mps[-1] < 10.2
        assert driver.counts == (80, 0)


def test_a_trajectory_is_followed_over_its_whole_length(bundles: dict[str, Path]) -> None:
    with served(bundles["trajectory"]) as (_, port), closing(Client(port)) as client:
        client.moves(0, Pose.from_xyz_yaw(3.0, 4.0, 1.0, 0.5), 6.0)
        client.routed(0, STRAIGHT)
        plan = client.drive(0)
        assert plan.timestamps_us == list(range(0, 4_000_001, 100_000))
        # straight ahead at 6 m/s from the rig's pose, at its height
        far = plan.positions[-1] - plan.positions[0]
        np.testing.assert_allclose(far, [24.0 * np.cos(0.5), 24.0 * np.sin(0.5), 0.0], atol=0.3)
        assert plan.poses[20].yaw == pytest.approx(0.5, abs=0.01)


def test_a_plan_counts_from_the_time_of_the_egomotion(bundles: dict[str, Path], tmp_path: Path) -> None:
    """A call 0.2 s after the egomotion: the car is on its way since then, and each pose has its own time."""
    log = tmp_path / "driver.jsonl"
    with (
        closing(BundleDriver(bundles["trajectory"], DriverCfg(), log=log)) as driver,
        closing(in_process_channel(driver, mode="carla")) as channel,
    ):
        client = Client(channel, seed=9)
        assert len(client.drive(50_000)) == 0
        client.moves(100_000, Pose.from_xyz_yaw(0.0, 0.0, 0.0, 0.0), 6.0)
        client.routed(80_000, STRAIGHT)
        plan = client.drive(300_000, step_us=500_000)
        # the contract leads the answer by the last reported pose, whatever its time
        assert plan.timestamps_us == list(range(300_000, 4_300_001, 100_000)) and plan.positions[0, 0] == 0.0
        since_s = (np.array(plan.timestamps_us[1:]) - 100_000) * 1e-6
        np.testing.assert_allclose(plan.positions[1:, 0], 6.0 * since_s, atol=0.05)
        told = client.told
        assert told["egomotion_age_ms"] == 200.0 and told["route_age_ms"] == 220.0 and told["decision"] == 0.0
        client.drive(2_000_000)
        assert client.told["braked"] == 1.0 and client.told["egomotion_age_ms"] == 1900.0
        client.stub.close_session(DriveSessionCloseRequest(session_uuid=client.session))
    header, session, *drives, end = [json.loads(line) for line in log.read_text().splitlines()]
    assert (header["kind"], header["bundle_id"]) == ("driver_header", driver.manifest.bundle_id)
    assert (session["session"], session["random_seed"]) == (client.session, 9)
    assert (end["kind"], end["planned"], end["braked"]) == ("session_end", 1, 2)
    first, planned, old = drives
    assert [line["drive"] for line in drives] == [0, 1, 2] and {line["session"] for line in drives} == {client.session}
    assert first["egomotion_us"] is None and first["plan_us"] is None and "no egomotion" in first["braked"]
    assert planned["braked"] is None and planned["decision"] == 9 * DECISIONS
    stamps = ("time_now_us", "time_query_us", "egomotion_us", "route_us", "plan_us")
    assert [planned[name] for name in stamps] == [300_000, 800_000, 100_000, 80_000, [200_000, 4_300_000]]
    assert "1.90 s old" in old["braked"] and old["plan_us"][0] == 2_100_000


def test_users_lights_and_limits_of_a_carla_runtime(bundles: dict[str, Path]) -> None:
    data = CarlaRendererData(speed_limit_mps=5.0)
    assert limit_of(data, DriverCfg()) == 5.0 and limit_of(None, DriverCfg(limit_mps=7.0)) == 7.0
    assert light_of(data) is None
    data.ego_traffic_light = TrafficLightState.TRAFFIC_LIGHT_STATE_RED
    data.ego_traffic_light_distance_m = 30.0
    light = light_of(data)
    assert light is not None and light.state == phases.RED and light.ahead_m == pytest.approx(30.0 - REAR_M)
    data.ego_traffic_light_distance_m = -1.0
    assert light_of(data) is None
    for kind, x, size in (("vehicle.audi.tt", 20.0, (4.2, 1.9)), ("vehicle.bike", 9.0, (1.6, 0.6))):
        actor = data.actors.add(type_id=kind)
        actor.pose_local_to_aabb.CopyFrom(Pose.from_xyz_yaw(x, 0.0, 0.7, 0.0).to_proto())
        actor.aabb.size_x, actor.aabb.size_y = size
        actor.dynamic_state.linear_velocity.x, actor.dynamic_state.linear_velocity.y = 3.0, 4.0
    data.actors.add(type_id="sensor.camera")
    car, bike = users_of(data)
    assert (car.kind, bike.kind) == (tables.CAR, tables.CYCLIST)
    assert car[1:] == pytest.approx((20.0, 0.0, 0.0, 5.0, 0.0, 4.2, 1.9))
    with served(bundles["controls"], mode="carla") as (_, port), closing(Client(port)) as client:
        client.moves(0, Pose.from_xyz_yaw(0.0, 0.0, 0.0, 0.0), 6.0)
        client.routed(0, STRAIGHT)
        free = client.drive(0)
        standing = CarlaRendererData(speed_limit_mps=10.0)
        wall = standing.actors.add(type_id="vehicle.truck")
        wall.pose_local_to_aabb.CopyFrom(Pose.from_xyz_yaw(14.0, 0.0, 1.0, 0.0).to_proto())
        wall.aabb.size_x, wall.aabb.size_y = 8.0, 2.5
        blocked = client.drive(0, step_us=500_000, data=standing)
        assert speed_at(free, 0) > 6.0 > speed_at(blocked, 3)


def test_the_same_session_gives_the_same_plan_and_another_seed_another(bundles: dict[str, Path]) -> None:
    plans = []
    with served(bundles["controls"]) as (_, port):
        for seed in (7, 7, 8):
            with closing(Client(port, seed)) as client:
                client.moves(0, Pose.from_xyz_yaw(0.0, 0.0, 0.0, 0.0), 6.0)
                client.routed(0, STRAIGHT)
                plans.append([client.drive(0).positions, client.drive(0).positions])
    np.testing.assert_array_equal(plans[0][0], plans[1][0])
    assert not np.array_equal(plans[0][0], plans[2][0]), "another seed"
    assert not np.array_equal(plans[0][0], plans[0][1]), "another decision"


def test_a_scene_that_is_incomplete_is_answered_by_braking(bundles: dict[str, Path]) -> None:
    with served(bundles["controls"]) as (driver, port), closing(Client(port)) as client:
        assert len(client.drive(0)) == 0, "nothing is known of the ego: hold"
        client.moves(0, Pose.from_xyz_yaw(0.0, 0.0, 0.0, 0.0), 6.0)
        for points in (None, np.zeros((1, 3)), STRAIGHT[:3], np.full((4, 3), np.nan)):
            if points is not None:
                client.routed(0, points)
            plan = client.drive(0)
            # 6 m/s at 4.95 m/s^2
            assert plan.positions[-1, 0] == pytest.approx(6.0**2 / (2 * 4.95), abs=1e-3)
            assert plan.positions[-1, 1] == 0.0
        client.routed(0, STRAIGHT)
        assert speed_at(client.drive(0), 0) > 5.5
        assert client.drive(0, step_us=3_600_000_000).positions[-1, 0] < 4.0, "a step of an hour"
        client.routed(0, STRAIGHT + np.array([0.0, 500.0, 0.0]))
        assert client.drive(0).positions[-1, 0] < 4.0, "the route of somebody else"
        client.routed(0, STRAIGHT)
        old = client.drive(900_000)
        assert old.positions[-1, 0] < 4.0, "egomotion of 0.9 s ago"
        client.moves(1_000_000, Pose.from_xyz_yaw(0.0, 0.0, 0.0, 0.0), float("nan"))
        assert len(client.drive(1_000_000)) == 1, "the present pose alone: hold"
        assert driver.counts.planned == 1 and driver.counts.braked == 9


def jpeg(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((48, 64, 3), level, np.uint8)).save(buffer, format="JPEG")
    return buffer.getvalue()


def test_cameras_reach_the_policy(bundles: dict[str, Path]) -> None:
    cfg = DriverCfg(cameras=(("front", CAMERA.logical_id),))
    with served(bundles["seeing"], cfg) as (driver, port):
        with pytest.raises(grpc.RpcError) as refused:
            Client(port)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "no camera 'camera_front' for 'front'" in str(refused.value.details())
        with closing(Client(port, camera=True)) as client:
            client.moves(0, Pose.from_xyz_yaw(0.0, 0.0, 0.0, 0.0), 6.0)
            client.routed(0, STRAIGHT)
            assert client.drive(0).positions[-1, 0] < 4.0, "no frame yet"
            speeds = []
            for level in (0, 255):
                client.sees(0, jpeg(level))
                speeds.append(speed_at(client.drive(0), 0))
            assert speeds[0] == pytest.approx(6.0, abs=0.02) and speeds[1] > speeds[0] + 0.1
            client.sees(0, b"no image")
            assert client.drive(0).positions[-1, 0] < 4.0
            assert driver.counts == (2, 2)
    frame = CameraFrame("front", 0, 0, jpeg(100))
    assert resized(frame, (24, 32, 3)).shape == (24, 32, 3) and abs(int(resized(frame, (24, 32, 3)).mean()) - 100) < 3


def test_settings_and_bundles_that_do_not_fit(
    bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other, _ = kit.made("flow", tmp_path_factory.getbasetemp())
    with pytest.raises(DataError, match=r"this bundle's actions are .*: expected those of a driving policy"):
        BundleDriver(other, DriverCfg())
    with pytest.raises(ConfigError, match=r"no camera is named for 'front': expected --driver.cameras front=NAME"):
        BundleDriver(bundles["seeing"], DriverCfg())
    with pytest.raises(ConfigError, match=r"names 'frnt': did you mean 'front'\? expected front"):
        BundleDriver(bundles["seeing"], DriverCfg(cameras=(("frnt", "camera_front"),)))
    with pytest.raises(ConfigError, match=r"driver.limit_mps is -1"):
        BundleDriver(bundles["controls"], DriverCfg(limit_mps=-1.0))
    for host in ("0.0.0.0", "192.168.1.5", "::"):
        with pytest.raises(ConfigError, match="has no token"):
            check_address(host, allow_network=False)
        check_address(host, allow_network=True)
    for host in ("127.0.0.1", "::1", "localhost", "unix:///tmp/driver.sock"):
        check_address(host, allow_network=False)


def test_braking_stops_and_stays() -> None:
    poses = braking(ReportedEgo(1.0, 2.0, np.pi / 2, 9.9), 4.0)
    # 9.9 m/s at 4.95 m/s^2: 2 s and 9.9 m to the left of x
    np.testing.assert_allclose(poses[[19, 39]], [[1.0, 2.0 + 9.9, np.pi / 2]] * 2, atol=1e-9)
    plan = in_rig(poses, Pose.from_xyz_yaw(1.0, 2.0 - REAR_M, 0.3, np.pi / 2), 500)
    np.testing.assert_allclose(plan.positions[-1], [9.9, 0.0, 0.0], atol=1e-9)
    assert plan.timestamps_us[0] == 100_500


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_command_serves_until_sigterm(bundles: dict[str, Path], tmp_path: Path) -> None:
    log = tmp_path / "driver.jsonl"
    command = [sys.executable, "-m", "robotrl.cli", "serve", str(bundles["controls"]), "--as", "driver"]
    options = ["--port", "0", "--driver.log", str(log)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    assert re.fullmatch(r"bundle [0-9a-f]{12}, driver for alpasim, no token\n", first)
    found = re.fullmatch(r"serving egodriver at 127\.0\.0\.1:(\d+)\n", second)
    assert found
    with FakeLoop(f"127.0.0.1:{found[1]}", [CAMERA], initial_speed_mps=5.0) as loop:
        assert loop.run(5).steps == 5
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "stopped; planned 5, braked 0\n"), errors
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds == ["driver_header", "session", *["drive"] * 5, "session_end"]
    assert LOG_BEGINS.match(log.read_bytes())
    wrong = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode != 0 and "this contract has no token" in wrong.stderr
    wrong = subprocess.run([*command, "--driver.cameras", "front"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode != 0 and "expected KEY=NAME" in wrong.stderr
    taken = free_port()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", taken))
        holder.listen()
        wrong = subprocess.run([*command, "--port", str(taken)], capture_output=True, text=True, timeout=120)
    assert wrong.returncode != 0 and "cannot be bound" in wrong.stderr
