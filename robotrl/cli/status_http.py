"""The state of runs over HTTP: a small server of JSON, and the request that reads it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from robotrl.deploy.remote.access import authorized
from robotrl.errors import ConfigError, DataError, RobotrlError, out_of_range, short

PLACE = "/status"
"""Path of the state."""
TIMEOUT_S = 10.0
"""Time limit for a request, on both sides, s."""
KEPT_S = 0.5
"""Time for which an answer serves all requests, s: many requests do not read the files many times."""
CONNECTIONS = 16
"""Requests at once; further ones are answered with 503."""
MOST_BYTES = 16 << 20
"""Largest answer that is read."""


class StatusServer(ThreadingHTTPServer):
    """Serves the state of runs at `/status`; nothing else, and nothing can be changed through it.

    Args:
        address: numeric address to bind, and port; 0 takes a free one.
        look: gives the state, as JSON values.
        token: token that clients must present; None lets everyone in who reaches the address.
        tls: TLS context; None: plain HTTP.

    Raises:
        ConfigError: the port is taken, or not allowed.
    """

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], look: Callable[[], Any], token: str | None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._look, self.token, self._tls = look, token, tls
        self._lock, self._looked_s, self._answer = threading.Lock(), -KEPT_S, b""
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise ConfigError(
                f"--port is {address[1]}: {error.strerror}; expected a free port, or 0 for any"
            ) from error

    def answer(self) -> bytes:
        """The state, at most `KEPT_S` old.

        Raises:
            RobotrlError: a run is gone or damaged.
        """
        with self._lock:
            if time.monotonic() - self._looked_s >= KEPT_S:
                self._answer = json.dumps(self._look()).encode()
                self._looked_s = time.monotonic()
            return self._answer

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request in its thread; the TLS handshake is made here, so that a slow client holds up nobody."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            request.settimeout(TIMEOUT_S)
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:
            # no TLS, or gone meanwhile
            self.shutdown_request(request)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is nobody's fault."""


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        server = cast(StatusServer, self.server)
        if not authorized(self.headers.get("Authorization"), server.token):
            self._send(401, b"the token is missing or another one\n", "text/plain")
            return
        if self.path not in (PLACE, "/"):
            self._send(404, b"expected /status\n", "text/plain")
            return
        try:
            self._send(200, server.answer(), "application/json")
        except RobotrlError as error:
            self._send(503, f"{error}\n".encode(), "text/plain")

    def _send(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if code == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Disable logging of requests."""


def checked_url(url: str) -> str:
    """Check the address of a server of states; returns that of its state.

    Raises:
        ConfigError: not http:// or https:// with a host, or one with a user, password, query or fragment.
    """
    expected = "http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise out_of_range("--url", url, expected) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"--url holds a user or password: expected {expected}, and the token by its own option")
    plain = url.isascii() and url.isprintable() and not set(url) & set(" \\?#")
    if not plain or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise out_of_range("--url", url, expected)
    if parts.path not in ("", "/", PLACE):
        raise out_of_range("--url", url, expected)
    return f"{parts.scheme}://{parts.netloc}{PLACE}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A server that sends elsewhere does not get the token sent there."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def fetched(url: str, token: str | None, ca: Path | None) -> Any:
    """State of runs from a server, as JSON values.

    Args:
        url: result of `checked_url`.
        token: the server's token; None: it has none.
        ca: certificate to trust instead of the system's authorities.

    Raises:
        ConfigError: a certificate that cannot be read, or one for an address without TLS.
        DataError: nobody answers, or not with the state of runs.
    """
    if ca is not None and not url.startswith("https:"):
        raise ConfigError(f"--tls-ca is {ca}: expected none with an http:// address")
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as error:
        raise ConfigError(f"--tls-ca {ca} cannot be used: {error.strerror or 'not a certificate in PEM'}") from error
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    where = f"--url is {url.removesuffix(PLACE)}"
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as response:
            body: bytes = response.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise ConfigError(f"{where}: the token is missing or another one; expected that of the server") from error
        said = " ".join(error.read(1000).decode(errors="replace").split()) if error.code == 503 else ""
        raise DataError(
            f"{where}: it answers {error.code}{': ' + short(said) if said.isprintable() and said else ''}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(f"{where}: expected a server of robotrl status --serve ({short(str(reason))})") from error
    try:
        if len(body) > MOST_BYTES:
            raise ValueError
        return json.loads(body)
    except ValueError:
        raise DataError(f"{where}: expected the state of runs as JSON") from None
