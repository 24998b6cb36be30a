"""Faults of messages to a policy server: 100,000 of them against one process, and what they leave behind."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.faults.deploy import sound
from benchmarks.faults.kind import LOGGER, Kind, Outcome
from benchmarks.kit.messages import Messages
from robotrl.deploy.remote.client import RemotePolicy
from robotrl.deploy.remote.protocol import InferRequest, wire_dtype

Rng = np.random.Generator
FIRST, EACH = 10_000, 15_000
"""Messages before the memory is measured first, and of each kind after it; together 100,000."""
MAX_GROWTH_BYTES = 5 << 20
MAX_MESSAGE_MIB = 0.1
KINDS_OF_MESSAGES = (
    "malformed",
    "of another schema",
    "truncated",
    "oversized",
    "unauthenticated",
    "broken frames",
)


class _Server:
    """A server in a process of its own, from the first message to the end of this process."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(24)
        command = [sys.executable, "-m", "robotrl.cli", "serve", str(sound()), "--port", "0", "--token-env", "TOKEN"]
        self.process = subprocess.Popen(
            [*command, "--max-message-mib", str(MAX_MESSAGE_MIB)],
            env={**os.environ, "TOKEN": self.token},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        atexit.register(self.process.kill)
        said = iter(self.process.stdout or ())
        self.url = next(found[1] for line in said if (found := re.match(r"serving at (\S+)$", line)))
        self.canary = Path(tempfile.mkdtemp(prefix="robotrl-serve-")) / "canary"
        with RemotePolicy(self.url, token=self.token) as policy:
            manifest = policy.manifest
        obs = {port.name: np.zeros(port.shape, wire_dtype(port)) for port in manifest.observations}
        request = InferRequest(1, obs, None, 10_000).pack()
        self.messages = Messages(self.url, self.token, request, self.canary, round(MAX_MESSAGE_MIB * 2**20))
        self.sent = 0
        self.before_bytes = 0

    def resident_bytes(self) -> int:
        """Memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def alive(self) -> bool:
        """Whether it still runs, and answers its health check."""
        with urllib.request.urlopen(self.url.replace("ws", "http", 1) + "/healthz", timeout=60) as answer:
            return self.process.poll() is None and json.loads(answer.read()) == {"status": "ok"}


@functools.cache
def _server() -> _Server:
    return _Server()


def _sent(way: Callable[[Messages, Rng], str]) -> Callable[[Rng, Path], Outcome]:
    """An attempt that sends one message and looks at the answer, and now and then at the server."""

    def attempt(rng: Rng, folder: Path) -> Outcome:
        server = _server()
        server.messages.answered = False
        wrong = way(server.messages, rng)
        outcome = Outcome.HARMLESS if server.messages.answered else Outcome.REFUSED
        server.sent += 1
        if server.sent == FIRST:
            server.before_bytes = server.resident_bytes()
        if not wrong and server.sent % 1000 == 0 and not (server.alive() and not server.canary.exists()):
            wrong = "the server is not well, or has executed a message"
        if wrong:
            LOGGER.debug("%s", wrong)
            print(wrong, flush=True)
        return Outcome.SILENT if wrong else outcome

    return attempt


def _mixed(messages: Messages, rng: Rng) -> str:
    return messages.attempt(rng, int(rng.integers(len(messages.ways))))


def _of(name: str) -> Callable[[Messages, Rng], str]:
    return lambda messages, rng: messages.ways[name](rng)


def _memory_kept(rng: Rng, folder: Path) -> Outcome:
    """The server's memory since the first messages; and it answers a sound request."""
    server = _server()
    grown = server.resident_bytes() - (server.before_bytes or server.resident_bytes())
    print(f"{server.sent} messages, memory grown by {grown / 2**20:.2f} MiB since the first {FIRST}", flush=True)
    with RemotePolicy(server.url, token=server.token) as policy:
        obs = {port.name: np.zeros(port.shape, np.float32) for port in policy.manifest.observations}
        well = np.isfinite(policy.infer(obs, 0)).all() and server.alive() and not server.canary.exists()
    return Outcome.CONTAINED if well and grown < MAX_GROWTH_BYTES else Outcome.SILENT


REFUSED, CONTAINED = (Outcome.REFUSED, Outcome.HARMLESS), (Outcome.CONTAINED,)
KINDS: tuple[Kind, ...] = (
    Kind("messages of all kinds in turn", REFUSED, FIRST, _sent(_mixed)),
    *(Kind(f"messages {name}", REFUSED, EACH, _sent(_of(name))) for name in KINDS_OF_MESSAGES),
    Kind("the server after 100,000 messages", CONTAINED, 1, _memory_kept),
)
