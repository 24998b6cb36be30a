"""Client of a policy server, for robots: numpy, websockets and msgpack alone.

The connection lives in a thread with an event loop of its own. A call waits for its answer with a time limit and never
for the network itself; a lost connection is tried again in the background.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import os
import random
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from robotrl.deploy.buffers import host_transforms
from robotrl.deploy.bundle.manifest import Manifest, parse
from robotrl.deploy.noise import CounterNoise
from robotrl.deploy.remote.access import check_url, client_tls
from robotrl.deploy.remote.protocol import (
    MAX_DEADLINE_MS,
    SUBPROTOCOL,
    ChunkAnswer,
    ErrorAnswer,
    Hello,
    InferRequest,
    RemoteError,
    check_chunk,
    check_request,
    parse_answer,
    wire_dtype,
)
from robotrl.deploy.remote.silent import SILENT
from robotrl.deploy.remote.wire import WireError
from robotrl.errors import ConfigError, DataError, NumericsError, check_number
from robotrl.spec.checks import misfit

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 2.0
"""Time before a lost connection is tried again: doubled after each failure, up to the longest; with jitter."""
_OPEN_S, _CLOSE_S = 5.0, 0.5
_MAX_ANSWER_BYTES = 64 << 20
_POLICY_VIOLATION, _TOO_LARGE = 1008, 1009
_PERMANENT = frozenset((400, 401, 403, 404, 426))
"""HTTP status of a server that will not let this client in, however often it asks."""


class _Connect(connect):
    """A connection that goes where it was told: a redirect would carry the observations to another server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class RemotePolicy:
    """A policy behind a policy server. Use it as a context manager, or call `close`.

    `infer` is for one thread at a time; `cancel` may be called from another one.

    Args:
        url: "ws://HOST:PORT" or "wss://HOST:PORT".
        token: the server's token, if it asks for one.
        tls_ca: certificate to trust for wss:// instead of the system's authorities.
        bundle_id: the bundle that the server must run, now and after each reconnection; None takes the first one.
        seed: seed of the sampler's noise, which the client draws.
        timeout_s: time limit of the first connection, and of an `infer` without its own, in seconds.

    Raises:
        ConfigError: an argument is invalid.
        RemoteError: there is no connection after `timeout_s`, the server does not let this client in, or it runs
            another bundle.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        bundle_id: str | None = None,
        seed: int = 0,
        timeout_s: float = 10.0,
    ) -> None:
        self.url = check_url(url, "url")
        check_number("timeout_s", timeout_s, 0.001, MAX_DEADLINE_MS / 1e3, "seconds")
        if seed < 0:
            raise ConfigError(f"seed is {seed!r}: expected 0 or more")
        self.timeout_s = timeout_s
        self.seed = seed
        self.connections = 0
        """Number of connections that were opened; more than 1 after a reconnection."""
        self._token = token
        self._tls: ssl.SSLContext | None = client_tls(url, None if tls_ca is None else Path(tls_ca))
        self._bundle_id = bundle_id
        self._manifest: Manifest | None = None
        self._hello: Hello | None = None
        self._socket: ClientConnection | None = None
        self._why = RemoteError("disconnected", f"{url} has not answered yet")
        self._changed = threading.Condition()
        self._waiting: dict[int, asyncio.Future[ChunkAnswer]] = {}
        self._next_id = 0
        self._call: concurrent.futures.Future[ChunkAnswer] | None = None
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="robotrl-remote", daemon=True)
        self._thread.start()
        try:
            self.wait_connected(timeout_s)
        except BaseException:
            self.close()
            raise
        manifest = self.manifest
        shape = manifest.sampler.noise_shape
        # a server steers where the bundle has a steering graph
        draws = manifest.draws_noise(steered=True)
        self._noise = CounterNoise(shape, seed) if draws and shape is not None else None
        self._host_in = host_transforms(manifest.transforms.inputs)
        self._host_out = host_transforms(manifest.transforms.outputs)

    def __enter__(self) -> RemotePolicy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def manifest(self) -> Manifest:
        """The manifest of the server's bundle, verified against its identity."""
        if self._manifest is None:
            raise self._why
        return self._manifest

    @property
    def inference_s(self) -> float:
        """Median duration of an inference as the server measured it, without the network, in seconds."""
        return 0.0 if self._hello is None else self._hello.inference_s

    @property
    def connected(self) -> bool:
        """Whether there is a connection at present."""
        return self._socket is not None

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until there is a connection.

        Raises:
            RemoteError: there is none after that time, or there will be none; with the last reason.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._socket is not None or self._final, timeout_s)
            if self._socket is None:
                raise RemoteError(self._why.code, self._why.text)

    def infer(self, obs: Mapping[str, np.ndarray], decision: int, timeout_s: float | None = None) -> np.ndarray:
        """Chunk of actions for one observation, as `Controller.infer` computes it.

        Args:
            obs: one array for each observation of the bundle, raw, in the units and order of its manifest; committed
                actions beside them, as for `Controller.infer`.
            decision: index of the noise, 0 or more.
            timeout_s: time limit in seconds; None takes the client's.

        Returns:
            (H, A) float32 in the robot's units.

        Raises:
            ConfigError: an observation is missing, unknown, of another shape or dtype, or cannot be.
            NumericsError: an observation is not finite.
            RemoteError: there is no answer in time, or the server refused.
        """
        inputs = self._inputs(obs)
        noise = None if self._noise is None else self._noise.draw(decision)
        actions = self.compute(inputs, noise, self.timeout_s if timeout_s is None else timeout_s).actions
        return actions if self._host_out is None else self._host_out({"action": actions})["action"]

    def compute(self, inputs: Mapping[str, np.ndarray], noise: np.ndarray | None, timeout_s: float) -> ChunkAnswer:
        """Compute the graph on its own inputs.

        Args:
            inputs: the inputs that the policy reads, by name, as `InferRequest.obs`; converted to the dtypes that are
                sent.
            noise: (H, A) float32; None lets the server draw it.
            timeout_s: time limit in seconds.

        Raises:
            RemoteError: there is no answer in time, or the server refused.
        """
        manifest = self.manifest
        sent = {
            port.name: np.asarray(inputs[port.name]).astype(wire_dtype(port), copy=False)
            for port in manifest.read
            if port.name in inputs
        }
        self._next_id += 1
        deadline_ms = min(max(1, math.ceil(timeout_s * 1e3)), MAX_DEADLINE_MS)
        request = InferRequest(self._next_id, sent, noise, deadline_ms)
        try:
            check_request(manifest, request)
        except WireError as error:
            raise RemoteError(error.code, error.text) from error
        self._call = asyncio.run_coroutine_threadsafe(self._ask(request), self._loop)
        try:
            return self._call.result(timeout_s)
        except TimeoutError:
            raise RemoteError("deadline", f"no answer within {timeout_s:g} s") from None
        except concurrent.futures.CancelledError:
            raise RemoteError("cancelled", "the request was cancelled") from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """End the `infer` of another thread at once; the server's answer is dropped."""
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """Close the connection and end the thread. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self.cancel()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(_OPEN_S)

    def _inputs(self, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Check a raw observation and apply the transforms of the host."""
        ports = {port.name: port for port in self.manifest.observations}
        committed = {port.name: np.asarray(obs[port.name]) for port in self.manifest.prefix if port.name in obs}
        obs = {name: array for name, array in obs.items() if name not in committed}
        if obs.keys() != ports.keys():
            raise ConfigError(f"observations are {', '.join(obs)}: expected {', '.join(ports)}")
        arrays: dict[str, np.ndarray] = {}
        for name, port in ports.items():
            array = np.asarray(obs[name])
            if wrong := misfit(name, array, port.spec, by_value=True):
                raise ConfigError(wrong)
            arrays[name] = array.astype(np.float32)
            if not np.isfinite(arrays[name]).all():
                raise NumericsError(f"observation {name!r} is not finite: expected it finite")
        if self._host_in is not None:
            arrays |= self._host_in(arrays)
        return arrays | committed

    # -- in the thread of the connection --

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._main = self._loop.create_task(self._connections())
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    def _end(self) -> None:
        if self._main is not None:
            self._main.cancel()

    async def _connections(self) -> None:
        """Keep a connection open, until the client is closed or the server refuses it for good."""
        retry_s = FIRST_RETRY_S
        while True:
            begun_s = time.monotonic()
            try:
                await self._connected()
            except RemoteError as error:
                self._lost(error)
            except InvalidStatus as error:
                self._lost(_turned_away(error.response.status_code))
            except InvalidMessage:
                self._lost(RemoteError("disconnected", "it ended while the connection was opened"))
            except (InvalidURI, InvalidHandshake) as error:
                self._lost(RemoteError("refused", f"it does not speak {SUBPROTOCOL}: {type(error).__name__}"))
            except ssl.SSLCertVerificationError as error:  # a subclass of OSError
                self._lost(RemoteError("refused", f"its certificate is not trusted: {error.verify_message}"))
            except (OSError, TimeoutError, ConnectionClosed, EOFError) as error:
                self._lost(RemoteError("disconnected", _reason(error)))
            if self._why.code == "refused":
                self._notify()
                await self._loop.create_future()  # the loop goes on until `close`
            lasted = time.monotonic() - begun_s > LONGEST_RETRY_S
            retry_s = FIRST_RETRY_S if lasted else min(2 * retry_s, LONGEST_RETRY_S)
            await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))

    async def _connected(self) -> None:
        """Open one connection and receive until it ends."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        async with _Connect(
            self.url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            additional_headers=headers,
            user_agent_header=None,
            proxy=None,  # the token is for the server alone
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            max_size=_MAX_ANSWER_BYTES,
            max_queue=4,
            logger=SILENT,
            ssl=self._tls,
        ) as socket:
            if socket.subprotocol != SUBPROTOCOL:
                raise RemoteError("refused", f"it does not speak {SUBPROTOCOL}")
            async with asyncio.timeout(_OPEN_S):
                first = await socket.recv()
            self._accept(first)
            self.connections += 1
            self._socket = socket
            self._notify()
            try:
                async for data in socket:
                    self._receive(data)
                raise RemoteError("disconnected", "it closed the connection")
            finally:
                self._socket = None

    def _accept(self, data: bytes | str) -> None:
        """Verify the server's first message: the manifest has the identity that it states, and is the wanted one."""
        try:
            hello = Hello.parse(data if isinstance(data, bytes) else b"")
            manifest = parse(hello.manifest)
        except (WireError, DataError) as error:
            raise RemoteError("refused", f"its first message is invalid: {error}") from error
        if hello.bundle_id != manifest.bundle_id:
            raise RemoteError("refused", "the manifest that it sends is of another bundle than it states")
        if self._bundle_id is not None and manifest.bundle_id != self._bundle_id:
            raise RemoteError(
                "refused", f"it runs bundle {manifest.bundle_id[:12]}...: expected {self._bundle_id[:12]}..."
            )
        self._bundle_id = manifest.bundle_id
        self._manifest, self._hello = manifest, hello

    def _receive(self, data: bytes | str) -> None:
        """Hand an answer to the call that waits for it.

        Raises:
            RemoteError: it is no answer to anything that was asked; the connection is closed.
        """
        try:
            answer = parse_answer(data if isinstance(data, bytes) else b"")
            if isinstance(answer, ChunkAnswer):
                check_chunk(self.manifest, answer)
        except WireError as error:
            raise RemoteError("invalid_answer", error.text) from error
        if answer.id is None or not 0 < answer.id <= self._next_id:
            text = answer.text if isinstance(answer, ErrorAnswer) else "an answer to a question that was not asked"
            raise RemoteError("invalid_answer", text)
        waiting = self._waiting.get(answer.id)
        if waiting is None or waiting.done():
            return  # too late: its call has been given up
        if isinstance(answer, ErrorAnswer):
            waiting.set_exception(RemoteError(answer.code, answer.text))
        else:
            waiting.set_result(answer)

    async def _ask(self, request: InferRequest) -> ChunkAnswer:
        socket, hello = self._socket, self._hello
        if socket is None or hello is None:
            raise RemoteError(self._why.code, self._why.text)
        data = request.pack()
        if len(data) > hello.max_message_bytes:
            raise RemoteError("too_large", f"the request has {len(data)} bytes: at most {hello.max_message_bytes}")
        answer = self._loop.create_future()
        self._waiting[request.id] = answer
        try:
            await socket.send(data)
            return await answer
        except ConnectionClosed as error:
            raise RemoteError("disconnected", _reason(error)) from error
        finally:
            del self._waiting[request.id]

    def _lost(self, why: RemoteError) -> None:
        with self._changed:
            self._why = why
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RemoteError(why.code, why.text))

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def _final(self) -> bool:
        return self._why.code == "refused"


def _turned_away(status: int) -> RemoteError:
    text = {401: "it asks for another token"}.get(status, f"it answers with HTTP status {status}")
    return RemoteError("refused" if status in _PERMANENT or 300 <= status < 400 else "disconnected", text)


def _reason(error: BaseException) -> str:
    """Why a connection failed or ended, in one line."""
    if isinstance(error, ConnectionClosed):
        if error.rcvd is None:
            return "the connection was lost"
        return f"it closed the connection with code {error.rcvd.code} {error.rcvd.reason}".rstrip()
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return error.strerror or str(error) if isinstance(error, OSError) else type(error).__name__
