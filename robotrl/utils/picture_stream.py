"""Shows live pictures to a browser on this machine, as motion JPEG."""

from __future__ import annotations

import errno
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

import numpy as np

from robotrl.errors import ConfigError

PAGE = (
    b"<!doctype html><title>robotrl</title><body style='margin:0;background:#111'><img src='stream' style='width:100%'>"
)
HOST = "127.0.0.1"
"""Loopback address: only this machine can connect."""
BOUNDARY = "frame"


class PictureStream(ThreadingHTTPServer):
    """Web server of the newest picture, on the loopback address only; runs in a thread of its own.

    Args:
        port: port number; 0 takes a free one.

    Raises:
        ConfigError: the port is taken, or not allowed.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.changed = threading.Condition()
        self.picture = b""
        self.closed = False
        try:
            super().__init__((HOST, port), _PictureHandler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise ConfigError(f"--port is {port}: it is taken or not allowed; expected a free port, or 0") from error
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def show(self, picture: np.ndarray) -> None:
        """Show a picture (height, width, 3) uint8 in place of the last one."""
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "JPEG", quality=85)
        with self.changed:
            self.picture = buffer.getvalue()
            self.changed.notify_all()

    def close(self) -> None:
        """End all streams and free the port."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self.shutdown()
        self.server_close()


class _PictureHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        stream = cast(PictureStream, self.server)
        if self.path == "/":
            self._head("text/html; charset=utf-8")
            self.wfile.write(PAGE)
        elif self.path == "/stream":
            self._head(f"multipart/x-mixed-replace; boundary={BOUNDARY}")
            self._send(stream)
        else:
            self.send_error(404)

    def _head(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def _send(self, stream: PictureStream) -> None:
        sent = b""
        while True:
            with stream.changed:
                while not stream.closed and stream.picture is sent:
                    stream.changed.wait()
                if stream.closed:
                    return
                sent = stream.picture
            head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(sent)}\r\n\r\n"
            try:
                self.wfile.write(head.encode() + sent + b"\r\n")
            except OSError:  # the browser has left
                return

    def log_message(self, format: str, *args: object) -> None:
        """Disable logging of requests."""
