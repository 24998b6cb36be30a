"""Messages between a policy server and its clients, version 1.

The client opens a websocket with the subprotocol `robotrl.1`. The server says `hello` at once. The client then sends
`infer` requests, and gets for each one `chunk` or one `error` with the request's id. `docs/serve.md` has the fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robotrl.deploy.buffers import InferenceError
from robotrl.deploy.bundle.manifest import Manifest, Port
from robotrl.deploy.remote import wire
from robotrl.deploy.remote.wire import WireError, malformed

SUBPROTOCOL = "robotrl.1"
MAX_ID = 2**53
MAX_DEADLINE_MS = 600_000
CODES = {
    "malformed": "the message is not one of this protocol; the connection is closed",
    "bad_observation": "an array has another name, shape or dtype, or a value that is not finite or cannot be",
    "busy": "too many requests wait already; ask again later",
    "deadline": "the answer was not ready in time",
    "inference_failed": "the policy cannot be computed for this observation",
    "stopping": "the server is being stopped",
    "internal": "the server failed",
}
"""Codes of errors that a server answers with."""
CLIENT_CODES = {
    "disconnected": "there is no connection at present; it is tried again",
    "refused": "the server does not let this client in, or cannot be trusted; it is not tried again",
    "invalid_answer": "the server's message is not one of this protocol",
    "too_large": "the request is larger than the server accepts",
    "cancelled": "the request was cancelled here",
}
"""Codes of errors that a client finds itself."""


class RemoteError(InferenceError):
    """A server did not give a usable chunk.

    Attributes:
        code: a row of `CODES` or `CLIENT_CODES`.
        text: what happened, without the code.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"policy server: {code}: {text}")
        self.code = code
        self.text = text


@dataclass(frozen=True)
class Hello:
    """First message of a connection, from the server.

    Args:
        bundle_id: identity of the bundle that it runs.
        manifest: the text of the bundle's `manifest.json`.
        inference_s: median duration of an inference on the server, in seconds.
        max_message_bytes: size of the largest message that it accepts.
        max_deadline_ms: longest deadline that it accepts.
    """

    bundle_id: str
    manifest: bytes
    inference_s: float
    max_message_bytes: int
    max_deadline_ms: int

    def pack(self) -> bytes:
        """The message."""
        return wire.pack({"type": "hello", **self.__dict__})

    @classmethod
    def parse(cls, data: bytes) -> Hello:
        """Read the message.

        Raises:
            WireError: it is another one, or not well formed.
        """
        names = ("bundle_id", "manifest", "inference_s", "max_message_bytes", "max_deadline_ms")
        given = wire.fields(wire.unpack(data), "hello", ("type", *names))
        if given["type"] != "hello" or not isinstance(given["manifest"], bytes):
            raise malformed("the first message is no hello")
        return cls(
            bundle_id=wire.text(given["bundle_id"], "hello.bundle_id"),
            manifest=given["manifest"],
            inference_s=wire.number(given["inference_s"], "hello.inference_s", 0.0, 3600.0),
            max_message_bytes=wire.whole(given["max_message_bytes"], "hello.max_message_bytes", 1, 2**40),
            max_deadline_ms=wire.whole(given["max_deadline_ms"], "hello.max_deadline_ms", 1, MAX_DEADLINE_MS),
        )


@dataclass(frozen=True)
class InferRequest:
    """Request for one chunk.

    Args:
        id: number that the answer repeats.
        obs: the inputs that the policy reads, by name, in the dtype of `wire_dtype`: all observations, and committed
            actions (inputs of role "prefix" and "prefix_mask"), both or neither; without them there are none.
        noise: (H, A) float32 noise of the sampler; None lets the server draw it.
        deadline_ms: milliseconds from the receipt of the request in which it is worth an answer.
    """

    id: int
    obs: dict[str, np.ndarray]
    noise: np.ndarray | None
    deadline_ms: int

    def pack(self) -> bytes:
        """The message."""
        return wire.pack({"type": "infer", **self.__dict__})

    @classmethod
    def parse(cls, data: bytes) -> InferRequest:
        """Read the message.

        Raises:
            WireError: it is another one, or not well formed.
        """
        given = wire.fields(wire.unpack(data), "message", ("type", "id", "obs", "noise", "deadline_ms"))
        if given["type"] != "infer":
            raise malformed("type is unknown: known: infer")
        obs = given["obs"]
        if not isinstance(obs, dict):
            raise malformed("obs: expected a map of arrays")
        arrays: dict[str, np.ndarray] = {}
        for name, value in obs.items():
            key = wire.text(name, "a name in obs")
            arrays[key] = wire.array(value, f"obs[{key[:60]!r}]")
        return cls(
            id=wire.whole(given["id"], "id", 0, MAX_ID),
            obs=arrays,
            noise=None if given["noise"] is None else wire.array(given["noise"], "noise"),
            deadline_ms=wire.whole(given["deadline_ms"], "deadline_ms", 1, MAX_DEADLINE_MS),
        )


@dataclass(frozen=True)
class ChunkAnswer:
    """A chunk of actions.

    Args:
        id: the request's number.
        actions: (H, A) float32, in the robot's units.
        normalized_action: (H, A) float32, before un-normalisation and clipping; the graph's `raw_action`.
        inference_s: duration of the inference, in seconds.
    """

    id: int
    actions: np.ndarray
    normalized_action: np.ndarray
    inference_s: float

    def pack(self) -> bytes:
        """The message."""
        return wire.pack({"type": "chunk", **self.__dict__})


@dataclass(frozen=True)
class ErrorAnswer:
    """A refusal.

    Args:
        id: the request's number; None where it could not be read.
        code: a row of `CODES`.
        text: one line.
    """

    id: int | None
    code: str
    text: str

    def pack(self) -> bytes:
        """The message."""
        return wire.pack({"type": "error", **self.__dict__})


def parse_answer(data: bytes) -> ChunkAnswer | ErrorAnswer:
    """Read an answer of the server.

    Raises:
        WireError: it is another message, or not well formed.
    """
    message = wire.unpack(data)
    if message.get("type") == "error":
        given = wire.fields(message, "error", ("type", "id", "code", "text"))
        code = wire.text(given["code"], "error.code")
        if code not in CODES:
            raise malformed(f"error.code is {code[:60]!r}: known: {', '.join(CODES)}")
        number = None if given["id"] is None else wire.whole(given["id"], "error.id", 0, MAX_ID)
        return ErrorAnswer(number, code, wire.text(given["text"], "error.text"))
    given = wire.fields(message, "answer", ("type", "id", "actions", "normalized_action", "inference_s"))
    if given["type"] != "chunk":
        raise malformed("type is unknown: known: chunk, error")
    return ChunkAnswer(
        id=wire.whole(given["id"], "chunk.id", 0, MAX_ID),
        actions=wire.array(given["actions"], "chunk.actions"),
        normalized_action=wire.array(given["normalized_action"], "chunk.normalized_action"),
        inference_s=wire.number(given["inference_s"], "chunk.inference_s", 0.0, 3600.0),
    )


def wire_dtype(port: Port) -> str:
    """Dtype in which an input of the graph is sent: pictures and word numbers in their own, all else as float32."""
    return port.source_dtype if port.source_dtype in wire.DTYPES and port.source_dtype[0] in "iu" else "float32"


def check_request(manifest: Manifest, request: InferRequest) -> None:
    """Hold the arrays of a request against the bundle's inputs.

    Raises:
        WireError: the first difference, named.
    """
    known = {port.name: port for port in manifest.read}
    for name in request.obs:
        if name not in known:
            raise _unfit(f"observation {name[:60]!r} is unknown: expected {', '.join(known)}")
    committed = any(port.name in request.obs for port in manifest.prefix)
    ports = known if committed else {port.name: port for port in manifest.observations}
    for name, port in ports.items():
        if name not in request.obs:
            raise _unfit(f"observation {name!r} is missing: expected {', '.join(ports)}")
        _check_array(f"observation {name!r}", request.obs[name], wire_dtype(port), port.shape)
        if port.words and not 0 <= int(request.obs[name].min()) <= int(request.obs[name].max()) < len(port.words):
            raise _unfit(f"observation {name!r} holds a word number outside of 0 to {len(port.words) - 1}")
    shape = manifest.sampler.noise_shape
    if request.noise is not None:
        if shape is None:
            raise _unfit("noise was given: this policy draws none, expected nil")
        _check_array("noise", request.noise, "float32", shape)


def check_chunk(manifest: Manifest, answer: ChunkAnswer) -> None:
    """Hold an answer against the bundle's outputs.

    Raises:
        WireError: another shape or dtype, or a number that is not finite.
    """
    shape = (manifest.timing.chunk_length, len(manifest.action.names))
    _check_array("actions", answer.actions, "float32", shape)
    _check_array("normalized_action", answer.normalized_action, "float32", shape)


def _check_array(what: str, found: np.ndarray, dtype: str, shape: tuple[int, ...]) -> None:
    if found.dtype.name != dtype or found.shape != shape:
        raise _unfit(f"{what} is {found.dtype.name} of shape {found.shape}: expected {dtype} of {shape}")
    at = wire.not_finite(found)
    if at is not None:
        raise _unfit(f"{what} {list(at)} is {found[at]}: expected it finite")


def _unfit(text: str) -> WireError:
    return WireError("bad_observation", text)
