"""Messages of openpi's client (`openpi-client`), so that robots which use it connect to our server unchanged.

openpi's server sends its metadata first. The client then sends one observation a message, a map of arrays and texts,
and gets a map with `actions` (H, A); a text frame stands for an error. An array is a map whose keys are bytes
(`__ndarray__`, `data`, `dtype`, `shape`), a numpy scalar one with `__npgeneric__`.

`docs/serve.md` states how an observation's keys find the bundle's ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgpack
import numpy as np

from robotrl.deploy.bundle.manifest import Manifest, Port
from robotrl.deploy.remote import wire
from robotrl.deploy.remote.engine import Computed
from robotrl.deploy.remote.wire import WireError, malformed
from robotrl.errors import ConfigError, nearest, short, unknown
from robotrl.fn.text.words import encode
from robotrl.spec import is_picture

PROMPT = "prompt"
_ARRAY = {b"__ndarray__", b"data", b"dtype", b"shape"}
_SCALAR = {b"__npgeneric__", b"data", b"dtype"}
_DTYPES = {dtype.str: dtype for dtype in wire.DTYPES.values()}
"""numpy's short names ("<f4"), as openpi writes them."""


@dataclass(frozen=True)
class OpenpiKeys:
    """How keys of openpi observations find a bundle's ports, beside the general rule.

    Args:
        ports: from keys ("observation/wrist_image") to port names; "" drops the key.
    """

    ports: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, pairs: Sequence[str], manifest: Manifest) -> OpenpiKeys:
        """Read "KEY=PORT" texts; "KEY=" drops the key.

        Raises:
            ConfigError: one has no "=", names a key twice, or a port that the bundle lacks.
        """
        known = [port.name for port in manifest.observations]
        ports: dict[str, str] = {}
        for pair in pairs:
            key, separator, port = pair.rpartition("=")
            if not separator or not key:
                raise ConfigError(f"map {short(repr(pair))}: expected KEY=PORT, or KEY= to drop the key")
            if key in ports:
                raise ConfigError(f"map names {short(repr(key))} twice: expected each key once")
            if port and port not in known:
                raise unknown(f"map {key}=", port, known)
            ports[key] = port
        return cls(ports)

    def observation(self, manifest: Manifest, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Raw observation of the bundle's ports from an unpacked openpi observation.

        Raises:
            WireError: a key or a port without a counterpart, or a value that does not fit; it is named.
        """
        ports = {port.name: port for port in manifest.observations}
        source: dict[str, str] = {}
        for key in given:
            name = self._port(key, ports)
            if name == "":
                continue
            if name is None:
                close = nearest(key.rpartition("/")[2], ports)
                hint = f"did you mean {close!r}? " if close else ""
                raise _unmapped(
                    f"{short(repr(key), 60)} has no port of that name: {hint}the bundle has {', '.join(ports)};"
                    f" robotrl serve --map KEY=PORT says where it belongs, --map KEY= drops it"
                )
            if name in source:
                raise _unmapped(f"{short(repr(source[name]), 60)} and {short(repr(key), 60)} both mean port {name!r}")
            source[name] = key
        for name in ports:
            if name not in source:
                raise _unmapped(f"port {name!r} is missing: the observation has {short(', '.join(given), 200)}")
        return {name: _value(ports[name], key, given[key]) for name, key in source.items()}

    def _port(self, key: str, ports: Mapping[str, Port]) -> str | None:
        """Name of the port that a key means; "" for none by request, None for none."""
        if key in self.ports:
            return self.ports[key]
        for name in (key, key.rpartition("/")[2]):
            if name in ports:
                return name
        spoken = [name for name, port in ports.items() if port.words]
        return spoken[0] if key == PROMPT and len(spoken) == 1 else None


def _unmapped(text: str) -> WireError:
    return WireError("bad_observation", f"observation {text}")


def _value(port: Port, key: str, value: Any) -> np.ndarray:
    what = f"{short(repr(key), 60)} (port {port.name!r})"
    if isinstance(value, str):
        if not port.words:
            raise _unmapped(f"{what} is text: expected numbers of shape {port.shape}")
        numbers = {word: number for number, word in enumerate(port.words) if word}
        try:
            return encode(value, numbers, port.shape[-1], what=what, limit="", vocabulary="the bundle")
        except ConfigError as error:
            raise _unmapped(str(error)) from error
    array = cast("np.ndarray", value)
    if array.shape == port.shape:
        return array
    if array.shape == () and port.shape == (1,):
        return array.reshape(1)
    if is_picture(port.spec) and array.ndim == 3 and (*array.shape[1:], array.shape[0]) == port.shape:
        # channels first, as some robots send them
        return np.moveaxis(array, 0, -1)
    raise _unmapped(f"{what} has shape {array.shape}: expected {port.shape}")


def unpack_observation(data: bytes) -> dict[str, Any]:
    """Arrays and texts of an openpi observation by flat key; nested maps are joined by "/".

    Raises:
        WireError: not such a message.
    """
    flat: dict[str, Any] = {}
    _flatten(wire.unpack(data), "", flat)
    return flat


def _flatten(value: dict[Any, Any], prefix: str, flat: dict[str, Any]) -> None:
    for key, item in value.items():
        if not isinstance(key, str):
            raise malformed("a key of the observation is bytes: expected text")
        path = f"{prefix}{key}"
        if path in flat:
            raise malformed(f"the observation names {short(repr(path), 60)} twice")
        if isinstance(item, dict):
            parts = cast("dict[Any, Any]", item)
            if parts.keys() & {b"__ndarray__", b"__npgeneric__"}:
                flat[path] = _array(parts, short(repr(path), 60))
            else:
                _flatten(parts, f"{path}/", flat)
        elif isinstance(item, str):
            flat[path] = item
        elif isinstance(item, bool | int | float):
            flat[path] = np.asarray(item, np.float64)
        else:
            raise malformed(f"{short(repr(path), 60)} is a {type(item).__name__}: expected an array, a number or text")


def _array(parts: dict[Any, Any], what: str) -> np.ndarray:
    scalar = b"__npgeneric__" in parts
    if parts.keys() != (_SCALAR if scalar else _ARRAY):
        raise malformed(f"{what} is no array of openpi's form")
    name = parts[b"dtype"]
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise malformed(f"{what}: dtype is unknown: expected one of {', '.join(_DTYPES)}")
    if not scalar:
        return wire.array_of(dtype, parts[b"shape"], parts[b"data"], what)
    number = parts[b"data"]
    if not isinstance(number, bool | int | float):
        raise malformed(f"{what} is no number")
    return np.asarray(number, np.float64)


def pack_metadata(manifest: Manifest, inference_s: float) -> bytes:
    """First message to an openpi client: what the bundle takes and gives, for people to read."""
    return _pack(
        {
            "bundle_id": manifest.bundle_id,
            "observations": {port.name: list(port.shape) for port in manifest.observations},
            "action_names": list(manifest.action.names),
            "action_units": list(manifest.action.units),
            "action_horizon": manifest.timing.chunk_length,
            "execute": manifest.timing.execute,
            "control_period_s": manifest.timing.control_period_s,
            "inference_ms": inference_s * 1e3,
        }
    )


def pack_actions(chunk: Computed) -> bytes:
    """Answer to an openpi client: the whole chunk (H, A) float32 in the robot's units."""
    return _pack({"actions": chunk.actions, "server_timing": {"infer_ms": chunk.inference_s * 1e3}})


def _pack(message: dict[str, Any]) -> bytes:
    return cast("bytes", msgpack.packb(message, default=_packed))


def _packed(value: Any) -> dict[bytes, Any]:
    array = cast("np.ndarray", value)
    shape = list(array.shape)
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": shape}
