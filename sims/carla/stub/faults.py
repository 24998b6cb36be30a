"""Faults on request, written `KIND[=VALUE][:TARGET[:AFTER[:TIMES]]]`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from robotrl.errors import ConfigError, unknown

ALIASES = {
    "tick": "tick_cue",
    "get_world": "get_episode_info",
    "get_snapshot": "get_episode_info",
    "load_world": "load_new_episode",
    "generate_opendrive_world": "copy_opendrive_to_file",
    "spawn": "spawn_actor*",
    "destroy": "destroy_actor",
    "apply_control": "apply_control_to_vehicle",
    "apply_settings": "set_episode_settings",
    "get_settings": "get_episode_settings",
    "get_map": "get_map_info",
    "get_server_version": "version",
    "get_blueprint_library": "get_actor_definitions",
    "get_actors": "get_actors_by_id",
    "apply_batch_sync": "apply_batch",
}
"""Names of the Python client, for calls of the protocol."""


class _Kind(NamedTuple):
    target: str
    value: str
    of_calls: bool


KINDS = {
    "die": _Kind("tick_cue", "", True),
    "hang": _Kind("tick_cue", "", True),
    "late": _Kind("tick_cue", "1.0", True),
    "stale": _Kind("tick_cue", "silent", True),
    "close": _Kind("tick_cue", "", True),
    "version": _Kind("*", "0.9.15", False),
    "map": _Kind("*", "OtherTown", False),
    "refuse": _Kind("*", "Spawn failed because of collision at spawn position", False),
    "drop": _Kind("sensor.camera.*", "", False),
    "delay": _Kind("sensor.camera.*", "1", False),
    "swap": _Kind("sensor.camera.*", "", False),
}
"""Kinds of faults, each with what it hits and its value by default; see docs/sims/carla.md."""
_NUMBERS = ("late", "delay")
_STALE = ("silent", "repeat")


@dataclass
class StubFault:
    """A fault.

    Attributes:
        kind: of `KINDS`.
        value: seconds, a version, a name: what the kind needs.
        target: pattern of the calls or blueprints that it hits.
        after: how many of them it lets pass first.
        times: how many it hits; None for all that follow.
    """

    kind: str
    value: str
    target: str
    after: int = 0
    times: int | None = None
    seen: int = 0

    def hits(self, name: str) -> bool:
        """Count a call or blueprint of that name, and say whether the fault hits it."""
        if not fnmatchcase(name, self.target):
            return False
        self.seen += 1
        return self.after < self.seen and (self.times is None or self.seen <= self.after + self.times)


def parse(text: str, calls: Collection[str]) -> StubFault:
    """Read a fault.

    Args:
        text: such as `die:tick:100`, `late=2.5:spawn:0:1`, `version=0.9.15`, `refuse:vehicle.*:3:1`.
        calls: names of the calls of the protocol.

    Raises:
        ConfigError: the part that is wrong.
    """
    head, *rest = text.split(":")
    kind, _, value = head.partition("=")
    if kind not in KINDS:
        raise unknown("fault", kind, KINDS)
    known = KINDS[kind]
    if len(rest) > 3:
        raise ConfigError(f"fault is {text!r}: expected KIND[=VALUE][:TARGET[:AFTER[:TIMES]]]")
    target = rest[0] if rest and rest[0] else known.target
    if known.of_calls:
        target = ALIASES.get(target, target)
        if not any(fnmatchcase(call, target) for call in calls):
            raise unknown(f"target of fault {text!r}", target, {*calls, *ALIASES})
    value = value or known.value
    if kind in _NUMBERS:
        _number(text, value)
    if kind == "stale" and value not in _STALE:
        raise unknown(f"value of fault {text!r}", value, _STALE)
    counts = [_count(text, part) for part in rest[1:]]
    return StubFault(kind, value, target, *counts)


def _number(text: str, value: str) -> None:
    try:
        wrong = not 0.0 <= float(value) < 1e6
    except ValueError:
        wrong = True
    if wrong:
        raise ConfigError(f"fault is {text!r}: its value is {value!r}: expected a number of 0 or more")


def _count(text: str, part: str) -> int:
    if not part.isdecimal():
        raise ConfigError(f"fault is {text!r}: {part!r} in it: expected a whole number of 0 or more")
    return int(part)


class Faults:
    """The faults that are in force."""

    def __init__(self) -> None:
        self.list: list[StubFault] = []

    def hit(self, name: str, *kinds: str) -> StubFault | None:
        """First fault of these kinds that hits a call or blueprint; each of them counts it."""
        found = [fault for fault in self.list if fault.kind in kinds and fault.hits(name)]
        return found[0] if found else None

    def value(self, kind: str) -> str | None:
        """Value of the last fault of that kind; None without one."""
        found = [fault.value for fault in self.list if fault.kind == kind]
        return found[-1] if found else None
