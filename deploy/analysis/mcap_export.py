"""Export of a control log to MCAP: JSON messages with JSON schemas, one message per tick and topic.

Topics: `/observation/KEY` for each observation, `/action/policy`, `/action/sent`, `/safety`, `/timing`. The log time of
a message is the wake-up of its tick (deadline plus lateness). Format: https://mcap.dev/spec.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mcap.writer import Writer

from robotrl import __version__
from robotrl.deploy.analysis.ticks import ControlTicks
from robotrl.deploy.control.safety import Mode, Reason

TIMES = ("deadline_ns", "lateness_ns", "age_ns", "read_ns", "busy_ns", "inference_ns")
FRAME = ("number", "stamp_ns", "checksum")
"""Fields of a camera's frame; its pixels are not exported."""
COUNTS = ("decision", "cursor", "asked", "committed")
_NUMBER, _WHOLE, _TEXT = {"type": ["number", "null"]}, {"type": "integer"}, {"type": "string"}


class McapTopic(NamedTuple):
    """A topic and the schema of its messages."""

    topic: str
    properties: dict[str, Any]
    """JSON schema of each field beside `episode` and `tick`."""


def mcap_bytes(ticks: ControlTicks) -> bytes:
    """The log as an MCAP file, with its header as metadata `control_log`.

    Numbers are those of the log; NaN and infinities become null, since JSON has none.
    """
    file = io.BytesIO()
    writer = Writer(file)
    writer.start(profile="", library=f"robotrl {__version__}")
    channels: dict[str, int] = {}
    for topic, properties in topics(ticks):
        whole = {"episode": _WHOLE, "tick": _WHOLE, **properties}
        schema = {"type": "object", "properties": whole, "required": list(whole)}
        name = f"robotrl{topic.replace('/', '.')}"
        number = writer.register_schema(name=name, encoding="jsonschema", data=json.dumps(schema).encode())
        channels[topic] = writer.register_channel(topic=topic, message_encoding="json", schema_id=number)
    header = {key: value if isinstance(value, str) else json.dumps(value) for key, value in ticks.header.items()}
    writer.add_metadata("control_log", header)
    for record, time_ns in zip(ticks.records, log_times_ns(ticks), strict=True):
        for topic, fields in messages(ticks, record):
            data = json.dumps({"episode": record["episode"], "tick": record["tick"], **fields}, allow_nan=False)
            writer.add_message(channel_id=channels[topic], log_time=time_ns, publish_time=time_ns, data=data.encode())
    writer.finish()
    return file.getvalue()


def topics(ticks: ControlTicks) -> list[McapTopic]:
    """Topics of a log."""
    observations = [
        McapTopic(f"/observation/{key}", {name: {} for name in _fields(ticks, key)}) for key in ticks.observation_keys
    ]
    cameras = [McapTopic(f"/observation/{key}", dict.fromkeys(FRAME, _WHOLE)) for key in ticks.camera_keys]
    action = dict.fromkeys(ticks.names, _NUMBER)
    safety = {"mode": _TEXT, "reasons": {"type": "array", "items": _TEXT}}
    return [
        *observations,
        *cameras,
        McapTopic("/action/policy", action),
        McapTopic("/action/sent", action),
        McapTopic("/safety", safety),
        McapTopic("/timing", dict.fromkeys((*TIMES, *COUNTS), _WHOLE)),
    ]


def messages(ticks: ControlTicks, record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Topic and fields of each message of a tick."""
    for key in ticks.observation_keys:
        names = _fields(ticks, key)
        values = record["obs"][key]
        yield f"/observation/{key}", _named(names, [values] if names == ["values"] else values)
    for key in ticks.camera_keys:
        yield f"/observation/{key}", {name: record["frames"][key][name] for name in FRAME}
    yield "/action/policy", _named(ticks.names, record["policy"])
    yield "/action/sent", _named(ticks.names, record["sent"])
    reasons = [str(reason.name).lower() for reason in Reason(record["reason"])]
    yield "/safety", {"mode": Mode(record["mode"]).name.lower(), "reasons": reasons}
    # older logs lack some of them
    absent = {**dict.fromkeys(TIMES, 0), "asked": -1, "committed": 0}
    yield "/timing", {name: record.get(name, absent.get(name)) for name in (*TIMES, *COUNTS)}


def log_times_ns(ticks: ControlTicks) -> list[int]:
    """Log time of each tick, in nanoseconds.

    The wall clock at the start of each episode counts, where the log states it (`start_unix_ns`). Older logs do not:
    there the first episode begins at 0 and each other one a control period after the end of the one before it.
    """
    starts: dict[int, int] = {}
    found: list[int] = []
    for record in ticks.records:
        episode = record["episode"]
        if episode not in starts:
            after = found[-1] + round(ticks.period_s * 1e9) if found else 0
            starts[episode] = int(record.get("start_unix_ns", after))
        found.append(starts[episode] + record["deadline_ns"] + record["lateness_ns"])
    return found


def _fields(ticks: ControlTicks, key: str) -> list[str]:
    """Names of an observation's fields; "values" for an array that has not one number for each name."""
    names = list(ticks.header["observations"][key])
    return names if ticks.is_flat(key) and not {"episode", "tick"} & set(names) else ["values"]


def _named(names: Sequence[str], values: list[Any] | None) -> dict[str, Any]:
    found = [None] * len(names) if values is None else [_plain(value) for value in values]
    return dict(zip(names, found, strict=True))


def _plain(value: Any) -> Any:
    """A number or nested list without NaN and infinities, which the log writes as texts."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None
