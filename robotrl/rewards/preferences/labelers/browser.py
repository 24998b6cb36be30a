"""Answers of a person, in a browser on this machine: two clips side by side, and four keys."""

from __future__ import annotations

import errno
import io
import json
import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, DataError, check_count, check_number
from robotrl.rewards.preferences.labelers.labels import ANSWERS, Question
from robotrl.rewards.preferences.labelers.page import PAGE
from robotrl.run.locking import stop_requested
from robotrl.utils.files import parse_json

HOST = "127.0.0.1"
"""Loopback address: only this machine can connect."""
MOST_BYTES = 1024
"""Largest body of a request."""
POLL_S = 0.1


@dataclass(frozen=True)
class BrowserCfg:
    """A person who answers on a page in the browser, on this machine only."""

    goal: str = ""
    """The question above the clips; empty: "Which is better?"."""
    port: int = 0
    """Port of the page; 0 takes a free one."""
    frames_per_s: float = 10.0
    """Speed of the clips, pictures a second, 0.1 to 60."""

    def check(self, field: str = "browser") -> None:
        """Check the settings.

        Raises:
            ConfigError: a setting is out of range.
        """
        check_count(f"{field}.port", self.port, 0, 65535)
        check_number(f"{field}.frames_per_s", self.frames_per_s, 0.1, 60.0)


class BrowserLabeler(ThreadingHTTPServer):
    """Web server of the page; runs in a thread of its own, on the loopback address only.

    The address holds a secret, so that no other page in the browser can answer. A pair that is skipped comes again
    after the others.

    Args:
        cfg: settings.

    Raises:
        ConfigError: a setting is out of range, or the port is taken.
    """

    daemon_threads = True
    needs_clips = True

    def __init__(self, cfg: BrowserCfg) -> None:
        cfg.check()
        self.identity = f"browser:{cfg.goal!r}"
        self.settings: dict[str, object] = {
            "goal": cfg.goal.strip() or "Which is better?",
            "frames_per_s": cfg.frames_per_s,
        }
        self.secret = secrets.token_urlsafe(16)
        self._changed = threading.Condition()
        self._open = OrderedDict[bytes, NDArray[np.uint8]]()
        self._answers = dict[bytes, int]()
        self._given, self._asked = 0, 0
        try:
            super().__init__((HOST, cfg.port), _Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise ConfigError(
                f"browser.port is {cfg.port}: it is taken or not allowed; expected a free port, or 0"
            ) from error
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), daemon=True)
        self._thread.start()
        print(f"answer at {self.address}", file=sys.stderr, flush=True)

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{HOST}:{self.server_port}/{self.secret}/"

    @property
    def pending(self) -> int:
        """See `Labeler.pending`."""
        with self._changed:
            return len(self._open)

    def ask(self, questions: Sequence[Question]) -> None:
        """See `Labeler.ask`."""
        with self._changed:
            for question in questions:
                assert question.clips is not None
                self._asked += question.key not in self._open
                self._open[question.key] = question.clips

    def collect(self, wait_s: float = 0.0) -> dict[bytes, int]:
        """See `Labeler.collect`."""
        end_s = time.monotonic() + wait_s
        with self._changed:
            while self._open and not stop_requested() and (left_s := end_s - time.monotonic()) > 0:
                self._changed.wait(min(left_s, POLL_S))
            answers, self._answers = self._answers, {}
        return answers

    def metrics(self) -> dict[str, float]:
        """See `Labeler.metrics`."""
        with self._changed:
            return {"answered": float(self._given), "waiting": float(len(self._open))}

    def state(self) -> dict[str, float]:
        """See `Labeler.state`."""
        return {}

    def load(self, state: Mapping[str, float]) -> None:
        """See `Labeler.load`."""

    def close(self) -> None:
        """See `Labeler.close`."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    # requests, in threads of their own

    def present(self) -> dict[str, object]:
        """The pair to show now, for the page."""
        with self._changed:
            key = next(iter(self._open), None)
            shape = None if key is None else self._open[key].shape
            about = {**self.settings, "given": self._given, "asked": self._asked}
        if key is None or shape is None:
            return {**about, "pair": None}
        return {**about, "pair": key.hex(), "frames": shape[1], "height": shape[2], "width": shape[3]}

    def strip(self, pair: str, side: int) -> bytes | None:
        """PNG of all pictures of one clip of a pair, one below the other; None for an unknown pair."""
        from PIL import Image

        with self._changed:
            clips = next((x for key, x in self._open.items() if key.hex() == pair), None)
        if clips is None or side not in (0, 1):
            return None
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(clips[side].reshape(-1, *clips.shape[3:]))).save(buffer, "PNG")
        return buffer.getvalue()

    def take(self, body: bytes) -> bool:
        """Take an answer, `{"pair": ..., "answer": 0}`, or null to skip.

        Returns:
            False if it is of another form, or not of an open pair.
        """
        try:
            data: Any = parse_json(body, "answer")
        except DataError:
            return False
        if not isinstance(data, dict) or set(data) != {"pair", "answer"}:  # pyright: ignore[reportUnknownArgumentType]
            return False
        answer: Any = data["answer"]
        if answer is not None and (type(answer) is not int or answer not in ANSWERS):
            return False
        with self._changed:
            key = next((key for key in self._open if key.hex() == data["pair"]), None)
            if key is None:
                return False
            if answer is None:
                self._open.move_to_end(key)
                return True
            del self._open[key]
            self._answers[key] = answer
            self._given += 1
            self._changed.notify_all()
        return True


class _Handler(BaseHTTPRequestHandler):
    timeout = 30

    @property
    def _labeler(self) -> BrowserLabeler:
        return cast(BrowserLabeler, self.server)

    def _path(self) -> list[str] | None:
        """Parts of the path behind the secret; None if the request is not from our page."""
        _, *parts = self.path.split("/")
        # another page may have its name resolved to this machine, but not send this host
        host = self.headers.get("Host", "") == f"{HOST}:{self._labeler.server_port}"
        if not host or not parts or not secrets.compare_digest(parts[0].encode(), self._labeler.secret.encode()):
            return None
        return parts[1:]

    def do_GET(self) -> None:
        path = self._path()
        if path == [""]:
            self._send("text/html; charset=utf-8", PAGE.encode())
        elif path == ["present"]:
            self._send("application/json", json.dumps(self._labeler.present()).encode())
        elif path is not None and len(path) == 3 and path[0] == "clip" and path[2] in ("0.png", "1.png"):
            picture = self._labeler.strip(path[1], int(path[2][0]))
            self._send("image/png", picture) if picture is not None else self.send_error(404)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self._path() != ["answer"] or not length.isdecimal():
            self.send_error(404)
        elif int(length) > MOST_BYTES:
            self.send_error(413)
        elif self._labeler.take(self.rfile.read(int(length))):
            self._send("application/json", json.dumps(self._labeler.present()).encode())
        else:
            self.send_error(400)

    def _send(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Disable logging of requests."""
