"""`robotrl status --serve` and `--url`: the same state over HTTP, and who gets it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from robotrl.cli.main import main
from robotrl.cli.status_http import CONNECTIONS, KEPT_S, StatusServer, checked_url, fetched
from robotrl.errors import ConfigError, DataError
from robotrl.run.directory import Run
from tests.kits.refusals import raises_naming

TOKEN = "0123456789abcdef01234567"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "one"
    config = {"schema_version": 1, "config": {"evaluation": {"score": "return"}}}
    with Run.create(path, config, seed=0, command=["train"], keep=1) as made:
        made.begin_session(8, 0)
        made.log(1, {"env_steps": 100.0, "eval_success": 0.5, "eval_return": 3.0})
    return path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["status", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["status", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    return said


@pytest.fixture
def serving(run: Path, tmp_path: Path) -> Iterator[str]:
    """URL of a server in a process of its own, with a token; it ends on SIGTERM."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    words = [str(run.parent), "--serve", "--port", "0", "--token-file", str(tmp_path / "token")]
    command = [sys.executable, "-m", "robotrl.cli", "status", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM


def test_a_server_tells_what_the_files_say(
    serving: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = ["--token-file", str(tmp_path / "token")]
    here, there = (json.loads(shown(capsys, *words, "--json")) for words in ([str(run)], ["--url", serving, *token]))
    for one in (here, there):
        one["runs"][0].pop("since_line_s")
    assert here == there and there["runs"][0]["env_steps"] == 100
    assert "iteration 1 of 8" in shown(capsys, "--url", f"{serving}/", *token)
    # without the token, and with another one
    assert "the token is missing or another one" in refused(capsys, "--url", serving)
    monkeypatch.setenv("OTHER", TOKEN[::-1])
    assert "the token is missing or another one" in refused(capsys, "--url", serving, "--token-env", "OTHER")
    # a run that is damaged meanwhile is the server's answer, not its end
    (run / "config.json").write_text("{")
    time.sleep(KEPT_S)
    assert "it answers 503: " in refused(capsys, "--url", serving, *token)
    host, port = serving.removeprefix("http://").split(":")
    for method, place, code in (("GET", "/../config.json", 404), ("POST", "/status", 501), ("PUT", "/status", 501)):
        client = http.client.HTTPConnection(host, int(port), timeout=10)
        client.request(method, place, headers={"Authorization": f"Bearer {TOKEN}"})
        assert client.getresponse().status == code


def test_other_machines_need_a_token(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, str(run), "--serve", "--host", "0.0.0.0", "--port", "0")
    assert "host is '0.0.0.0', which other machines can reach: expected a token as well" in said


MISTAKES = [
    ((), "missing: RUN"),
    (("RUN", "--url", "http://x:1"), "beside --url"),
    (("RUN", "--port", "80"), "--port is given: expected --serve beside it"),
    (("RUN", "--tls-ca", "x"), "--tls-ca is given: expected --url beside it"),
    (("RUN", "--token-env", "X"), "--token-env is given: expected --serve or --url beside it"),
    (("RUN", "--serve", "--json"), "--json is given beside --serve"),
    (("RUN", "--serve", "--port", "70000"), "--port is 70000"),
    (("--url", "ftp://x"), "http://HOST:PORT"),
    (("--url", "http://user:pass@x:1"), "--url holds a user or password"),
    (("--url", "http://127.0.0.1:1"), "expected a server of robotrl status --serve"),
    (("--url", "http://127.0.0.1:1", "--tls-ca", "x"), "expected none with an http:// address"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_answered_with_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *(str(run) if word == "RUN" else word for word in words))


class _Other(BaseHTTPRequestHandler):
    """Some other web server."""

    def do_GET(self) -> None:
        body: bytes = self.server.body  # type: ignore[attr-defined]
        self.send_response(302 if body == b"elsewhere" else 200)
        self.send_header("Location", "http://127.0.0.1:1/status")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


GOOD: dict[str, Any] = {
    "path": "a",
    "state": "running",
    "why": "",
    "host": "h",
    "iteration": 1,
    "iterations": None,
    "env_steps": 2.0,
    "env_steps_per_s": None,
    "evaluation": None,
    "best": None,
    "score": "success",
    "since_line_s": None,
    "left_s": None,
    "checkpoint": None,
}


def state(**changes: Any) -> bytes:
    runs = {"schema_version": 1, "runs": [GOOD | changes], "not_begun": 0, "sweeping": False}
    return json.dumps(runs).encode()


def test_what_another_server_answers_is_refused_and_text_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        for body, said in (
            (b"<html>", "as JSON"),
            (b"elsewhere", "it answers 302"),
            (b"[]", "is not the state of runs"),
            (b'{"schema_version": 7}', "schema version 7: expected 1"),
            (state(iteration="x"), "is not the state of runs"),
            (state(iteration=True), "is not the state of runs"),
            (state(evaluation={"success": 1}), "is not the state of runs"),
        ):
            server.body = body  # type: ignore[attr-defined]
            assert said in refused(capsys, "--url", url)
        server.body = state(path="a\x1b]0;b")  # type: ignore[attr-defined]
        assert shown(capsys, "--url", url).startswith("a?]0;b: running on h, iteration 1")
    finally:
        server.shutdown()
        server.server_close()


def test_silent_clients_hold_up_nobody() -> None:
    """As many as there may be at once, less one, connect and say nothing."""
    server = StatusServer(("127.0.0.1", 0), lambda: {"x": 1}, None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(CONNECTIONS - 1)]
    try:
        url = checked_url(f"http://127.0.0.1:{server.server_port}")
        assert fetched(url, None, None) == {"x": 1}
    finally:
        for one in silent:
            one.close()
        server.shutdown()
        server.server_close()


def test_tls(tmp_path: Path) -> None:
    from robotrl.deploy.remote.access import server_tls

    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True, env=os.environ)
    server = StatusServer(("127.0.0.1", 0), lambda: {"x": 1}, TOKEN, server_tls(cert, key))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = checked_url(f"https://127.0.0.1:{server.server_port}")
        assert fetched(url, TOKEN, cert) == {"x": 1}
        with raises_naming(DataError, "--url", "certificate"):
            fetched(url, TOKEN, None)
        with raises_naming(ConfigError, "--tls-ca", str(key)):
            fetched(url, TOKEN, key)
    finally:
        server.shutdown()
        server.server_close()
