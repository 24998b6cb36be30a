"""Offline replay of a control log: recompute policy and safety chain, and compare the actions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.deploy.buffers import NATIVE_NOISE, Runtime
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.site import SiteLimits, tightened
from robotrl.deploy.control.frames import read_frame
from robotrl.deploy.control.instructions import instruction_misfit, instructions_of
from robotrl.deploy.control.log import START_TICK, array_of, read_log
from robotrl.deploy.control.safety import (
    NONE,
    OUTSIDE,
    Reason,
    SafetyChain,
    SafetyLimits,
    SafetyVerdict,
    is_plausible,
    limits_of,
)
from robotrl.deploy.control.start import MotionToStart, toward
from robotrl.deploy.history import ObservationHistory
from robotrl.deploy.inference.request import committed_inputs
from robotrl.deploy.robots.cameras import NO_FRAME
from robotrl.deploy.runtime import Controller
from robotrl.deploy.servo.reflex import RiskGuard, guard_of
from robotrl.deploy.state import State
from robotrl.errors import DataError
from robotrl.spec import Spec

_KEPT = 3
"""Decisions to remember: a tick uses the newest chunk or one that was asked for shortly before."""


class ReplayReport(NamedTuple):
    """Results of a replay."""

    ticks: int
    decisions: int
    policy_max_abs: float
    """Largest difference between a logged action of the policy and the one computed now; 0 on the same machine."""
    sent_max_abs: float
    """The same for the actions sent by the safety chain."""
    verdicts_differ: int = 0
    """Ticks whose mode or reasons are not those of the log."""
    policy_at: tuple[int, int] | None = None
    """Episode and tick of the largest difference of the policy's action; None if all are equal."""
    sent_at: tuple[int, int] | None = None
    """The same for the sent action."""


class ReplayedTick(NamedTuple):
    """One tick of a log, computed again."""

    record: dict[str, Any]
    """The tick's record in the log."""
    chunk: np.ndarray | None
    """(H, A) chunk that its action belongs to; None where the policy gave no action."""
    action: np.ndarray | None
    """(A,) the policy's action."""
    verdict: SafetyVerdict
    """Result of the safety chain."""

    @property
    def policy_error(self) -> float:
        """Largest difference between the logged and the computed action of the policy; 0 without one."""
        if self.action is None or self.record["policy"] is None:
            return 0.0 if self.action is None and self.record["policy"] is None else math.inf
        return largest_difference(self.action, array_of(self.record["policy"]))

    @property
    def sent_error(self) -> float:
        """The same for the sent action."""
        return largest_difference(self.verdict.action, array_of(self.record["sent"]))

    @property
    def same_verdict(self) -> bool:
        """True if mode and reasons are those of the log."""
        return self.verdict.mode == self.record["mode"] and self.verdict.reason == self.record["reason"]


def largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest absolute difference of two arrays; NaN at the same place, and the same infinity, are equal."""
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    differing = np.abs(a[~equal].astype(np.float64) - b[~equal])
    return float(np.nan_to_num(differing, nan=np.inf).max(initial=0.0))


def replay(log: str | os.PathLike[str], bundle: str | os.PathLike[str]) -> ReplayReport:
    """Recompute every tick of a log.

    Args:
        log: a log of `run_control`.
        bundle: the bundle that was used.

    Raises:
        DataError: not a log, or the log is of another bundle.
    """
    ticks = differ = 0
    decisions: set[int] = set()
    policy_error, sent_error = 0.0, 0.0
    policy_at: tuple[int, int] | None = None
    sent_at: tuple[int, int] | None = None
    for tick in replayed_ticks(log, bundle):
        ticks += 1
        at = (int(tick.record["episode"]), int(tick.record["tick"]))
        differ += not tick.same_verdict
        if tick.chunk is not None:
            decisions.add(int(tick.record["decision"]))
        of_policy, of_sent = tick.policy_error, tick.sent_error
        if of_policy > policy_error:
            policy_error, policy_at = of_policy, at
        if of_sent > sent_error:
            sent_error, sent_at = of_sent, at
    return ReplayReport(ticks, len(decisions), policy_error, sent_error, differ, policy_at, sent_at)


def replayed_ticks(
    log: str | os.PathLike[str], bundle: str | os.PathLike[str], episode: int | None = None
) -> Iterator[ReplayedTick]:
    """Recompute the ticks of a log in order, each when it is asked for.

    Args:
        log: a log of `run_control`.
        bundle: the bundle that was used.
        episode: replay this one alone; None replays all. The state of the safety chain begins anew with each episode.

    Raises:
        DataError: not a log, or the log is of another bundle.
    """
    header, records = read_log(Path(log))
    # older logs have no `engine`; bits are those of one engine
    native = header.get("engine") in ("native", NATIVE_NOISE)
    runtime: Runtime = "native" if native else "python"
    # of bundles with a steering graph alone
    steer = bool(header.get("steer", True))
    controller = Controller.load(bundle, seed=int(header["seed"]), runtime=runtime, steer=steer)
    if header["bundle_id"] != controller.manifest.bundle_id:
        raise DataError(
            f"log {os.fspath(log)!r} is of bundle {str(header['bundle_id'])[:12]}...: "
            f"{os.fspath(bundle)!r} is {controller.manifest.bundle_id[:12]}..."
        )
    chain, gate = _chain(header, controller.manifest), instructions_of(controller.manifest)
    guard = guard_of(controller.manifest, controller.bundle.risk)
    serial, chunks = -1, _Chunks(controller, Path(log), records, chain.limits)
    plan, starting = _start_plan(header), False
    for record in records:
        if record["kind"] == "lost":
            chunks.forget()
        if record["kind"] not in ("tick", START_TICK) or episode not in (None, record["episode"]):
            continue
        if record["episode"] != serial:
            serial = record["episode"]
            chain.reset()
            chunks.begin(serial)
        if record["kind"] == START_TICK:
            starting = True
            yield _start_tick(chain, gate, record, plan)
            continue
        if starting:
            starting = False
            chain.hand_over()
        chunks.note(record)
        chunk = None if record["policy"] is None else chunks.chunk(int(record["decision"]))
        action = None if chunk is None else chunk[int(record["cursor"]) - 1]
        yield ReplayedTick(record, chunk, action, _verdict(chain, gate, record, action, guard))


def _chain(header: dict[str, Any], manifest: Manifest) -> SafetyChain:
    """The safety chain of a run."""
    limits = limits_of(manifest)
    if header.get("site") is not None:
        site = SiteLimits.parse(json.dumps(header["site"]).encode(), "site of the log")
        limits = tightened(limits, manifest, site)
    limits = limits._replace(low=array_of(header["low"]), high=array_of(header["high"]))
    if not header.get("placed"):
        # older logs start from the neutral action
        limits = limits._replace(measured=None)
    # older logs have no `dry_run`; the sensors of a robot that is held stand still
    return SafetyChain(limits._replace(max_still_s={}) if header.get("dry_run") else limits)


def _start_plan(header: dict[str, Any]) -> MotionToStart | None:
    """Motion to the start pose of a run; None where the driver moved the robot, as in older logs."""
    motion = header.get("start_motion")
    return None if motion is None else MotionToStart(*(array_of(motion[name]) for name in MotionToStart._fields))


def _start_tick(
    chain: SafetyChain, gate: Mapping[str, Spec], record: dict[str, Any], plan: MotionToStart | None
) -> ReplayedTick:
    """Compute a tick of the motion to the start pose again."""
    if plan is None:
        raise DataError("the log has a motion to a start pose, and its header does not say which (start_motion)")
    outside = Reason(record["reason"]) & OUTSIDE
    observed = NONE if outside else _observed(chain, gate, record)
    # a run that is stopped ends without a command of the motion
    action = None if outside or observed else toward(plan, chain.state.sent)
    reason = Reason(record["reason"]) & Reason.STARTING
    return ReplayedTick(record, None, action, chain.decide(observed | outside | reason, action))


def _verdict(
    chain: SafetyChain,
    gate: Mapping[str, Spec],
    record: dict[str, Any],
    action: np.ndarray | None,
    guard: RiskGuard | None,
) -> SafetyVerdict:
    """Run the safety chain on a logged tick; `gate` are the bundle's instructions."""
    outside = Reason(record["reason"]) & OUTSIDE
    # a tick sent while an inference hung was not checked
    checked = not outside or record["inference_ns"]
    observed = _observed(chain, gate, record) if checked else NONE
    if record.get("between") is not None:
        chain.note_sent(array_of(record["between"]))
    recovery = None if guard is None or action is None else guard.recovery(observation_of(record), action)
    return chain.decide(observed | outside, action, recovery)


def _observed(chain: SafetyChain, gate: Mapping[str, Spec], record: dict[str, Any]) -> Reason:
    """Findings of the servo about a tick's observation."""
    frames, obs = frames_of(record), observation_of(record)
    if any(frame["number"] == NO_FRAME.number for frame in frames.values()):
        # without a frame of each camera, nothing else was looked at
        missing = any(values is None for values in record["obs"].values())
        return Reason.OBS_NOT_FINITE if missing else Reason.OBS_STALE
    # older logs have no `read_ns`
    now_s = (record["deadline_ns"] + record["lateness_ns"] + record.get("read_ns", 0)) * 1e-9
    # a camera is watched by the checksums of its frames
    sums = {key: np.asarray([frame["checksum"]], np.float64) for key, frame in frames.items()}
    observed = chain.check({**obs, **sums}, record["age_ns"] * 1e-9, now_s)
    if observed == NONE and instruction_misfit(gate, obs):
        # older logs call it implausible
        return Reason(record["reason"]) & Reason.OBS_IMPLAUSIBLE or Reason.OBS_MISFIT
    return observed


def forgotten_from(records: list[dict[str, Any]]) -> dict[int, int]:
    """First tick of each episode from which a recurrent policy's state cannot be computed again.

    The state holds the observations of all earlier inferences of the episode. Some are missing from the log where it
    lost ticks, and where numbers of decisions are left out: a tick that waited in vain for its chunk has no record.

    Args:
        records: records of the log without its header; episodes whose ticks say all are left out of the result.
    """
    found: dict[int, int] = {}
    last, lost = -1, False
    for record in records:
        if record["kind"] == "lost":
            lost = True
        if record["kind"] != "tick":
            continue
        asked = int(record["asked"])
        # nothing of an episode comes before its first tick
        missing = lost or (asked >= 0 and asked != last + 1)
        if missing and record["tick"] > 0:
            found.setdefault(int(record["episode"]), int(record["tick"]))
        last, lost = max(last, asked), False
    return found


class _Chunks:
    """Chunks of a log's decisions, each computed when the first of its actions is looked at.

    Decisions of a recurrent policy are computed in the order in which they were asked for, each from the state after
    the one before it.
    """

    def __init__(self, controller: Controller, log: Path, records: list[dict[str, Any]], limits: SafetyLimits) -> None:
        self._controller = controller
        self._limits = limits
        self._recurrent = bool(controller.manifest.states)
        self._forgotten = forgotten_from(records) if self._recurrent else dict[int, int]()
        self._failed = {int(record["decision"]) for record in records if record["kind"] == "inference_failed"}
        self._episode = -1
        self._state: State | None = None
        """State after the episode's last decision; None before its first."""
        self._log = log
        self._asked: dict[int, dict[str, Any]] = {}
        self._given: dict[int, dict[str, np.ndarray]] = {}
        """Observations of the ticks that decisions were asked for with, with those of the ticks before."""
        self._history = ObservationHistory(controller.manifest.observations)
        self._whole_from = 0
        """Tick from which the log has all that a history holds."""
        self._steps = max((port.stack for port in controller.manifest.observations), default=1)
        self._broken = False
        self._chunks: dict[int, np.ndarray] = {}

    def begin(self, episode: int) -> None:
        """Begin an episode."""
        self._episode, self._state = episode, None
        self._history.reset()
        self._whole_from, self._broken = 0, False

    def forget(self) -> None:
        """Note that ticks are missing from the log here."""
        self._broken = True

    def note(self, record: dict[str, Any]) -> None:
        """Remember the tick whose observation a decision was asked for with."""
        obs = observation_of(record)
        tick = int(record["tick"])
        if self._broken:
            self._whole_from, self._broken = tick + self._steps - 1, False
        whole = self._history.keys and all(record["obs"][key] is not None for key in self._history.keys)
        if whole and is_plausible(self._limits, obs):
            self._history.take(tick, obs)
        # older logs infer within the tick that uses the first action
        within = record["decision"] if record["policy"] is not None and record["cursor"] == 1 else -1
        decision = int(record.get("asked", within))
        if decision >= 0:
            self._asked = {**dict(list(self._asked.items())[-_KEPT:]), decision: record}
            whole = self._history.whole(obs) if self._history.keys else obs
            self._given = {**dict(list(self._given.items())[-_KEPT:]), decision: whole}
            known = tick < self._forgotten.get(self._episode, tick + 1)
            if self._recurrent and known and decision not in self._failed:
                self.chunk(decision)

    def chunk(self, decision: int) -> np.ndarray:
        """(H, A) chunk of a decision.

        Raises:
            DataError: no tick of the log says which observation it was asked for with.
        """
        if decision not in self._chunks:
            record = self._asked.get(decision)
            forgotten = self._forgotten.get(self._episode)
            if forgotten is not None and (record is None or record["tick"] >= forgotten):
                raise DataError(
                    f"the log lacks observations before tick {forgotten} of episode {self._episode}, which the policy's"
                    f" state holds: its ticks are replayed up to there, and decision {decision} is not"
                )
            if record is None:
                raise DataError(f"the log lacks the tick that asked for decision {decision}: its start is missing")
            if self._steps > 1 and record["tick"] < self._whole_from:
                raise DataError(
                    f"the log lacks ticks before tick {record['tick']}, whose observations decision {decision} saw"
                )
            inputs = {**self._given[decision], **self._pictures(record)}
            count = int(record.get("committed", 0))
            if count:
                first = int(record["cursor"]) - 1
                planned = self.chunk(int(record["decision"]))[first:]
                inputs |= committed_inputs(self._controller.manifest, planned, count)
            found, self._state = self._controller.infer_from(inputs, decision, self._state)
            self._chunks = {**dict(list(self._chunks.items())[-_KEPT:]), decision: found}
        return self._chunks[decision]

    def _pictures(self, record: dict[str, Any]) -> dict[str, np.ndarray]:
        """The images that a tick's inference saw.

        Raises:
            DataError: one of them was not recorded.
        """
        shapes = {port.name: port.shape for port in self._controller.manifest.observations}
        found: dict[str, np.ndarray] = {}
        for key, frame in frames_of(record).items():
            if frame["at"] is None:
                raise DataError(
                    f"log {str(self._log)!r}: tick {record['tick']} of episode {record['episode']} has no frame of"
                    f" {key!r}: it was overwritten before it was recorded"
                )
            found[key] = read_frame(self._log, int(frame["at"]), shapes[key], int(frame["kept_checksum"]))
        return found


def frames_of(record: dict[str, Any]) -> dict[str, Any]:
    """Descriptions of a tick's frames; older logs and those of policies without cameras have none."""
    frames: dict[str, Any] = record.get("frames", {})
    return frames


def observation_of(record: dict[str, Any]) -> dict[str, np.ndarray]:
    """Observations of a tick, (...,) float32 by key; one NaN where the robot gave none."""
    return {
        key: np.full(1, np.nan, np.float32) if values is None else array_of(values)
        for key, values in record["obs"].items()
    }
