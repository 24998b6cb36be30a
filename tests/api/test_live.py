"""The live viewer: a real viser server, what a client is sent, the clock, and the command."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

from robotrl.cli.main import main
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import make_sim

viser = pytest.importorskip("viser", reason="could not import 'viser'")

import msgspec  # noqa: E402
import zstandard  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

from robotrl.api.live import BareActor, LiveSession  # noqa: E402
from robotrl.api.live_view import LiveView, _primitive, checked_port  # noqa: E402
from robotrl.api.viewing import ViewRequest  # noqa: E402
from robotrl.report.server import HOST, free_port  # noqa: E402
from robotrl.rollout.evaluate import evaluate  # noqa: E402
from robotrl.spec.geometry import HasGeometry, SceneShape  # noqa: E402
from tests.kits.refusals import raises_naming  # noqa: E402


def session_of(name: str, num_envs: int = 2, actions="random", **options) -> LiveSession:
    sim = make_sim(name, num_envs=num_envs, seed=0, **options)
    return LiveSession(sim, BareActor(sim.action_spec, num_envs, actions, 0), name)


@pytest.fixture(scope="module")
def hopper():
    view = LiveView(session_of("mujoco/hopper"), "hopper", 0)
    yield view
    view.close()


def messages(view: LiveView, seconds: float) -> list[dict]:
    """Messages that the server sends to a new client within some time."""
    found: list[dict] = []
    end = time.monotonic() + seconds
    with connect(f"ws://{HOST}:{view.port}", subprotocols=[f"viser-v{viser.__version__}"], max_size=None) as client:
        while (left := end - time.monotonic()) > 0:
            try:
                data = client.recv(timeout=left)
            except TimeoutError:
                break
            # sizes of the list without and with compression, the list, and arrays behind it
            size = int.from_bytes(data[8:16], "little")
            found += msgspec.msgpack.decode(zstandard.decompress(data[16 : 16 + size]))["messages"]
    return found


def test_the_scene_of_a_client_has_the_bodies_and_moves(hopper):
    runner = threading.Thread(target=hopper.run, args=(150,))
    runner.start()
    sent = messages(hopper, 2.0)
    runner.join()
    names = {one.get("name") for one in sent}
    assert {"/torso", "/thigh", "/leg", "/foot"} <= names
    assert any(str(name).startswith("/torso/torso_geom") for name in names)
    torso = [
        tuple(one["position"]) for one in sent if one.get("type") == "SetPositionMessage" and one["name"] == "/torso"
    ]
    assert len(set(torso)) > 5, "the torso moves"


def test_poses_are_those_of_the_sim(hopper):
    hopper.pause()
    hopper.session.step()
    hopper.draw()
    poses = hopper.session.sim.body_poses(0)
    for handle, pos, quat in zip(hopper._bodies, poses.pos_w, poses.quat_w, strict=True):
        np.testing.assert_allclose(handle.position, pos)
        np.testing.assert_allclose(handle.wxyz, quat)
    body = hopper.session.sim.core.physics.batch.bind("xpos")[0]
    np.testing.assert_allclose(poses.pos_w, body)
    assert hopper.session.geometry.body_names[1] == "torso" and hopper.session.geometry.tracked_body == 1
    hopper.pause(False)


def test_pause_step_reset_env_and_speed(hopper):
    session = hopper.session
    hopper.ask(session.reset)
    hopper.run(1)
    assert session.steps.tolist() == [1, 1]
    hopper.pause()
    hopper.ask(hopper._step_once)
    stopper = threading.Timer(0.3, hopper.stop)
    stopper.start()
    hopper.run()
    hopper._stop.clear()
    assert session.steps.tolist() == [2, 2], "paused: one step, that was asked for"
    hopper.ask(lambda: hopper.choose(1))
    hopper.pause(False)
    hopper.run(1)
    assert hopper.env == 1
    assert f"start id {session.start_ids[1]}" in hopper.status()
    with raises_naming(ConfigError, "env", 2, 0, 1):
        hopper.choose(2)
    hopper.choose(0)
    # 0.008 s a step at half speed: 25 steps take 0.4 s
    hopper._speed.value = 0.5
    began = time.monotonic()
    hopper.run(25)
    assert time.monotonic() - began > 0.35
    hopper._speed.value = 1.0


def test_a_session_counts_episodes_as_an_evaluation_does():
    """The expert of reach, by start: the same successes, lengths and returns."""
    sim = make_sim("mujoco/reach", num_envs=2, seed=0)
    session = LiveSession(sim, ViewRequest(sim="mujoco/reach").actor(sim), "mujoco/reach")
    ended = {}
    for _ in range(120):
        before, count = session.start_ids.copy(), list(session.ended)
        session.step()
        for env in range(2):
            if session.ended[env] is not count[env]:
                ended.setdefault(int(before[env]), session.ended[env])
    ids = list(sim.state_ids("val")[:4])
    assert set(ids) <= set(ended)
    result = evaluate(ViewRequest(sim="mujoco/reach").actor(sim), sim, ids=ids)
    for i, won, length, ret in zip(ids, result.success, result.length, result.returns, strict=True):
        assert ended[i].success == won and ended[i].steps == length and ended[i].ret == pytest.approx(ret)
    session.reset()
    assert session.steps.tolist() == [0, 0] and (session.start_ids >= 0).all()


def test_instructions_are_shown():
    view = LiveView(session_of("mujoco/tabletop", 1, "zero"), "tabletop", 0)
    try:
        view.run(2)
        assert view.session.sim.instructions()[0] in view.status()
        assert "step 2" in view.status()
    finally:
        view.close()


def test_shapes_have_their_sizes():
    def extents(kind, size):
        vertices, faces = _primitive(SceneShape("a", 0, kind, size, (1, 1, 1, 1), (0, 0, 0), (1, 0, 0, 0)))
        assert faces.max() < len(vertices)
        return np.stack([vertices.min(0), vertices.max(0)])

    for kind, size, half in (
        ("box", (1, 2, 3), (1, 2, 3)),
        ("sphere", (2, 0, 0), (2, 2, 2)),
        ("ellipsoid", (1, 2, 3), (1, 2, 3)),
        ("cylinder", (1, 2, 0), (1, 1, 2)),
        ("capsule", (1, 2, 0), (1, 1, 3)),
    ):
        np.testing.assert_allclose(extents(kind, size), [np.negative(half), half], atol=0.03)


def test_every_mujoco_sim_gives_its_geometry():
    for name in ("mujoco/quadruped-velocity", "mujoco/peg-insert", "mujoco/tabletop"):
        sim = make_sim(name, num_envs=2, seed=0)
        sim.reset(seed=0)
        assert isinstance(sim, HasGeometry)
        shapes, poses = sim.geometry(1), sim.body_poses(1)
        assert len(poses.pos_w) == len(sim.body_names) > max(shape.body for shape in shapes)
        assert len({shape.name for shape in shapes}) == len(shapes) > 5
        np.testing.assert_allclose(np.linalg.norm(poses.quat_w, axis=1), 1)
        sim.close()


def test_a_taken_port_names_the_nearest_free_one(capsys):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"--port is {port}: it is taken .* expected a free port: {free_port(port)}, or 0"
        ):
            checked_port(port)
        assert free_port(port) > port
        assert main(["view", "mujoco/hopper", "--live", "--port", str(port)]) == 2
        assert f"--port is {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mujoco/hoper"], "sim 'mujoco/hoper' is unknown: did you mean 'mujoco/hopper'?"),
        ([], "missing: --sim"),
        (["mujoco/hopper", "--envs", "0"], "--envs is 0: expected 1 or more"),
        (["mujoco/hopper", "--out", "x.html"], "--out is x.html: expected none beside --live"),
        (["bev/drive"], "sim 'bev/drive' lacks HasGeometry"),
        (["--expert", "--sim", "mujoco/hopper"], "lacks HasExpert"),
    ],
)
def test_a_mistake_is_answered(arguments, words, capsys):
    assert main(["view", *arguments, "--live"]) == 2
    assert words in capsys.readouterr().err


def test_a_sim_without_geometry_is_refused():
    sim = make_sim("gym/CartPole-v1", num_envs=1)
    with pytest.raises(CapabilityError, match="lacks HasGeometry"):
        LiveSession(sim, BareActor(sim.action_spec, 1, "zero", 0), "gym/CartPole-v1")
    with pytest.raises(ConfigError, match="--actions 'none' is unknown"):
        BareActor(sim.action_spec, 1, "none", 0)
    sim.close()


def test_the_command_serves_until_ctrl_c():
    command = [sys.executable, "-m", "robotrl.cli", "view", "mujoco/hopper", "--live", "--port", "0", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = re.fullmatch(r"look at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends\)\n", process.stdout.readline())[1]
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert b"<html" in answer.read().lower()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    finally:
        process.kill()
