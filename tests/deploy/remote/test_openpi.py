"""openpi's client gets its chunks from our server: by what the released package sends, and by the package itself."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.remote.openpi import OpenpiKeys, unpack_observation
from robotrl.deploy.remote.wire import WireError
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError
from tests.kits import deploy_kit, serve_kit
from tests.kits.paths_kit import KITS

MESSAGES = {
    name: base64.b64decode(text)
    for name, text in json.loads((Path(__file__).parent / "openpi_messages.json").read_text()).items()
}
"""Recorded from openpi-client 0.1.2 by `tests/kits/openpi_side.py record`."""
RAMP = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
STATE = np.float32([0.1, 0.2, 0.3, 0.0])
PYTHON = os.environ.get("ROBOTRL_OPENPI_PYTHON", "")


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve_kit.seer_bundle(tmp_path_factory.mktemp("seer"))


def wanted(seer: Path, *words: int) -> np.ndarray:
    obs = {"state": STATE, "image": RAMP, "instruction": np.int32([*words, 0, 0][:2])}
    return Controller.load(seer).infer(obs, 0)


def asked(socket: ClientConnection, name: str) -> Any:
    socket.send(MESSAGES[name])
    answer = socket.recv(timeout=30)
    return answer if isinstance(answer, str) else msgpack.unpackb(answer)


def actions(answer: dict[str, Any]) -> np.ndarray:
    packed = answer["actions"]
    assert packed[b"__ndarray__"] is True
    return np.frombuffer(packed[b"data"], packed[b"dtype"]).reshape(packed[b"shape"])


def test_recorded_messages_of_the_released_client_are_answered(seer: Path) -> None:
    with serve_kit.served(seer, "--map", "observation/unused=") as server:
        with connect(server.url, compression=None) as socket:
            metadata = msgpack.unpackb(socket.recv(timeout=30))
            assert metadata["action_names"] == ["push", "brake"]
            assert metadata["observations"] == {"state": [4], "image": [8, 8, 3], "instruction": [2]}
            assert metadata["action_horizon"] == 2
            # "go" is word 1, "stop" word 2; a text's case and commas do not count
            assert np.array_equal(actions(asked(socket, "flat")), wanted(seer, 1))
            assert np.array_equal(actions(asked(socket, "nested")), wanted(seer, 1, 2))
            said = asked(socket, "unknown key")
            assert said.startswith("bad_observation: observation 'observation/wrist' has no port of that name")
            assert "--map KEY=PORT" in said
            assert "word 'jump' is unknown" in asked(socket, "unknown word")
            assert "observation 'state' element 'cart_pos' is nan: expected it finite" in asked(socket, "not finite")
            # refusals of an observation leave the connection open
            assert np.array_equal(actions(asked(socket, "flat")), wanted(seer, 1))
        code, out, _ = serve_kit.stopped(server)
    assert code == 0
    assert "answered 3; refused: bad_observation 3" in out


def test_scalars_are_ports_of_one_number(tmp_path_factory: pytest.TempPathFactory) -> None:
    bundle = deploy_kit.made("goal", tmp_path_factory.getbasetemp())[0]
    chunk = Controller.load(bundle).infer({"state": STATE, "touch": np.float32([1.0])}, 0)
    with serve_kit.served(bundle) as server, connect(server.url, compression=None) as socket:
        socket.recv(timeout=30)
        for name in ("scalars", "plain number"):
            assert np.array_equal(actions(asked(socket, name)), chunk)
        assert "'observation/image' has no port of that name" in asked(socket, "flat")


def test_what_is_no_observation_is_refused_once_and_the_connection_closed(seer: Path) -> None:
    with serve_kit.served(seer) as server:
        for data in (b"\xc1", msgpack.packb([1]), msgpack.packb({"state": {b"__ndarray__": True}}), "text"):
            with connect(server.url, compression=None) as socket:
                socket.recv(timeout=30)
                socket.send(data)
                said = socket.recv(timeout=30)
                assert isinstance(said, str) and said.startswith("malformed: ")
                with pytest.raises(ConnectionClosed):
                    socket.recv(timeout=30)
                assert socket.close_code == 1008
        assert server.health() == (200, {"status": "ok"})


def observed(seer: Path, given: dict[str, Any], *pairs: str) -> dict[str, np.ndarray]:
    manifest = open_bundle(seer).manifest
    return OpenpiKeys.parse(pairs, manifest).observation(manifest, given)


def test_keys_find_their_ports(seer: Path) -> None:
    given = {"robot/eef": STATE, "observation/image": RAMP, "prompt": "stop", "extra": STATE}
    found = observed(seer, given, "robot/eef=state", "extra=")
    assert found["state"] is STATE and found["image"] is RAMP
    assert found["instruction"].tolist() == [2, 0]
    # channels first is turned, whatever it holds
    turned = observed(seer, {**given, "observation/image": np.moveaxis(RAMP, -1, 0)}, "robot/eef=state", "extra=")
    assert np.array_equal(turned["image"], RAMP)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"a/state": STATE}, r"'state' and 'a/state' both mean port 'state'"),
        ({"imagee": RAMP}, r"'imagee' has no port of that name: did you mean 'image'\? the bundle has state, image"),
        ({"image": None}, r"port 'image' is missing: the observation has state, prompt"),
        ({"image": RAMP[:4]}, r"'image' \(port 'image'\) has shape \(4, 8, 3\): expected \(8, 8, 3\)"),
        ({"state": "go"}, r"'state' \(port 'state'\) is text: expected numbers of shape \(4,\)"),
        ({"prompt": "go go go"}, r"'prompt' \(port 'instruction'\) has 3 words: expected 1 to 2"),
    ],
)
def test_what_cannot_be_mapped_is_named(seer: Path, change: dict[str, Any], says: str) -> None:
    given = {"state": STATE, "image": RAMP, "prompt": "go", **change}
    with pytest.raises(WireError, match=says) as caught:
        observed(seer, {key: value for key, value in given.items() if value is not None})
    assert caught.value.code == "bad_observation"


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("state", "map 'state': expected KEY=PORT"),
        ("a=stat", "did you mean 'state'"),
        ("=state", "expected KEY=PORT"),
    ],
)
def test_a_map_that_is_none_is_refused(seer: Path, pair: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OpenpiKeys.parse([pair], open_bundle(seer).manifest)


@pytest.mark.parametrize(
    "array",
    [
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "O", b"shape": [1]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": ">f4", b"shape": [1]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [2]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [-1]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [2**40, 2**40]},
        {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [1], b"more": 1},
        {b"__ndarray__": True, b"data": "1234", b"dtype": "<f4", b"shape": [1]},
        {b"__npgeneric__": True, b"data": "1", b"dtype": "<f4"},
        {b"data": b"1234"},
        [1.0],
        None,
    ],
)
def test_an_array_that_is_none_is_refused(array: object) -> None:
    with pytest.raises(WireError) as caught:
        unpack_observation(msgpack.packb({"state": array}))
    assert caught.value.code == "malformed"


@pytest.mark.skipif(not PYTHON, reason="ROBOTRL_OPENPI_PYTHON names no Python that has openpi-client")
def test_the_released_client_connects_and_infers(seer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with serve_kit.served(seer, "--token-env", "T", T=serve_kit.TOKEN) as server:
        command = [PYTHON, str(KITS / "openpi_side.py"), "infer", server.url, str(out)]
        environment = {**os.environ, "PYTHONPATH": ""}
        refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert refused.returncode != 0 and "401" in refused.stderr
        done = subprocess.run([*command, serve_kit.TOKEN], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    got = json.loads(out.read_text())
    assert got["metadata"]["action_names"] == ["push", "brake"]
    assert np.array_equal(np.float32(got["answers"]["flat"]), wanted(seer, 1))
    assert np.array_equal(np.float32(got["answers"]["nested"]), wanted(seer, 1, 2))
    assert set(got["errors"]) == {"scalars", "plain number", "unknown key", "unknown word", "not finite"}
    assert all("Error in inference server" in said and "Traceback" not in said for said in got["errors"].values())
    # openpi's own chunk broker steps through the chunk, and then asks again
    chunk = wanted(seer, 1)
    assert np.array_equal(np.float32(got["steps"]), chunk[[0, 1, 0]])
    recorded = tmp_path / "recorded.json"
    subprocess.run([PYTHON, str(KITS / "openpi_side.py"), "record", str(recorded)], check=True, timeout=120)
    assert {name: base64.b64decode(text) for name, text in json.loads(recorded.read_text()).items()} == MESSAGES
