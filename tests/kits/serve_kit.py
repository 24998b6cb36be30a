"""A policy server in a process of its own, and a policy that sees and is told, for the tests of remote inference."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from websockets.asyncio.server import ServerConnection, serve

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.export import export
from robotrl.deploy.remote.protocol import SUBPROTOCOL, ChunkAnswer, Hello, InferRequest
from robotrl.policies.flow import FlowCfg
from robotrl.policies.guided import GuidedCfg
from robotrl.spec import Spec, committed_specs
from robotrl.transforms import Affine, Clip, TransformGroup, torch_backend
from tests.kits.deploy_cart import ACTION, ACTION_SPEC, OBSERVATION_SPEC, PERIOD_S, WORDS

TOKEN = "correct-horse-battery-staple"
OBS = {"state": np.float32([0.1, 0.2, 0.3, 0.0]), "touch": np.float32([1.0])}
SIDE = 8
SEEN_SPEC = {
    "state": OBSERVATION_SPEC["state"],
    "image": Spec((SIDE, SIDE, 3), ("red", "green", "blue"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"),
    "instruction": Spec((2,), ("word_0", "word_1"), ("1",) * 2, (0.0,) * 2, (2.0,) * 2, "int32", WORDS),
}


class TinySeer(nn.Module):
    """A policy of one layer that sees a picture and is told in words; draws no noise."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec, self.action_spec, self.horizon = SEEN_SPEC, ACTION_SPEC, kit.HORIZON
        self.noise_shape, self.denoising_steps, self.control_dt_s = None, 1, PERIOD_S
        self.transforms = TransformGroup(inputs=(), outputs=(clip(),))
        torch.manual_seed(0)
        self.net = nn.Linear(4 + SIDE * SIDE * 3 + 2, kit.HORIZON * ACTION)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> kit.Deployed:
        flat = torch.cat([obs["state"], obs["image"].flatten(1) / 255.0, obs["instruction"]], dim=-1)
        out = self.net(flat).reshape(-1, kit.HORIZON, ACTION)
        return kit.Deployed(torch_backend(self.transforms.outputs)({"action": out})["action"], out)


def seer_bundle(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 3, size=(1200, 2))
    words[:, 0] = np.maximum(words[:, 0], 1)
    recorded = {
        "state": rng.normal(size=(1200, 4)).astype(np.float32),
        "image": rng.integers(0, 256, size=(1200, SIDE, SIDE, 3)).astype(np.float32),
        "instruction": words.astype(np.float32),
    }
    export(TinySeer(), folder / "seer.bundle", observations=recorded)
    return folder / "seer.bundle"


def slow_bundle(folder: Path, power: int, chain: int) -> Path:
    """A bundle whose inference takes long where `state[0]` is above 100; see `graphs.grows`."""
    folder.mkdir(exist_ok=True)
    copy = kit.copied("goal", folder, folder.parent)

    def without_ranges(data: dict[str, object]) -> None:
        data["safety"]["limits"] = []  # type: ignore[index]
        for port in data["io"]["inputs"]:  # type: ignore[index]
            port.pop("max_still_s", None)

    return graphs.reseal(graphs.grows(copy, power=power, chain=chain), without_ranges)


def slow_obs(size: float) -> dict[str, np.ndarray]:
    return {**OBS, "state": np.float32([100.0 + size, 0.0, 0.0, 0.0])}


class Served(NamedTuple):
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str
    port: int

    def health(self, context: object = None) -> tuple[int, dict[str, str]]:
        """Status code and content of the health check."""
        url = self.url.replace("ws", "http", 1) + "/healthz"
        try:
            with urllib.request.urlopen(url, timeout=20, context=context) as answer:  # type: ignore[arg-type]
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def resident_bytes(self) -> int:
        """Memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def served(bundle: Path, *options: str, port: int = 0, **environment: str) -> Generator[Served]:
    """`robotrl serve` in a process of its own; it is killed at the end if it still runs."""
    command = [sys.executable, "-m", "robotrl.cli", "serve", str(bundle), "--port", str(port), *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment}) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                if found := re.match(r"serving at (wss?://\S+:(\d+))$", line):
                    yield Served(process, found[1], int(found[2]))
                    return
            raise AssertionError(process.stderr.read())
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()


def stopped(server: Served, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
    """Stop a server in order; its exit code and what it has said."""
    server.process.send_signal(number)
    out, err = server.process.communicate(timeout=60)
    return server.process.returncode, out, err


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def until(true: object, seconds: float = 30.0) -> None:
    """Wait until a function returns something true."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-days", "2"]
    subprocess.run([*command, *name, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


Answer = Callable[[InferRequest, Manifest], list[bytes | str]]


@contextlib.contextmanager
def lying(of: Manifest, answer: Answer, **hello: Any) -> Generator[str]:
    """A server that answers requests as it is told to; its address."""
    fields = {
        "bundle_id": of.bundle_id,
        "manifest": of.to_bytes(),
        "inference_s": 0.001,
        "max_message_bytes": 1 << 20,
        "max_deadline_ms": 10_000,
        **hello,
    }

    async def handle(connection: ServerConnection) -> None:
        await connection.send(hello["raw"] if "raw" in hello else Hello(**fields).pack())
        async for data in connection:
            assert isinstance(data, bytes)
            for said in answer(InferRequest.parse(data), of):
                await connection.send(said)

    loop = asyncio.new_event_loop()

    async def start() -> Any:
        return await serve(handle, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], compression=None)

    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        asyncio.run_coroutine_threadsafe(_closed(server.wait_closed), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _closed(wait: Callable[[], Awaitable[None]]) -> None:
    await wait()


def chunk(number: int, value: float = 0.0, shape: tuple[int, ...] = (2, 2), dtype: str = "float32") -> bytes:
    array = np.full(shape, value, dtype)
    return ChunkAnswer(number, array, array, 0.001).pack()


class TinyCommitted(TinySeer):
    """A policy of one layer that knows the actions under way; draws no noise."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = {"state": OBSERVATION_SPEC["state"], **committed_specs(ACTION_SPEC, 2)}
        self.net = nn.Linear(4 + 2 * ACTION + 2, kit.HORIZON * ACTION)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> kit.Deployed:
        flat = torch.cat([obs[key] for key in self.observation_spec], dim=-1)
        out = self.net(flat).reshape(-1, kit.HORIZON, ACTION) / 10.0
        return kit.Deployed(torch_backend(self.transforms.outputs)({"action": out})["action"], out)


def guided_bundle(folder: Path) -> Path:
    """Bundle of a small flow policy with chunks of 8 actions, of which 3 guide the next chunk."""
    torch.manual_seed(0)
    specs = {"state": OBSERVATION_SPEC["state"]}
    transforms = TransformGroup(outputs=(Affine("action", (0.5,) * ACTION, (0.0,) * ACTION), clip()))
    base = FlowCfg(horizon=8, hidden=(16,)).build(specs, ACTION_SPEC, transforms)
    base.control_dt_s = PERIOD_S
    policy = GuidedCfg(overlap=3).build(base)
    rng = np.random.default_rng(0)
    recorded = {
        key: rng.normal(size=(1200, *spec.shape)).astype(np.float32) for key, spec in policy.observation_spec.items()
    }
    export(policy, folder / "guided.bundle", observations=recorded)
    return folder / "guided.bundle"


def clip() -> Clip:
    return Clip("action", ACTION_SPEC.low, ACTION_SPEC.high)


def committed_bundle(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    policy = TinyCommitted()
    recorded = {
        key: rng.normal(size=(1200, *spec.shape)).astype(np.float32) for key, spec in policy.observation_spec.items()
    }
    export(policy, folder / "committed.bundle", observations=recorded)
    return folder / "committed.bundle"
