"""Policy server: websockets on one port, inference in a thread of its own, and a health check.

A connection that asks for the subprotocol `robotrl.1` speaks our protocol; one without a subprotocol speaks openpi's.
`GET /healthz` answers while an inference runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, NegotiationError
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from robotrl.deploy.remote import openpi
from robotrl.deploy.remote.access import authorized
from robotrl.deploy.remote.engine import Computed, InferenceEngine, InferenceJob
from robotrl.deploy.remote.protocol import (
    MAX_DEADLINE_MS,
    SUBPROTOCOL,
    ChunkAnswer,
    ErrorAnswer,
    Hello,
    InferRequest,
)
from robotrl.deploy.remote.silent import SILENT
from robotrl.deploy.remote.wire import WireError, malformed
from robotrl.errors import check_count, check_number

HEALTH = "/healthz"
IN_FLIGHT = 4
"""Requests of one connection that may be open at once."""
_OPEN_S, _CLOSE_S, _SEND_S = 10.0, 2.0, 5.0
"""Time limits for a handshake, for closing a connection, and for a client to take an answer, in seconds."""
_GRACE_S = 5.0
"""Time for open requests when the server is stopped."""
_REPORT_EVERY_S = 1.0
_POLICY_VIOLATION, _TRY_AGAIN = 1008, 1013
_OF_THE_LIBRARY = frozenset((1002, 1007, 1009))
"""Close codes of websockets; the last ones are the library's, for a frame that is none, no text, or too large."""


@dataclass(frozen=True)
class ServeCfg:
    """Settings of a policy server.

    Args:
        addresses: numeric addresses to bind, from `access.bind_addresses`.
        port: TCP port; 0 lets the system choose.
        token: what clients must present; None lets everyone in, for loopback alone.
        tls: context of the server's certificate; None for none.
        max_message_mib: largest message that is accepted.
        max_connections: clients at once.
        max_waiting: requests that may wait behind the one that is computed.
        max_deadline_s: longest deadline of a request; openpi's requests have this one.
        keys: where keys of openpi observations belong.
    """

    addresses: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8000
    token: str | None = None
    tls: ssl.SSLContext | None = None
    max_message_mib: float = 16.0
    max_connections: int = 16
    max_waiting: int = 8
    max_deadline_s: float = 10.0
    keys: openpi.OpenpiKeys = field(default_factory=openpi.OpenpiKeys)

    def __post_init__(self) -> None:
        check_count("port", self.port, 0, 65535)
        check_number("max_message_mib", self.max_message_mib, 0.01, 256, "MiB")
        check_count("max_connections", self.max_connections, 1, 1024)
        check_count("max_waiting", self.max_waiting, 1, 1024)
        check_number("max_deadline_s", self.max_deadline_s, 0.001, MAX_DEADLINE_MS / 1e3, "seconds")


class ServeReport(NamedTuple):
    """What a server did until it was stopped."""

    answered: int
    refused: dict[str, int]
    """Number of refusals by code; those before a connection was open by HTTP status."""


class PolicyServer:
    """Serves one bundle until `stop`.

    Args:
        engine: computes the chunks.
        cfg: settings.
    """

    def __init__(self, engine: InferenceEngine, cfg: ServeCfg) -> None:
        self.engine = engine
        self.cfg = cfg
        self._manifest = engine.manifest
        self._manifest_text = engine.manifest.to_bytes()
        self._max_bytes = round(cfg.max_message_mib * 2**20)
        self._stopping = asyncio.Event()
        self._open = 0
        self._requests = 0
        self._answered = 0
        self._refused: Counter[str] = Counter()
        self._reported_s = 0.0

    def stop(self) -> None:
        """Begin to stop; from the event loop's thread."""
        self._stopping.set()

    async def run(self, started: Callable[[Sequence[int]], None]) -> ServeReport:
        """Serve until `stop` is called; open requests are then answered, for `_GRACE_S` at most.

        Args:
            started: called with the ports once they are open.

        Raises:
            OSError: an address cannot be bound.
        """
        server = await serve(
            self._handle,
            self.cfg.addresses,  # type: ignore[arg-type]  # asyncio takes several hosts
            self.cfg.port,
            origins=[None],  # browsers name an origin: no page may talk to a robot
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            select_subprotocol=_subprotocol,
            compression=None,  # small messages that inflate are not accepted
            process_request=self._look_at,
            server_header=None,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            max_size=self._max_bytes,
            max_queue=1,
            logger=SILENT,
            ssl=self.cfg.tls,
        )
        started(_ports(server))
        await self._stopping.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                while self._requests:
                    await asyncio.sleep(0.01)
        server.close()
        await server.wait_closed()
        return ServeReport(self._answered, dict(sorted(self._refused.items())))

    def _look_at(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer the health check, and turn away who may not connect, before a websocket is opened."""
        path = request.path.partition("?")[0]
        if path == HEALTH:
            return self._health()
        if not authorized(_only(request.headers, "Authorization"), self.cfg.token):
            return self._turned_away(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
        if self._stopping.is_set() or self._open >= self.cfg.max_connections:
            return self._turned_away(HTTPStatus.SERVICE_UNAVAILABLE)
        if path != "/":
            return self._turned_away(HTTPStatus.NOT_FOUND)
        return None

    def _health(self) -> Response:
        stuck = self.engine.running_s > self.cfg.max_deadline_s
        status = "stopping" if self._stopping.is_set() else "stuck" if stuck else "ok"
        code = HTTPStatus.OK if status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(code, json.dumps({"status": status}), "application/json")

    def _turned_away(self, code: HTTPStatus, more: dict[str, str] | None = None) -> Response:
        self._refused[f"http_{code.value}"] += 1
        response = _response(code, f"{code.phrase}\n", "text/plain")
        for name, value in (more or {}).items():
            response.headers[name] = value
        return response

    async def _handle(self, connection: ServerConnection) -> None:
        """Serve one connection."""
        if self._open >= self.cfg.max_connections:
            self._refused["http_503"] += 1
            await connection.close(_TRY_AGAIN)
            return
        self._open += 1
        try:
            with contextlib.suppress(ConnectionClosed):
                if connection.subprotocol is None:
                    await self._serve_openpi(connection)
                else:
                    await self._serve_own(connection)
            closed = connection.protocol.close_sent
            if closed is not None and closed.code in _OF_THE_LIBRARY:
                self._refused[f"close_{closed.code}"] += 1
        finally:
            self._open -= 1

    async def _serve_own(self, connection: ServerConnection) -> None:
        hello = Hello(
            bundle_id=self._manifest.bundle_id,
            manifest=self._manifest_text,
            inference_s=self.engine.inference_s,
            max_message_bytes=self._max_bytes,
            max_deadline_ms=int(self.cfg.max_deadline_s * 1e3),
        )
        await self._send(connection, hello.pack())
        open_requests: set[asyncio.Task[None]] = set()
        try:
            async for data in connection:
                arrived_s = time.monotonic()
                try:
                    request = InferRequest.parse(_binary(data))
                except WireError as error:
                    await self._send(connection, self._refusal(None, error).pack())
                    await connection.close(_POLICY_VIOLATION, error.code)
                    return
                if len(open_requests) >= IN_FLIGHT:
                    error = WireError("busy", f"{IN_FLIGHT} requests of this connection are open already")
                    await self._send(connection, self._refusal(request.id, error).pack())
                    continue
                task = asyncio.create_task(self._answer(connection, request, arrived_s))
                open_requests.add(task)
                task.add_done_callback(open_requests.discard)
        finally:
            # whoever has gone gets no answer
            for task in open_requests:
                task.cancel()
            await asyncio.gather(*open_requests, return_exceptions=True)

    async def _answer(self, connection: ServerConnection, request: InferRequest, arrived_s: float) -> None:
        limit_s = min(request.deadline_ms / 1e3, self.cfg.max_deadline_s)
        with self._active(), contextlib.suppress(ConnectionClosed):
            try:
                chunk = await self._computed(partial(self.engine.submit_request, request), arrived_s + limit_s)
            except WireError as error:
                await self._send(connection, self._refusal(request.id, error).pack())
            else:
                self._answered += 1
                await self._send(connection, ChunkAnswer(request.id, *chunk).pack())

    async def _serve_openpi(self, connection: ServerConnection) -> None:
        await self._send(connection, openpi.pack_metadata(self._manifest, self.engine.inference_s))
        async for data in connection:
            with self._active():
                wrong = await self._answer_openpi(connection, data)
            if wrong:
                await connection.close(_POLICY_VIOLATION, "malformed")
                return

    async def _answer_openpi(self, connection: ServerConnection, data: bytes | str) -> bool:
        """Answer one observation; True if it was no message of the protocol."""
        deadline_s = time.monotonic() + self.cfg.max_deadline_s
        try:
            obs = self.cfg.keys.observation(self._manifest, openpi.unpack_observation(_binary(data)))
            chunk = await self._computed(partial(self.engine.submit_observation, obs), deadline_s)
        except WireError as error:
            refusal = self._refusal(None, error)
            await self._send(connection, f"{refusal.code}: {refusal.text}")
            return error.code == "malformed"
        self._answered += 1
        await self._send(connection, openpi.pack_actions(chunk))
        return False

    @contextlib.contextmanager
    def _active(self) -> Generator[None]:
        """A request from its arrival until its answer has been sent."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _computed(self, submit: Callable[[float], InferenceJob], deadline_s: float) -> Computed:
        """Queue a job and wait for it until its deadline.

        Raises:
            WireError: why there is no chunk.
        """
        if self._stopping.is_set():
            raise WireError("stopping", "the server is being stopped")
        job = submit(deadline_s)
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                return await asyncio.wrap_future(job.future)
        except TimeoutError:
            raise WireError("deadline", "no answer was ready in time") from None
        finally:
            if not job.future.done():
                self.engine.abandon(job)

    def _refusal(self, number: int | None, error: WireError) -> ErrorAnswer:
        self._refused[error.code] += 1
        if error.code in ("inference_failed", "internal") and time.monotonic() - self._reported_s > _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            print(f"{error.code}: {self.engine.last_failure}", file=sys.stderr, flush=True)
        return ErrorAnswer(number, error.code, error.text)

    async def _send(self, connection: ServerConnection, data: bytes | str) -> None:
        """Send a message; a client that does not take it is cut off."""
        try:
            async with asyncio.timeout(_SEND_S):
                await connection.send(data)
        except TimeoutError:
            self._refused["not_taken"] += 1
            connection.transport.abort()


def _subprotocol(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Our protocol where the client offers it, openpi's where it offers none."""
    if offered and SUBPROTOCOL not in offered:
        raise NegotiationError(f"expected the subprotocol {SUBPROTOCOL}, or none for openpi's client")
    return Subprotocol(SUBPROTOCOL) if offered else None


def _binary(data: bytes | str) -> bytes:
    if isinstance(data, str):
        raise malformed("it is a text frame: expected a binary one")
    return data


def _only(headers: Headers, name: str) -> str | None:
    """Value of a header that must not be repeated; None if it is missing or repeated."""
    values = headers.get_all(name)
    return values[0] if len(values) == 1 else None


def _response(code: HTTPStatus, text: str, kind: str) -> Response:
    body = text.encode()
    headers = Headers({"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"})
    return Response(code.value, code.phrase, headers, body)


def _ports(server: Server) -> list[int]:
    return [int(socket.getsockname()[1]) for socket in server.sockets]
