"""Serves one page to a browser on this machine."""

from __future__ import annotations

import errno
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from robotrl.errors import ConfigError

HOST = "127.0.0.1"
"""Loopback address: only this machine can connect."""
PORTS_TRIED = 100


def free_port(near: int) -> int:
    """A free port on this machine's loopback address: the next from `near` on, or any for 0 and if none is near."""
    first = max(near, 1024)
    for port in (*(range(first, min(first + PORTS_TRIED, 1 << 16)) if near else ()), 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError("no port is free on this machine")


class PageServer(ThreadingHTTPServer):
    """Web server for one HTML page at `/`, on the loopback address only; `serve_forever` runs it.

    The port is bound in the constructor; requests before `serve_forever` wait.

    Args:
        port: port number; 0 takes a free one.

    Raises:
        ConfigError: the port is taken, or not allowed.
    """

    daemon_threads = True
    page = b""

    def __init__(self, port: int) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "another program has it" if error.errno == errno.EADDRINUSE else "it is not allowed"
            raise ConfigError(
                f"--port is {port}: {why}; expected a free port: {free_port(port)}, or 0 for any"
            ) from error

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if self.path.split("?")[0] not in ("/", "/index.html"):
            self.send_error(404)
            return
        page = cast(PageServer, self.server).page
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Disable logging of requests."""
