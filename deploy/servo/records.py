"""Records of the servo: ticks, ends of episodes and of the run, and the counts of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.safety import Counters, SafetyChain
from robotrl.deploy.robots.cameras import CameraFrame, packed_numbers, unpacked_numbers
from robotrl.deploy.servo.link import RecordKind, ServoLink
from robotrl.deploy.servo.observing import Observer
from robotrl.deploy.servo.ring import NUMBERS, RingRecord

_POLICY, _OBSERVATION, _BETWEEN, _RECOVERIES = 1, 2, 4, 8
"""Bits of the last number: the record holds an action of the policy, an observation, an action between two control
ticks; and the unit of its count of recoveries."""
_FRAME_FLOATS = 2 * len(CameraFrame._fields)


def room(observation_size: int, action_size: int, cameras: int, steps: int) -> int:
    """Floats of the longest record.

    Args:
        observation_size: length of the robot's flat observation.
        action_size: A.
        cameras: number of cameras.
        steps: servo ticks in a control period.
    """
    return observation_size + 3 * action_size + _FRAME_FLOATS * cameras + most_lateness(steps)


def most_lateness(steps: int) -> int:
    """Servo ticks whose lateness fits into one record."""
    return 2 * steps + 64


def tick_to_record(
    episode: int, tick: Tick, lateness_us: list[float], kind: RecordKind = RecordKind.TICK
) -> tuple[tuple[int, ...], np.ndarray]:
    """Numbers and floats of a tick's record.

    Args:
        episode: serial number of the episode.
        tick: the tick.
        lateness_us: lateness of the servo ticks since the last record.
        kind: `RecordKind.START` for one of the motion to the start pose.
    """
    present = _POLICY * (tick.policy is not None) + _OBSERVATION * (len(tick.observation) > 0)
    present += _BETWEEN * (tick.between is not None) + _RECOVERIES * tick.recoveries
    numbers = (
        int(kind),
        episode,
        tick.tick,
        tick.deadline_ns,
        tick.lateness_ns,
        tick.age_ns,
        tick.read_ns,
        tick.busy_ns,
        tick.inference_ns,
        tick.decision,
        tick.cursor,
        tick.mode,
        tick.reason,
        tick.asked,
        tick.committed,
        present,
    )
    parts = [
        tick.observation,
        *(() if tick.policy is None else (tick.policy,)),
        tick.sent,
        *(() if tick.between is None else (tick.between,)),
        packed_numbers([number for frame in tick.frames for number in frame]),
        np.asarray(lateness_us, np.float32),
    ]
    return numbers, np.concatenate([part.astype(np.float32, copy=False) for part in parts])


def tick_of_record(
    record: RingRecord, observation_size: int, action_size: int, cameras: int
) -> tuple[int, Tick, np.ndarray]:
    """Inverse of `tick_to_record`: episode, tick, lateness in microseconds."""
    (_, episode, number, deadline, lateness, age, read, busy, inference, decision, cursor, mode, reason) = (
        record.numbers[:13]
    )
    asked, committed, present = record.numbers[13:]
    values = record.values
    at = observation_size if present & _OBSERVATION else 0
    observation = values[:at]
    policy = values[at : at + action_size] if present & _POLICY else None
    at += action_size if policy is not None else 0
    sent = values[at : at + action_size]
    at += action_size
    between = values[at : at + action_size] if present & _BETWEEN else None
    at += action_size if between is not None else 0
    numbers = unpacked_numbers(values[at : at + _FRAME_FLOATS * cameras])
    width = len(CameraFrame._fields)
    frames = tuple(CameraFrame(*numbers[i * width : (i + 1) * width]) for i in range(len(numbers) // width))
    at += _FRAME_FLOATS * cameras
    tick = Tick(
        tick=number,
        deadline_ns=deadline,
        lateness_ns=lateness,
        age_ns=age,
        read_ns=read,
        busy_ns=busy,
        inference_ns=inference,
        decision=decision,
        cursor=cursor,
        observation=observation,
        policy=policy,
        sent=sent,
        mode=mode,
        reason=reason,
        asked=asked,
        committed=committed,
        frames=frames,
        recoveries=present // _RECOVERIES,
        between=between,
    )
    return episode, tick, values[at:]


def event(kind: RecordKind, episode: int, *, ticks: int = 0, success: bool = False) -> tuple[int, ...]:
    """Numbers of a record that is not a tick."""
    numbers = (int(kind), episode, ticks, int(success))
    return numbers + (0,) * (NUMBERS - len(numbers))


class ServoRecorder:
    """Writes the servo's records.

    Args:
        link: link to the supervisor.
        observer: reader of the robot's observations, for its counts.
        steps: servo ticks in a control period.

    Attributes:
        misses: control periods in which no command was decided, those of motions to a start pose left out.
        start_misses: control periods of such motions in which none was decided.
    """

    def __init__(self, link: ServoLink, observer: Observer, steps: int) -> None:
        self._link = link
        self._observer = observer
        self._most_lateness = most_lateness(steps)
        self._lateness_us: list[float] = []
        self.misses = self.start_misses = 0

    def note_lateness(self, lateness_us: float) -> None:
        """Note the lateness of a servo tick, for the next record."""
        if len(self._lateness_us) < self._most_lateness:
            self._lateness_us.append(lateness_us)

    def tick(self, episode: int, tick: Tick, kind: RecordKind) -> None:
        """Write a tick's record; see `tick_to_record`."""
        self._link.records.write(*tick_to_record(episode, tick, self._lateness_us, kind))
        self._lateness_us = []

    def end(
        self,
        kind: RecordKind,
        episode: int,
        chain: SafetyChain,
        expired: int,
        success: bool,
        fault: Mapping[str, Any],
    ) -> None:
        """Write the end of an episode or of the run, and the summary of the run so far.

        Args:
            kind: kind of the end.
            episode: serial number of the episode.
            chain: the safety chain, which counts the ticks.
            expired: chunks that were dropped before their end.
            success: the episode succeeded.
            fault: facts of the fault that ended the run, see `fault_words`.
        """
        last = self._observer.last
        self._link.summarize(
            {
                "expired": expired,
                "policy": _counts(self.misses, chain.counters),
                "start": _counts(self.start_misses, chain.start_counters),
                "made_up": 0 if last is None else last.reason,
                "lost_ns": 0 if last is None else last.lost_ns,
                "torn": self._observer.torn,
                "fault": dict(fault),
            }
        )
        self._link.records.write(event(kind, episode, success=success), np.zeros(0, np.float32))


def _counts(misses: int, counters: Counters) -> dict[str, Any]:
    """Entries of a summary; the ticks of the policy and of the motion to a start pose have one each."""
    return {
        "misses": misses,
        "ticks": counters.ticks,
        "held": counters.held,
        "damped": counters.damped,
        "reasons": counters.reasons,
    }
