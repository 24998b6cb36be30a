"""Offline replay of a control log: recompute policy and safety chain, and compare the actions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.deploy.bundle.site import SiteLimits, tightened
from robotrl.deploy.control.frames import read_frame
from robotrl.deploy.control.log import array_of, read_log
from robotrl.deploy.control.safety import NONE, OUTSIDE, Reason, SafetyChain, limits_of
from robotrl.deploy.inference.request import committed_inputs
from robotrl.deploy.runtime import Controller
from robotrl.errors import DataError

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


def replay(log: str | os.PathLike[str], bundle: str | os.PathLike[str]) -> ReplayReport:
    """Recompute every tick of a log.

    Args:
        log: a log of `run_control`.
        bundle: the bundle that was used.

    Raises:
        DataError: not a log, or the log is of another bundle.
    """
    header, records = read_log(Path(log))
    controller = Controller.load(bundle, seed=int(header["seed"]))
    if header["bundle_id"] != controller.manifest.bundle_id:
        raise DataError(
            f"log {os.fspath(log)!r} is of bundle {str(header['bundle_id'])[:12]}...: "
            f"{os.fspath(bundle)!r} is {controller.manifest.bundle_id[:12]}..."
        )
    limits = limits_of(controller.manifest)
    if header.get("site") is not None:
        site = SiteLimits.parse(json.dumps(header["site"]).encode(), "site of the log")
        limits = tightened(limits, controller.manifest, site)
    limits = limits._replace(low=array_of(header["low"]), high=array_of(header["high"]))
    # older logs have no `dry_run`; the sensors of a robot that is held stand still
    chain = SafetyChain(limits._replace(max_still_s={}) if header.get("dry_run") else limits)
    episode, chunks = -1, _Chunks(controller, Path(log))
    ticks = 0
    policy_error = sent_error = 0.0
    for record in records:
        if record["kind"] != "tick":
            continue
        if record["episode"] != episode:
            episode = record["episode"]
            chain.reset()
        ticks += 1
        action = None
        chunks.note(record)
        if record["policy"] is not None:
            action = chunks.action(record)
            policy_error = max(policy_error, float(np.abs(action - array_of(record["policy"])).max()))
        observation = _observation(record)
        # older logs have no `read_ns`
        now_s = (record["deadline_ns"] + record["lateness_ns"] + record.get("read_ns", 0)) * 1e-9
        outside = Reason(record["reason"]) & OUTSIDE
        # a tick sent while an inference hung was not checked
        checked = not outside or record["inference_ns"]
        # a camera is watched by the checksums of its frames
        seen = {**observation, **{key: np.float64([frame["checksum"]]) for key, frame in _frames(record).items()}}
        observed = (chain.check(seen, record["age_ns"] * 1e-9, now_s) if checked else NONE) | outside
        verdict = chain.decide(observed, action)
        sent_error = max(sent_error, float(np.abs(verdict.action - array_of(record["sent"])).max()))
    return ReplayReport(ticks, chunks.computed, policy_error, sent_error)


class _Chunks:
    """Chunks of a log's decisions, each computed when the first of its actions is looked at.

    Attributes:
        computed: number of chunks computed.
    """

    def __init__(self, controller: Controller, log: Path) -> None:
        self._controller = controller
        self._log = log
        self._asked: dict[int, dict[str, Any]] = {}
        self._chunks: dict[int, np.ndarray] = {}
        self.computed = 0

    def note(self, record: dict[str, Any]) -> None:
        """Remember the tick whose observation a decision was asked for with."""
        # older logs infer within the tick that uses the first action
        within = record["decision"] if record["policy"] is not None and record["cursor"] == 1 else -1
        decision = int(record.get("asked", within))
        if decision >= 0:
            self._asked = {**dict(list(self._asked.items())[-_KEPT:]), decision: record}

    def action(self, record: dict[str, Any]) -> np.ndarray:
        """(A,) the policy's action of a tick."""
        chunk: np.ndarray = self._chunk(int(record["decision"]))[int(record["cursor"]) - 1]
        return chunk

    def _chunk(self, decision: int) -> np.ndarray:
        if decision not in self._chunks:
            record = self._asked[decision]
            inputs = {**_observation(record), **self._pictures(record)}
            count = int(record.get("committed", 0))
            if count:
                first = int(record["cursor"]) - 1
                committed = self._chunk(int(record["decision"]))[first : first + count]
                inputs |= committed_inputs(self._controller.manifest, committed)
            found = self._controller.infer(inputs, decision)
            self._chunks = {**dict(list(self._chunks.items())[-_KEPT:]), decision: found}
            self.computed += 1
        return self._chunks[decision]

    def _pictures(self, record: dict[str, Any]) -> dict[str, np.ndarray]:
        """The images that a tick's inference saw.

        Raises:
            DataError: one of them was not recorded.
        """
        shapes = {port.name: port.shape for port in self._controller.manifest.observations}
        found: dict[str, np.ndarray] = {}
        for key, frame in _frames(record).items():
            if frame["at"] is None:
                raise DataError(
                    f"log {str(self._log)!r}: tick {record['tick']} of episode {record['episode']} has no frame of"
                    f" {key!r}: it was overwritten before it was recorded"
                )
            found[key] = read_frame(self._log, int(frame["at"]), shapes[key])
        return found


def _frames(record: dict[str, Any]) -> dict[str, Any]:
    """Descriptions of a tick's frames; older logs and those of policies without cameras have none."""
    frames: dict[str, Any] = record.get("frames", {})
    return frames


def _observation(record: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        key: np.full(1, np.nan, np.float32) if values is None else array_of(values)
        for key, values in record["obs"].items()
    }
