"""Faults of bundles, robots, sensors and output paths, as a robot's runtime may meet them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.bundle.onnx_scan import scan
from robotrl.deploy.control.run import check_log
from robotrl.deploy.control.safety import BAD, NONE, Mode, SafetyChain, SafetyLimits, SafetyVerdict, limits_of
from robotrl.deploy.robots.channel import Channel, channel_bytes
from robotrl.deploy.robots.link import RobotCommand, message
from robotrl.deploy.runtime import Controller

Rng = np.random.Generator
HUGE = (1e39, -1e39, 1e300, -1e308, 3.5e38, 10**30, -(10**30))
REFUSED, CONTAINED = (Outcome.REFUSED,), (Outcome.CONTAINED,)


@functools.cache
def sound() -> Path:
    """A bundle without a fault, made once per process."""
    from benchmarks.latency.bench import make_policy
    from robotrl.deploy.export import export

    path = Path(tempfile.mkdtemp(prefix="robotrl-faults-")) / "bundle"
    policy = make_policy()
    recorded = np.random.default_rng(0).normal(size=(1000, policy.context_width)).astype(np.float32)
    export(policy, path, observations={"state": recorded}, samples=1000, control_dt_s=0.05)
    return path


@functools.cache
def _text() -> bytes:
    return (sound() / schema.MANIFEST_FILE).read_bytes()


@functools.cache
def _limits() -> SafetyLimits:
    return limits_of(schema.parse(_text()))


@functools.cache
def _controller() -> Controller:
    return Controller.load(sound())


def _sealed(data: dict[str, Any]) -> bytes:
    """Text of an edited manifest with a valid digest."""
    data = {name: value for name, value in data.items() if name != "bundle_id"}
    data["bundle_id"] = hashlib.sha256(strict.canonical(data)).hexdigest()
    return json.dumps(data).encode()


def _leaves(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if items is None:
        return [at]
    return [path for key, value in items for path in _leaves(value, (*at, key))]


def _put(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def _get(data: Any, path: tuple[Any, ...]) -> Any:
    return functools.reduce(lambda node, key: node[key], path, data)


def _pick(rng: Rng, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _contradiction(rng: Rng, folder: Path) -> Outcome:
    """One of two redundant fields, changed."""
    del folder
    data = json.loads(_text())
    action, outputs, safety = data["action"], data["io"]["outputs"], data["safety"]
    i, j = (int(k) for k in rng.permutation(len(action["names"]))[:2])
    factor = float(_pick(rng, (0.5, 2.0, -1.0, 57.3, 1000.0)))

    def swap(values: list[Any]) -> None:
        values[i], values[j] = values[j], values[i]

    edits: list[Callable[[], None]] = [
        lambda: swap(action["names"]),
        lambda: swap(outputs[0]["names"]),
        lambda: swap(outputs[1]["names"]),
        lambda: _put(action["units"], (i,), "rad"),
        lambda: _put(outputs[1]["units"], (j,), "m"),
        lambda: _put(action["scale"], (i,), action["scale"][i] * factor),
        lambda: _put(action["offset"], (i,), action["offset"][i] + factor),
        lambda: _put(safety["high"], (i,), 1.0 + abs(factor)),
        lambda: _put(safety["neutral"], (i,), 1.5 + abs(factor)),
        lambda: _put(data, ("timing", "chunk_length"), 1 + int(rng.integers(2, 40)) * 4),
        lambda: _put(data, ("sampler", "noise_shape"), [int(rng.integers(20, 99)), len(action["names"])]),
        lambda: _put(data, ("sampler", "kind"), "none"),
        lambda: _put(data, ("sampler", "solver"), "ddim"),
        lambda: _put(data, ("io", "inputs", 0, "shape"), [int(rng.integers(20, 99))]),
        lambda: _put(data, ("transforms", "outputs", 0, "scale", i), factor * 3.0),
        lambda: _put(data, ("transforms", "inputs", 0, "key"), "stat"),
        lambda: _put(data, ("safety", "limits", 0, "units", i), "furlong"),
        lambda: _put(data, ("golden", "ticks"), int(rng.integers(0, 64))),
    ]
    _pick(rng, edits)()
    return outcome_of(lambda: schema.parse(_sealed(data)))


def _other_type(rng: Rng, folder: Path) -> Outcome:
    del folder
    data = json.loads(_text())
    path = _pick(rng, [p for p in _leaves(data) if p[0] != "bundle_id"])
    value: Any = _pick(rng, ({}, [[[]]], {"a": [1]}, "x" if not isinstance(_get(data, path), str) else 5))
    _put(data, path, value)
    return outcome_of(lambda: schema.parse(_sealed(data)))


def _beyond_measure(rng: Rng, folder: Path) -> Outcome:
    """An absurd number in the manifest: refused, or the sent actions stay within the limits."""
    del folder
    data = json.loads(_text())
    numbers = [p for p in _leaves(data) if isinstance(_get(data, p), float | int)]
    _put(data, _pick(rng, numbers), _pick(rng, HUGE))
    made: list[schema.Manifest] = []
    outcome = outcome_of(lambda: made.append(schema.parse(_sealed(data))))
    if not made:
        return outcome
    chain = SafetyChain(limits_of(made[0]))
    good = [_sent_is_good(chain.limits, _hostile_tick(rng, chain)) for _ in range(20)]
    return Outcome.CONTAINED if all(good) else Outcome.SILENT


def _hostile_tick(rng: Rng, chain: SafetyChain) -> SafetyVerdict:
    number = _pick(rng, (0.0, np.nan, np.inf, -1e38, 3e38, 1e-45, 0.5))
    width = len(chain.limits.low)
    observed = chain.check({"state": np.full(19, number, np.float32)}, float(_pick(rng, (0.0, 1.0, np.nan))))
    return chain.decide(observed, np.full(width, _pick(rng, (np.nan, 1e38, 0.1, -1e300, np.inf))))


def _sent_is_good(limits: SafetyLimits, verdict: SafetyVerdict) -> bool:
    sent = verdict.action
    return bool(np.isfinite(sent).all() and (sent >= limits.low).all() and (sent <= limits.high).all())


def _damaged_text(rng: Rng, folder: Path) -> Outcome:
    del folder
    text = bytearray(_text())
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(text)))
        match int(rng.integers(3)):
            case 0:
                text[at] ^= 1 << int(rng.integers(8))
            case 1:
                del text[at : at + int(rng.integers(1, 50))]
            case _:
                text[at:at] = rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes()
    found = bytes(text)
    try:
        same = json.loads(found) == json.loads(_text())
    except ValueError:
        same = False
    return outcome_of(lambda: schema.parse(found), Outcome.HARMLESS if same else Outcome.SILENT)


def _field_missing_or_unknown(rng: Rng, folder: Path) -> Outcome:
    del folder
    data = json.loads(_text())
    paths = {p[:n] for p in _leaves(data) for n in range(1, len(p) + 1)}
    named = sorted((p for p in paths if isinstance(p[-1], str) and p[0] not in ("versions", "bundle_id")), key=str)
    path = _pick(rng, [p for p in named if p[-1] not in ("source_dtype", "words", "max_still_s")])
    parent = _get(data, path[:-1]) if len(path) > 1 else data
    value = parent.pop(path[-1])
    if rng.integers(2):
        parent[str(path[-1]) + "_"] = value
    return outcome_of(lambda: schema.parse(_sealed(data)))


def _deep_or_long(rng: Rng, folder: Path) -> Outcome:
    del folder
    depth = int(rng.integers(100, 100_000))
    text = _pick(
        rng,
        (
            b'{"a":' * depth,
            b"[" * depth + b"]" * depth,
            b'{"schema_version": 1, "io": ' + b"[" * depth + b"]" * depth + b"}",
            b'{"schema_version": 1, "' + b"k" * depth + b'": 1}',
            b'{"schema_version": ' + b"9" * depth + b"}",
            b'{"schema_version": 1, "io": "' + b"\\u0000" * depth + b'"}',
            b"\xef\xbb\xbf" + b"{}" * depth,
        ),
    )
    return outcome_of(lambda: schema.parse(text))


def _copied(folder: Path) -> Path:
    return Path(shutil.copytree(sound(), folder / "bundle"))


def _damaged_file(rng: Rng, folder: Path) -> Outcome:
    bundle = _copied(folder)
    place = bundle / str(_pick(rng, (schema.GRAPH_FILE, schema.GOLDEN_FILE)))
    data = bytearray(place.read_bytes())
    at = int(rng.integers(len(data)))
    match int(rng.integers(3)):
        case 0:
            data[at] ^= 1 << int(rng.integers(8))
        case 1:
            del data[at:]
        case _:
            data += rng.integers(0, 256, 7, dtype=np.uint8).tobytes()
    place.write_bytes(data)
    return outcome_of(lambda: open_bundle(bundle))


def _no_plain_file(rng: Rng, folder: Path) -> Outcome:
    bundle = _copied(folder)
    names = (schema.GRAPH_FILE, schema.GOLDEN_FILE, schema.MANIFEST_FILE, "more.bin", "name\n\x1b[31m\udcff")
    place = bundle / str(_pick(rng, names))
    place.unlink(missing_ok=True)
    match int(rng.integers(6)):
        case 0:
            os.mkfifo(place)
        case 1:
            place.mkdir()
        case 2:
            place.symlink_to(_pick(rng, ("/dev/zero", "/etc/passwd", "../bundle", "nowhere", place.name)))
        case 3:
            with socket.socket(socket.AF_UNIX) as made:
                here = os.open(bundle, os.O_RDONLY)
                made.bind(f"/proc/self/fd/{here}/{place.name}")
                os.close(here)
        case 4:
            with place.open("wb") as file:
                file.truncate(int(rng.integers(2 << 30, 10 << 30)))
        case _:
            place.write_bytes(b"")
    return outcome_of(lambda: open_bundle(bundle))


def _foreign_operator(rng: Rng, folder: Path) -> Outcome:
    """A node in the graph that could run other code, read other files or never end."""
    del folder

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + _varint(len(content)) + content

    tensor = field(13, field(1, b"location") + field(2, b"/etc/passwd"))
    node = _pick(
        rng,
        (
            field(4, b"Loop"),
            field(4, b"Scan"),
            field(4, b"SequenceMap"),
            field(4, b"Relu") + field(7, bytes(rng.integers(97, 123, 6, dtype=np.uint8))),
            field(5, field(1, b"value") + field(5, tensor)),
            field(5, field(22, b"")),
            field(5, field(6, field(1, field(4, b"Loop")))),
        ),
    )
    graph = field(7, field(1, node))
    whole = (sound() / schema.GRAPH_FILE).read_bytes()
    return outcome_of(lambda: scan(graph + whole if rng.integers(2) else whole + graph, schema.GRAPH_FILE))


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _seen(rng: Rng) -> dict[str, np.ndarray]:
    return {"state": rng.normal(size=19).astype(np.float32)}


def _held(chain: SafetyChain, obs: dict[str, np.ndarray], age_s: float, now_s: float) -> Outcome:
    """Contained if the tick is bad and the sent action is good."""
    observed = chain.check(obs, age_s, now_s)
    verdict = chain.decide(observed, np.full(len(chain.limits.low), 0.5, np.float32))
    answered = verdict.mode != Mode.ACTIVE and bool(verdict.reason & BAD) and _sent_is_good(chain.limits, verdict)
    return Outcome.CONTAINED if answered else Outcome.SILENT


def _impossible_number(rng: Rng, folder: Path) -> Outcome:
    del folder
    obs = _seen(rng)
    obs["state"][int(rng.integers(19))] = _pick(
        rng, (np.nan, np.inf, -np.inf, 1e6, -1e6, 1e38, 273.15, 4096.0, -32768.0)
    )
    return _held(SafetyChain(_limits()), obs, 0.0, 1.0)


def _impossible_time(rng: Rng, folder: Path) -> Outcome:
    del folder
    chain = SafetyChain(_limits())
    chain.decide(chain.check(_seen(rng), 0.01, 10.0), None)
    back_s = float(rng.uniform(0.001, 5.0))
    age_s = _pick(rng, (back_s + 0.06, 0.11 + back_s, -0.002 - back_s, np.nan, np.inf, -np.inf))
    return _held(chain, _seen(rng), float(age_s), 10.05)


def _frozen(rng: Rng, folder: Path) -> Outcome:
    """A sensor that repeats its values with fresh time stamps, while the robot is told to move."""
    del folder
    chain = SafetyChain(_limits())
    for tick in range(int(rng.integers(2, 10))):
        chain.decide(chain.check(_seen(rng), 0.0, 0.05 * tick), rng.uniform(0.1, 1.0, 4).astype(np.float32))
    kept = _seen(rng)
    for tick in range(20, 30):
        chain.decide(chain.check(kept, 0.0, 0.05 * tick), rng.uniform(0.1, 1.0, 4).astype(np.float32))
    return Outcome.CONTAINED if chain.state.damped else Outcome.SILENT


def _hostile_action(rng: Rng, folder: Path) -> Outcome:
    del folder
    chain = SafetyChain(_limits())
    action: Any = rng.uniform(-1, 1, 4).astype(np.float32)
    if rng.integers(4):
        action[int(rng.integers(4))] = _pick(rng, (np.nan, np.inf, -np.inf, 1e38, -50.0, 1.0001))
    else:
        action = _pick(rng, (None, np.zeros(3, np.float32), np.zeros((4, 1), np.float32), np.zeros(0, np.float32)))
    verdict = chain.decide(NONE, action)
    return Outcome.CONTAINED if verdict.reason and _sent_is_good(chain.limits, verdict) else Outcome.SILENT


def _unusable_observation(rng: Rng, folder: Path) -> Outcome:
    del folder
    obs: dict[str, Any] = _seen(rng)
    match int(rng.integers(6)):
        case 0:
            obs["state"][int(rng.integers(19))] = _pick(rng, (np.nan, np.inf))
        case 1:
            obs["state"] = obs["state"][: int(rng.integers(0, 19))]
        case 2:
            obs["state"] = obs["state"][None]
        case 3:
            obs = {"stat": obs["state"]}
        case 4:
            obs["more"] = obs["state"]
        case _:
            obs["state"] = obs["state"].astype(_pick(rng, (str, object, complex)))
    return outcome_of(lambda: _controller().step(obs))


def _unwritable(rng: Rng, folder: Path) -> Outcome:
    bundle = _copied(folder)
    (folder / "notes").write_bytes(rng.integers(0, 256, 40, dtype=np.uint8).tobytes())
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(bundle / schema.GRAPH_FILE)
    (folder / "circle").symlink_to(folder / "circle")
    inside = [str(path.relative_to(folder)) for path in bundle.iterdir()]
    names = [
        *inside,
        "bundle/new",
        "notes",
        "notes/x",
        "pipe",
        "link",
        "circle",
        ".",
        "y" * 300,
        "a\0b",
        "bundle/../link",
    ]
    before = {path: path.read_bytes() for path in bundle.iterdir()}
    outcome = outcome_of(lambda: check_log(folder / str(_pick(rng, names)), bundle))
    return outcome if before == {path: path.read_bytes() for path in bundle.iterdir()} else Outcome.SILENT


def _other_robot(rng: Rng, folder: Path) -> Outcome:
    """A robot that does not match the bundle, or lists its elements in another order."""
    del folder
    manifest = schema.parse(_text())
    # through JSON, as over the link
    data = json.loads(
        json.dumps(
            {
                "observation_spec": {port.name: port.spec.to_json() for port in manifest.observations},
                "action_spec": {**manifest.io.outputs[0].spec.to_json(), "shape": [4]},
                "control_dt_s": 0.05,
                "inner_dt_s": 0.005,
                "limit_s": 3.0,
                "test_ids": [0, 9],
            }
        )
    )
    part = data["observation_spec"]["state"] if rng.integers(2) else data["action_spec"]
    i = int(rng.integers(len(part["names"])))
    choice = int(rng.integers(5))
    match choice:
        case 0:
            order = np.roll(np.arange(len(part["names"])), int(rng.integers(1, len(part["names"]))))
            for field in ("names", "units", "low", "high"):
                part[field] = [part[field][k] for k in order]
        case 1:
            part["names"][i] += "_"
        case 2:
            part["units"][i] = "deg"
        case 3:
            data["control_dt_s"] *= float(rng.uniform(1.01, 3.0))
        case _:
            data["action_spec"]["low"][i % 4] = float(rng.uniform(0.1, 0.9))  # above the neutral action, 0
    wiring: list[Any] = []
    outcome = outcome_of(lambda: wiring.append(wire(manifest, RobotInfo.from_json(data))))
    if choice == 0 and wiring:
        names = data["observation_spec"]["state"]["names"], data["action_spec"]["names"]
        read = [names[0][k] for k in wiring[0].observations["state"]] == list(manifest.observations[0].names)
        sent = [manifest.action.names[k] for k in wiring[0].action] == names[1]
        return Outcome.CORRECTED if read and sent else Outcome.SILENT
    return outcome


def _torn_message(rng: Rng, folder: Path) -> Outcome:
    """Bytes of shared memory overwritten by another process."""
    del folder
    memory = bytearray(channel_bytes(19))
    channel = Channel(memoryview(memory), 0, 19)
    values = rng.normal(size=19).astype(np.float32)
    channel.write(message(RobotCommand.ACT, tick=1, episode=1, state_id=0, values=values))
    before = channel.read()
    used = 16 + 72 + 19 * 4
    for at in rng.integers(0, used, int(rng.integers(1, 6))):
        memory[at] ^= 1 << int(rng.integers(8))
    found = channel.read()
    if found is None:
        return Outcome.CONTAINED
    same = before is not None and found[:-1] == before[:-1] and (found.values == before.values).all()
    return Outcome.HARMLESS if same else Outcome.SILENT


KINDS: tuple[Kind, ...] = (
    Kind("manifest: two fields contradict each other", REFUSED, 300, _contradiction),
    Kind("manifest: a field of another type", REFUSED, 200, _other_type),
    Kind("manifest: a number beyond all measure", (*REFUSED, *CONTAINED), 200, _beyond_measure),
    Kind("manifest: damaged text", (*REFUSED, Outcome.HARMLESS), 200, _damaged_text),
    Kind("manifest: a field missing or unknown", REFUSED, 200, _field_missing_or_unknown),
    Kind("manifest: nested deeply, or long", REFUSED, 60, _deep_or_long),
    Kind("bundle: a damaged file", REFUSED, 60, _damaged_file),
    Kind("bundle: no plain file", REFUSED, 60, _no_plain_file),
    Kind("graph: a foreign or endless operator", REFUSED, 100, _foreign_operator),
    Kind("sensor: an impossible number", CONTAINED, 300, _impossible_number),
    Kind("sensor: an impossible time", CONTAINED, 300, _impossible_time),
    Kind("sensor: stands still", CONTAINED, 100, _frozen),
    Kind("policy: a hostile action", CONTAINED, 300, _hostile_action),
    Kind("controller: an unusable observation", REFUSED, 200, _unusable_observation),
    Kind("log: a place that must not be written", REFUSED, 60, _unwritable),
    Kind("robot: another one, or in another order", (*REFUSED, Outcome.CORRECTED), 200, _other_robot),
    Kind("link: torn or foreign bytes", (*CONTAINED, Outcome.HARMLESS), 300, _torn_message),
)
