"""The client of a policy server: it infers, reconnects, gives up in time, and believes no server that lies."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.remote.access import client_tls
from robotrl.deploy.remote.client import RemotePolicy
from robotrl.deploy.remote.protocol import ErrorAnswer, InferRequest, RemoteError
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError, NumericsError
from tests.kits import deploy_kit, serve_kit
from tests.kits.serve_kit import OBS, TOKEN, Answer, chunk, lying, served, slow_obs, until

PATIENT_S = 120.0
"""Time to connect on a machine that is busy with other jobs."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy_kit.made("flow", tmp_path_factory.getbasetemp())[0]


def test_it_infers_what_a_controller_does_here(bundle: Path) -> None:
    controller = Controller.load(bundle, seed=5)
    with served(bundle) as server, RemotePolicy(server.url, seed=5, timeout_s=PATIENT_S) as policy:
        for decision in (0, 3):
            assert np.array_equal(policy.infer(OBS, decision), controller.infer(OBS, decision))
        assert policy.manifest == controller.manifest
        assert policy.inference_s > 0 and policy.connected and policy.connections == 1
        with pytest.raises(ConfigError, match="observations are state: expected state, touch"):
            policy.infer({"state": OBS["state"]}, 0)
        with pytest.raises(ConfigError, match=r"observation 'touch' has shape \(2,\): expected \(1,\)"):
            policy.infer({**OBS, "touch": np.zeros(2)}, 0)
        with pytest.raises(NumericsError, match="observation 'touch' is not finite"):
            policy.infer({**OBS, "touch": np.float32([np.nan])}, 0)


def test_a_policy_that_sees_and_is_told(tmp_path: Path) -> None:
    bundle = serve_kit.seer_bundle(tmp_path)
    obs = {
        "state": OBS["state"],
        "image": np.arange(192, dtype=np.uint8).reshape(8, 8, 3),
        "instruction": np.int32([1, 2]),
    }
    with served(bundle) as server, RemotePolicy(server.url, timeout_s=PATIENT_S) as policy:
        assert np.array_equal(policy.infer(obs, 0), Controller.load(bundle).infer(obs, 0))
        with pytest.raises(ConfigError, match=r"'image' holds 0\.5"):
            policy.infer({**obs, "image": np.full((8, 8, 3), 0.5)}, 0)


def test_it_needs_neither_onnxruntime_nor_torch() -> None:
    code = "import sys, robotrl.deploy.remote.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert {"numpy", "websockets", "msgpack"} <= loaded
    assert loaded.isdisjoint({"onnxruntime", "safetensors", "torch", "mujoco", "rich", "tyro"})


def test_it_connects_again_after_the_server_has_died(bundle: Path) -> None:
    port = serve_kit.free_port()
    with served(bundle, port=port) as server:
        policy = RemotePolicy(server.url, timeout_s=PATIENT_S)
        before = policy.infer(OBS, 1)
        server.process.kill()
        server.process.wait()
        until(lambda: not policy.connected)
        with pytest.raises(RemoteError) as caught:
            policy.infer(OBS, 1)
        assert caught.value.code == "disconnected"
    with contextlib.closing(policy), served(bundle, port=port):
        policy.wait_connected(30.0)
        assert np.array_equal(policy.infer(OBS, 1), before)
        assert policy.connections == 2


def test_another_bundle_after_a_restart_is_refused_for_good(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = deploy_kit.made("goal", tmp_path_factory.getbasetemp())[0]
    port = serve_kit.free_port()
    with served(bundle, port=port) as server:
        policy = RemotePolicy(server.url, timeout_s=PATIENT_S)
        server.process.kill()
        server.process.wait()
    with contextlib.closing(policy), served(other, port=port):
        ids = [open_bundle(path).manifest.bundle_id[:12] for path in (other, bundle)]
        with pytest.raises(RemoteError, match=rf"it runs bundle {ids[0]}\.\.\.: expected {ids[1]}\.\.\.") as caught:
            policy.wait_connected(30.0)
        assert caught.value.code == "refused"
        with pytest.raises(RemoteError) as caught:
            policy.infer(OBS, 0)
        assert caught.value.code == "refused"


def test_a_server_that_hangs_is_given_up_in_time_and_heard_again(bundle: Path) -> None:
    with served(bundle) as server, RemotePolicy(server.url, timeout_s=PATIENT_S) as policy:
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(RemoteError) as caught:
            policy.infer(OBS, 0, timeout_s=0.1)
        assert caught.value.code == "deadline"
        server.process.send_signal(signal.SIGCONT)
        # the late answer to the first request is dropped
        assert np.array_equal(policy.infer(OBS, 7), Controller.load(bundle).infer(OBS, 7))


def test_a_server_that_takes_too_long(tmp_path: Path) -> None:
    slow = serve_kit.slow_bundle(tmp_path / "slow", power=1, chain=300)
    with served(slow) as server, RemotePolicy(server.url, timeout_s=PATIENT_S) as policy:
        with pytest.raises(RemoteError) as caught:
            policy.infer(slow_obs(1200.0), 0, timeout_s=0.5)
        assert caught.value.code == "deadline"
        codes: list[str] = []

        def ask() -> None:
            try:
                policy.infer(slow_obs(1200.0), 0, timeout_s=60.0)
            except RemoteError as error:
                codes.append(error.code)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.3)
        policy.cancel()
        thread.join(30.0)
        assert codes == ["cancelled"]


def test_tokens_and_certificates(bundle: Path, tmp_path: Path) -> None:
    cert, key = serve_kit.certificate(tmp_path)
    options = ("--token-env", "T", "--tls-cert", str(cert), "--tls-key", str(key))
    with served(bundle, *options, T=TOKEN) as server:
        with RemotePolicy(server.url, token=TOKEN, tls_ca=cert, timeout_s=PATIENT_S) as policy:
            assert policy.infer(OBS, 0).shape == (2, 2)
        with pytest.raises(RemoteError, match="it asks for another token") as caught:
            RemotePolicy(server.url, token=TOKEN + "x", tls_ca=cert, timeout_s=PATIENT_S)
        assert caught.value.code == "refused" and TOKEN not in str(caught.value)
        with pytest.raises(RemoteError, match="its certificate is not trusted: self-signed certificate"):
            RemotePolicy(server.url, token=TOKEN, timeout_s=PATIENT_S)
        with pytest.raises(ConfigError, match="expected none with a ws:// address"):
            client_tls("ws://127.0.0.1:1", cert)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:8000", "expected ws://HOST:PORT or wss://HOST:PORT"),
        ("ws://", "expected ws://HOST:PORT"),
        ("ws://me:secret@host:1", "holds a user or password"),
        ("ws://host:99999", "cannot be read"),
        ("ws://host:1/?token=x", "expected ws://HOST:PORT"),
        ("ws://host :1", "without spaces"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        RemotePolicy(url, timeout_s=PATIENT_S)
    assert "secret" not in str(caught.value)


def test_where_nobody_listens() -> None:
    with pytest.raises(RemoteError) as caught:
        RemotePolicy(f"ws://127.0.0.1:{serve_kit.free_port()}", timeout_s=0.5)
    assert caught.value.code == "disconnected"


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        (lambda r, m: [chunk(r.id, np.nan)], "invalid_answer", r"actions \[0, 0\] is nan: expected it finite"),
        (lambda r, m: [chunk(r.id, np.inf)], "invalid_answer", r"is inf: expected it finite"),
        (lambda r, m: [chunk(r.id, shape=(3, 2))], "invalid_answer", r"actions is float32 of shape \(3, 2\): expected"),
        (lambda r, m: [chunk(r.id, dtype="float64")], "invalid_answer", r"actions is float64"),
        (lambda r, m: [chunk(r.id + 1)], "invalid_answer", "a question that was not asked"),
        (lambda r, m: [b"\xc1"], "invalid_answer", "not msgpack"),
        (lambda r, m: ["text"], "invalid_answer", "not msgpack"),
        (lambda r, m: [msgpack.packb({"type": "chunk", "id": r.id})], "invalid_answer", "is missing"),
        (lambda r, m: [ErrorAnswer(r.id, "busy", "later").pack()], "busy", "later"),
        (
            lambda r, m: [msgpack.packb({"type": "error", "id": 1, "code": "x", "text": ""})],
            "invalid_answer",
            "code is",
        ),
        (lambda r, m: [], "deadline", "no answer within 0.3 s"),
    ],
)
def test_a_server_that_lies_gives_no_action(bundle: Path, answer: Answer, code: str, says: str) -> None:
    manifest = open_bundle(bundle).manifest
    with lying(manifest, answer) as url, RemotePolicy(url, timeout_s=PATIENT_S) as policy:
        with pytest.raises(RemoteError, match=says) as caught:
            policy.infer(OBS, 0, timeout_s=0.3 if code == "deadline" else 30.0)
        assert caught.value.code == code


def test_an_answer_of_before_is_not_taken_for_that_of_now(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest

    def late(request: InferRequest, _: Manifest) -> list[bytes | str]:
        return [] if request.id == 1 else [chunk(1, 0.25), chunk(request.id, 0.5)]

    with lying(manifest, late) as url, RemotePolicy(url, timeout_s=PATIENT_S) as policy:
        with pytest.raises(RemoteError):
            policy.infer(OBS, 0, timeout_s=0.2)
        assert (policy.infer(OBS, 1) == 0.5).all()


def test_a_manifest_that_was_altered_is_refused(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    wider = manifest.to_bytes().replace(b'"bad_ticks_to_damp": 5', b'"bad_ticks_to_damp": 50')
    assert wider != manifest.to_bytes()
    for hello in ({"manifest": wider}, {"bundle_id": "0" * 64}, {"raw": b"\x80"}, {"raw": "text"}):
        with lying(manifest, lambda r, m: [], **hello) as url, pytest.raises(RemoteError) as caught:
            RemotePolicy(url, timeout_s=PATIENT_S)
        assert caught.value.code == "refused"


def test_a_request_larger_than_the_server_takes_is_not_sent(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    with (
        lying(manifest, lambda r, m: [], max_message_bytes=10) as url,
        RemotePolicy(url, timeout_s=PATIENT_S) as policy,
    ):
        with pytest.raises(RemoteError, match=r"the request has \d+ bytes: at most 10") as caught:
            policy.infer(OBS, 0)
        assert caught.value.code == "too_large"
