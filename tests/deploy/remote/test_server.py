"""`robotrl serve` in a process of its own: who may connect, what is refused, deadlines, health, and how it stops."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import threading
import time
from collections.abc import Generator
from pathlib import Path

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from robotrl.cli.main import main
from robotrl.deploy.remote import protocol
from robotrl.deploy.remote.access import authorized, bind_addresses, read_token, server_tls
from robotrl.deploy.remote.protocol import ChunkAnswer, ErrorAnswer, Hello, InferRequest
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError
from tests.kits import deploy_kit, serve_kit
from tests.kits.serve_kit import OBS, TOKEN, Served, served, slow_obs, stopped, until

NOISE = np.zeros((2, 2), np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy_kit.made("flow", tmp_path_factory.getbasetemp())[0]


@contextlib.contextmanager
def opened(url: str, **more: object) -> Generator[ClientConnection]:
    with connect(url, subprotocols=[protocol.SUBPROTOCOL], compression=None, **more) as connection:
        Hello.parse(connection.recv(timeout=30))
        yield connection


def answer(connection: ClientConnection, data: bytes | str | None = None) -> ChunkAnswer | ErrorAnswer:
    if data is not None:
        connection.send(data)
    return protocol.parse_answer(connection.recv(timeout=60))


def infer(number: int, obs: dict[str, np.ndarray] = OBS, noise: np.ndarray | None = NOISE, ms: int = 30_000) -> bytes:
    return InferRequest(number, obs, noise, ms).pack()


def test_the_server_answers_what_the_controller_computes(bundle: Path) -> None:
    controller = Controller.load(bundle, seed=3)
    with served(bundle, "--seed", "3") as server:
        with opened(server.url) as connection:
            for number in range(3):
                # without noise the server draws its own, in turn
                found = answer(connection, infer(number, noise=None))
                assert isinstance(found, ChunkAnswer) and found.id == number
                assert np.array_equal(found.actions, controller.infer(OBS, number))
            drawn = controller.draw_noise(17)
            found = answer(connection, infer(9, noise=drawn))
            assert isinstance(found, ChunkAnswer) and np.array_equal(found.actions, controller.infer(OBS, 17))
        assert server.health() == (200, {"status": "ok"})
        code, out, err = stopped(server)
    assert (code, err) == (0, "")
    assert out.endswith("stopped; answered 4; refused: none\n")


def test_refusals_are_typed_and_only_a_malformed_message_closes_the_connection(bundle: Path) -> None:
    with served(bundle, "--max-message-mib", "0.01") as server:
        with opened(server.url) as connection:
            wrong = {**OBS, "touch": np.float32([np.nan])}
            found = answer(connection, infer(4, wrong))
            assert found == ErrorAnswer(4, "bad_observation", "observation 'touch' [0] is nan: expected it finite")
            assert isinstance(answer(connection, infer(5)), ChunkAnswer)
        for data in (b"\xc1", "text", msgpack.packb({"type": "infer"})):
            with opened(server.url) as connection:
                found = answer(connection, data)
                assert isinstance(found, ErrorAnswer) and (found.id, found.code) == (None, "malformed")
                with pytest.raises(ConnectionClosed):
                    connection.recv(timeout=30)
                assert connection.close_code == 1008
        with opened(server.url) as connection:
            connection.send(bytes(20_000))
            with pytest.raises(ConnectionClosed):
                connection.recv(timeout=30)
            assert connection.close_code == 1009
        code, out, err = stopped(server)
    assert (code, err) == (0, "")
    assert out.endswith("answered 1; refused: bad_observation 1, close_1009 1, malformed 3\n")


def test_a_token_is_asked_for_and_never_said(bundle: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    with served(bundle, "--token-file", str(secret)) as server:
        for header in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer "},
        ):
            with pytest.raises(InvalidStatus) as caught, opened(server.url, additional_headers=header):
                pass
            assert caught.value.response.status_code == 401
            assert caught.value.response.body == b"Unauthorized\n"
        for scheme in ("Bearer", "Api-Key"):
            with opened(server.url, additional_headers={"Authorization": f"{scheme} {TOKEN}"}) as connection:
                assert isinstance(answer(connection, infer(1)), ChunkAnswer)
        assert server.health() == (200, {"status": "ok"})  # without the token
        code, out, err = stopped(server)
    assert (code, err) == (0, "")
    assert TOKEN not in out and "http_401 4" in out


def test_no_page_of_a_browser_may_connect(bundle: Path) -> None:
    with served(bundle) as server:
        with pytest.raises(InvalidStatus) as caught, opened(server.url, origin="https://example.org"):
            pass
        assert caught.value.response.status_code == 403
        with pytest.raises(InvalidStatus) as caught, opened(f"{server.url}/other"):
            pass
        assert caught.value.response.status_code == 404
        with pytest.raises(InvalidStatus) as caught, connect(server.url, subprotocols=["robotrl.9"]):
            pass
        assert caught.value.response.status_code == 400


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "host is '0.0.0.0', which other machines can reach: expected a token as well"),
        (["--host", "::"], "which other machines can reach"),
        (["--host", ""], "host is '': expected an address of this machine"),
        (["--token-env", "NOT_SET_HERE"], "token_env is 'NOT_SET_HERE', which is not set"),
        (["--token-env", "a secret"], "token_env is not a name"),
        (["--token-env", "SHORT"], "token_env 'SHORT' holds no token: expected one line of 16 or more"),
        (["--token-env", "A", "--token-file", "b"], "token_env and token_file are both given"),
        (["--token-file", "no/such"], "token_file 'no/such' cannot be read: No such file or directory"),
        (["--tls-cert", "a"], "tls_cert and tls_key: expected both or neither"),
        (["--tls-cert", "a", "--tls-key", "b"], "tls_cert 'a', tls_key 'b' cannot be used: No such file"),
        (["--port", "70000"], "port is 70000: expected a whole number from 0 to 65535"),
        (["--max-message-mib", "0"], "max_message_mib is 0.0: expected a number from 0.01 to 256 MiB"),
        (["--max-deadline-s", "nan"], "max_deadline_s is nan"),
        (["--max-waiting", "0"], "max_waiting is 0"),
        (["--map", "a=stat"], "did you mean 'state'?"),
        (
            ["--as", "driver", "--map", "a=state"],
            "--map is ('a=state',) with --as driver: expected it with --as policy",
        ),
        (["--as", "driver", "--max-waiting", "3"], "--max-waiting is 3 with --as driver"),
        (["--driver.limit-mps", "5"], "--driver.limit-mps is 5.0 with --as policy: expected it with --as driver alone"),
    ],
)
def test_unusable_options_are_refused_before_a_port_is_opened(
    bundle: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    says: str,
) -> None:
    monkeypatch.setenv("SHORT", "tiny-secret")
    assert main(["serve", str(bundle), *options]) == 2
    said = capsys.readouterr()
    assert says in said.err and said.err.count("\n") == 1 and said.out == ""
    assert "tiny-secret" not in said.err


def test_a_port_in_use_is_one_line(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", str(bundle), "--port", str(taken.getsockname()[1])]) == 2
    assert "address already in use" in capsys.readouterr().err.lower()


def test_tokens_are_compared_whole() -> None:
    assert authorized(None, None) and authorized("Bearer x", None)
    for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Api-Key {TOKEN}"):
        assert authorized(header, TOKEN)
    for header in (None, "", "Bearer", "Basic " + TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}\u00e9", TOKEN):
        assert not authorized(header, TOKEN)


def test_loopback_needs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bind_addresses("127.0.0.1", None) == ["127.0.0.1"]
    assert set(bind_addresses("localhost", None)) <= {"127.0.0.1", "::1"}
    assert bind_addresses("0.0.0.0", TOKEN) == ["0.0.0.0"]
    monkeypatch.setenv("T", f"  {TOKEN}\n")
    assert read_token("T", None) == TOKEN
    assert read_token(None, None) is None
    with pytest.raises(ConfigError, match="host is 'no such host'"):
        bind_addresses("no such host", None)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return serve_kit.certificate(tmp_path_factory.mktemp("tls"))


def test_tls_with_a_certificate_of_ones_own(bundle: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with served(bundle, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        assert server.url.startswith("wss://")
        trusting = ssl.create_default_context(cafile=str(cert))
        with opened(server.url, ssl=trusting) as connection:
            assert isinstance(answer(connection, infer(1)), ChunkAnswer)
        assert server.health(trusting) == (200, {"status": "ok"})
        with pytest.raises(ssl.SSLCertVerificationError), opened(server.url):
            pass
        # who speaks no TLS gets nothing
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert b"ok" not in plain.recv(1000)
        assert server.health(trusting) == (200, {"status": "ok"})


def test_a_key_that_is_no_key_is_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "key").write_text("no key")
    with pytest.raises(ConfigError, match="cannot be used"):
        server_tls(certificate[0], tmp_path / "key")


def test_a_deadline_is_kept_and_health_answers_meanwhile(tmp_path: Path) -> None:
    """An inference of many operators, of some seconds: it is cancelled, and the next request is computed."""
    with served(serve_kit.slow_bundle(tmp_path / "slow", power=1, chain=300)) as server, opened(server.url) as one:
        one.send(infer(1, slow_obs(1200.0), ms=1500))
        # answered while the inference runs: its own answer has not come
        assert server.health() == (200, {"status": "ok"})
        with pytest.raises(TimeoutError):
            one.recv(timeout=0)
        found = answer(one)
        assert found == ErrorAnswer(1, "deadline", "no answer was ready in time")
        assert isinstance(answer(one, infer(2)), ChunkAnswer)


def test_an_operator_that_does_not_return_is_seen_by_the_health_check(tmp_path: Path) -> None:
    bundle = serve_kit.slow_bundle(tmp_path / "stuck", power=2, chain=1)
    with served(bundle, "--max-deadline-s", "0.5") as server, opened(server.url) as one:
        found = answer(one, infer(1, slow_obs(85.0)))
        assert isinstance(found, ErrorAnswer) and found.code == "deadline"
        until(lambda: server.health() == (503, {"status": "stuck"}))
        # it goes on once the operator has ended
        until(lambda: server.health() == (200, {"status": "ok"}), seconds=200.0)
        assert isinstance(answer(one, infer(2)), ChunkAnswer)


def test_a_full_queue_is_said_to_be_busy(tmp_path: Path) -> None:
    bundle = serve_kit.slow_bundle(tmp_path / "slow", power=1, chain=300)
    with (
        served(bundle, "--max-waiting", "2", "--max-connections", "3", "--max-deadline-s", "60") as server,
        opened(server.url) as one,
        opened(server.url) as two,
        opened(server.url) as three,
    ):
        one.send(infer(1, slow_obs(1200.0), ms=6000))
        for number in (2, 3):  # they wait behind it
            time.sleep(0.2)
            two.send(infer(number))
        time.sleep(0.2)
        found = answer(three, infer(4))
        assert found == ErrorAnswer(4, "busy", "2 requests wait already: ask again later")
        assert server.health()[0] == 200
        with pytest.raises(InvalidStatus) as caught, opened(server.url):
            pass
        assert caught.value.response.status_code == 503
        assert {answer(two).id, answer(two).id} == {2, 3}


def test_whoever_leaves_gives_up_what_it_asked_for(tmp_path: Path) -> None:
    with served(serve_kit.slow_bundle(tmp_path / "slow", power=1, chain=300)) as server:
        with opened(server.url) as one:
            one.send(infer(1, slow_obs(1200.0), ms=10_000))
            time.sleep(0.3)
        with opened(server.url) as two:
            assert isinstance(answer(two, infer(2)), ChunkAnswer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """What was asked before is answered; then the connection is closed."""
    with (
        served(serve_kit.slow_bundle(tmp_path / "slow", power=1, chain=300)) as server,
        opened(server.url) as one,
    ):
        one.send(infer(1, slow_obs(300.0)))
        time.sleep(0.2)
        server.process.send_signal(number)
        assert isinstance(answer(one), ChunkAnswer)
        with pytest.raises(ConnectionClosed):
            one.recv(timeout=60)
        assert one.close_code == 1001
        out, err = server.process.communicate(timeout=60)
        assert (server.process.returncode, err) == (0, "")
        assert "stopped; answered 1" in out


def test_slow_readers_and_half_requests_hold_nobody_up(bundle: Path) -> None:
    with served(bundle) as server, contextlib.ExitStack() as stack:
        for start in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\x16\x03\x01", b"GET /healthz"):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            half.sendall(start)
        mute = stack.enter_context(opened(server.url, max_queue=1))
        for turn in range(50):  # it asks and does not read
            mute.send(infer(turn + 1))
        with opened(server.url) as connection:
            assert isinstance(answer(connection, infer(1)), ChunkAnswer)
        assert server.health() == (200, {"status": "ok"})


def test_a_failed_inference_says_no_more_than_that(tmp_path: Path) -> None:
    from tests.kits import deploy_graphs as graphs

    copy = deploy_kit.copied("goal", tmp_path, tmp_path)
    with served(graphs.fails_beyond(copy)) as server, opened(server.url) as one:
        found = answer(one, infer(1, slow_obs(50.0)))
        text = "the policy's graph cannot be computed for this observation"
        assert found == ErrorAnswer(1, "inference_failed", text)
        assert isinstance(answer(one, infer(2)), ChunkAnswer)
        _, out, err = stopped(server)
    assert "inference_failed 1" in out
    # the operator is told why
    assert err.startswith("inference_failed: policy.onnx: onnxruntime cannot compute it")


def fuzz(server: Served, count: int, seed: int) -> None:
    from benchmarks.kit.messages import Messages

    messages = Messages(server.url, TOKEN, infer(1))
    rng = np.random.default_rng(seed)
    for number in range(count):
        assert messages.attempt(rng, number) == ""


def test_malformed_messages_by_the_hundred(bundle: Path) -> None:
    with served(bundle, "--token-env", "T", "--max-message-mib", "0.1", T=TOKEN) as server:
        fuzz(server, 400, 0)
        # threads of them at once
        workers = [threading.Thread(target=fuzz, args=(server, 100, seed)) for seed in (1, 2, 3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        with opened(server.url, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as connection:
            assert isinstance(answer(connection, infer(1)), ChunkAnswer)
        code, out, err = stopped(server)
    assert code == 0 and err == ""
    assert TOKEN not in out
