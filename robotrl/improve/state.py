"""State of an improvement on the disk: one file, replaced whole after each stage, from which a killed one goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robotrl.errors import ConfigError, DataError, short
from robotrl.utils.files import dump_json, read_json, replace_file

SCHEMA_VERSION = 1
STATE_FILE = "state.json"
Stage = Literal["read", "collect", "label", "fit", "gate", "done"]
ROUND_STAGES: tuple[Stage, ...] = ("collect", "label", "fit", "gate")


class RoundRecord(NamedTuple):
    """One round, as far as it went."""

    number: int
    """From 1."""
    policy: str
    """Run or checkpoint of the policy of before."""
    episodes: int = 0
    successes: int = 0
    candidate: str | None = None
    """Run of the candidate; None if there is none."""
    critic: dict[str, Any] | None = None
    """Fields of `HeldOutQuality`; None without a critic."""
    refusal: dict[str, str] | None = None
    """Fields of `ChangeRefusal`: the reason for which the round ended before the gate; None if it did not."""
    gate: dict[str, Any] | None = None
    """Fields of `GateDecision`; None before it."""

    @property
    def accepted(self) -> bool:
        """True if the candidate took the policy's place."""
        return self.gate is not None and bool(self.gate["accepted"])

    @property
    def why(self) -> str:
        """Reason of what came of the round; empty while it is under way."""
        if self.refusal is not None:
            return self.refusal["text"]
        return "" if self.gate is None else str(self.gate["why"])


class ImproveState(NamedTuple):
    """State of an improvement."""

    settings: Mapping[str, Any]
    """Settings that the numbers depend on, as JSON values."""
    policy: str
    """Run or checkpoint of the best policy so far: that of before until a candidate is accepted."""
    digest: str
    """`policy_digest` of it."""
    stage: Stage = "read"
    """The stage to run next."""
    rounds: tuple[RoundRecord, ...] = ()
    left_out: Mapping[str, int] = {}
    """Number of logged episodes that were left out, by the reason."""
    faults: tuple[dict[str, str], ...] = ()
    """Fields of each `LogFault`."""
    checked: Mapping[str, int] = {}
    """Episodes by whether the sim could tell their success again: "same" and "other"."""
    notes: tuple[str, ...] = ()
    """Sentences on what was not checked, or not judged."""
    bundle: str | None = None
    """The new bundle; None if there is none."""

    @property
    def improved(self) -> bool:
        """True if a candidate was accepted."""
        return any(record.accepted for record in self.rounds)

    @property
    def last(self) -> RoundRecord:
        """The round under way, or the last one."""
        return self.rounds[-1]

    def with_last(self, **changes: Any) -> ImproveState:
        """The state with changed fields of the last round."""
        return self._replace(rounds=(*self.rounds[:-1], self.last._replace(**changes)))


def begin(out: Path, new: ImproveState) -> ImproveState:
    """State to go on from: the one in the folder, or a new one.

    Args:
        out: folder of the improvement.
        new: state of a new one, with the settings asked for.

    Raises:
        ConfigError: the folder holds an improvement with other settings, or other files.
        DataError: its state is damaged.
    """
    place = out / STATE_FILE
    if not place.exists():
        # a session that was killed at once leaves its lock and an unfinished file
        there = [] if not out.is_dir() else sorted(x for x in os.listdir(out) if x != "lock" and not x.startswith("."))
        if there:
            raise ConfigError(f"--out is {out}: it holds {short(there[0])} and no {STATE_FILE}, expected a new folder")
        return new
    found = read_state(out)
    for name, value in new.settings.items():
        if found.settings.get(name) != value:
            had = short(str(found.settings.get(name)))
            raise ConfigError(
                f"--out is {out}: it was begun with {name} {had}, now {short(str(value))}: expected the same"
            )
    return found


def read_state(out: Path) -> ImproveState:
    """Read the state of an improvement.

    Raises:
        DataError: there is none, or it is damaged.
    """
    data = read_json(out / STATE_FILE, "state of an improvement", SCHEMA_VERSION)
    del data["schema_version"]
    try:
        rounds = tuple(RoundRecord(**record) for record in data.pop("rounds"))
        lists = {name: tuple(data.pop(name)) for name in ("faults", "notes")}
        return ImproveState(rounds=rounds, **lists, **data)
    except (KeyError, TypeError) as error:
        raise DataError(f"{out / STATE_FILE} is no state of an improvement: {short(repr(error))}") from error


def write_state(out: Path, state: ImproveState) -> None:
    """Write the state atomically.

    Raises:
        DataError: the disk is full or failing; the state before is intact.
    """
    data = state._asdict() | {"rounds": [record._asdict() for record in state.rounds]}
    try:
        replace_file(out / STATE_FILE, dump_json({"schema_version": SCHEMA_VERSION, **data}))
    except OSError as error:
        raise DataError(f"{out / STATE_FILE} cannot be written: {error.strerror}") from error
