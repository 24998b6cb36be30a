"""A chat completions server on this machine, with faults to switch on."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class ChatCall(NamedTuple):
    """A call as the server saw it."""

    number: int
    prompt: str
    picture: NDArray[np.uint8] | None
    """The only picture, or the last one."""
    frames: tuple[NDArray[np.uint8], ...]
    """All pictures, in the order of the message."""
    body: dict[str, Any]
    authorization: str | None


@dataclass
class ChatServer:
    """Serves `answer` at `base_url` until it is closed.

    `fault` gives the fault of each call by its number: None, a status such as 500 or 429, or one of `drop` (no answer),
    `hang`, `drip` (a byte now and then), `truncated`, `oversized`, `endless` (no length, no end), `redirect`, `garbage`
    (no JSON), `nan`, `deep`, `other form`, `no usage`, `echo` (a 401 that repeats the key).
    """

    answer: Callable[[ChatCall], Any]
    """Object that the model answers with, as JSON."""
    key: str | None = None
    """Key that calls must have."""
    delay_s: Callable[[int], float] = lambda number: 0.0
    fault: Callable[[int], str | int | None] = lambda number: None
    retry_after: str | None = None
    usage: tuple[int, int] = (100, 10)
    calls: list[ChatCall] = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._begun, self._running = 0, 0
        handler = type("Handler", (_Handler,), {"chat": self})
        self._http = _Http(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def begin(self) -> int:
        with self._lock:
            self._begun += 1
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            return self._begun - 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1

    def close(self) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> ChatServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no news."""


class _Handler(BaseHTTPRequestHandler):
    chat: ChatServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        number = self.chat.begin()
        try:
            self._answer(number)
        finally:
            self.chat.end()

    def _answer(self, number: int) -> None:
        chat = self.chat
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = _seen(number, body, self.headers.get("Authorization"))
        chat.calls.append(call)
        if self.path != "/v1/chat/completions":
            return self._send(404, b"{}")
        if chat.key is not None and call.authorization != f"Bearer {chat.key}":
            return self._send(401, b'{"error": "no such key"}')
        chat.over.wait(chat.delay_s(number))
        fault = chat.fault(number)
        said = json.dumps(chat.answer(call))
        data = json.dumps(completion(said, chat.usage)).encode()
        if fault is None:
            return self._send(200, data)
        self._fault(fault, data, call)

    def _fault(self, fault: str | int, data: bytes, call: ChatCall) -> None:
        chat = self.chat
        if isinstance(fault, int):
            return self._send(fault, b"{}", {"Retry-After": chat.retry_after} if chat.retry_after else {})
        if fault == "hang":
            chat.over.wait()
        elif fault == "drop":
            self.connection.close()
        elif fault == "drip":
            self._head(200, {"Content-Length": str(len(data))})
            for at in range(len(data)):
                self.wfile.write(data[at : at + 1])
                self.wfile.flush()
                if chat.over.wait(0.02):
                    break
        elif fault == "truncated":
            self._head(200, {"Content-Length": str(len(data) + 10)})
            self.wfile.write(data)
        elif fault == "oversized":
            self._send(200, data + b" " * (1 << 20))
        elif fault == "endless":
            self._head(200, {})
            while not chat.over.is_set():
                self.wfile.write(b" " * 4096)
        elif fault == "redirect":
            self._send(307, b"", {"Location": f"{chat.base_url}/chat/completions?again"})
        elif fault == "echo":
            self._send(401, json.dumps({"error": f"wrong key {call.authorization}"}).encode())
        else:
            self._send(200, _OTHER[fault])

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(data))} | (headers or {}))
        self.wfile.write(data)


def completion(text: str | None, usage: tuple[int, int] | None) -> dict[str, Any]:
    """A response in the protocol's form."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    found: dict[str, Any] = {"object": "chat.completion", "created": int(time.time()), "choices": [choice]}
    if usage is not None:
        found["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return found


def _seen(number: int, body: dict[str, Any], authorization: str | None) -> ChatCall:
    parts = body["messages"][-1]["content"]
    text = next(part["text"] for part in parts if part["type"] == "text")
    frames: list[NDArray[np.uint8]] = []
    for part in parts:
        if part["type"] == "image_url":
            kind, data = part["image_url"]["url"].split(",", 1)
            assert kind == "data:image/png;base64"
            frames.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")))
    return ChatCall(number, text, frames[-1] if frames else None, tuple(frames), body, authorization)


_OTHER = {
    "garbage": b"\xff<html>not json",
    "nan": json.dumps(completion('{"choice": NaN}', (1, 1))).encode(),
    "deep": b"[" * 20_000 + b"]" * 20_000,
    "other form": json.dumps(completion('The answer is {"choice": 1}', (1, 1))).encode(),
    "null": json.dumps(completion(None, (1, 1))).encode(),
    "list": b"[]",
    "no usage": json.dumps(completion('{"choice": 1}', None)).encode(),
}
