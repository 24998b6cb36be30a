"""Offline replay of a control log: recompute policy and safety chain, and compare the actions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.deploy.control.log import array_of, read_log
from robotrl.deploy.control.safety import NONE, OUTSIDE, Reason, SafetyChain, limits_of
from robotrl.deploy.runtime import Controller
from robotrl.errors import DataError


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
    limits = limits_of(controller.manifest)._replace(low=array_of(header["low"]), high=array_of(header["high"]))
    chain = SafetyChain(limits)
    episode, chunk = -1, np.zeros((0, 0), np.float32)
    ticks = decisions = 0
    policy_error = sent_error = 0.0
    for record in records:
        if record["kind"] != "tick":
            continue
        if record["episode"] != episode:
            episode = record["episode"]
            chain.reset()
        ticks += 1
        action = None
        if record["policy"] is not None:
            if record["cursor"] == 1:
                decisions += 1
                chunk = controller.infer(_observation(record), int(record["decision"]))
            action = chunk[int(record["cursor"]) - 1]
            policy_error = max(policy_error, float(np.abs(action - array_of(record["policy"])).max()))
        observation = _observation(record)
        # older logs have no `read_ns`
        now_s = (record["deadline_ns"] + record["lateness_ns"] + record.get("read_ns", 0)) * 1e-9
        outside = Reason(record["reason"]) & OUTSIDE
        # a tick sent while an inference hung was not checked
        asked = not outside or record["inference_ns"]
        observed = (chain.check(observation, record["age_ns"] * 1e-9, now_s) if asked else NONE) | outside
        verdict = chain.decide(observed, action)
        sent_error = max(sent_error, float(np.abs(verdict.action - array_of(record["sent"])).max()))
    return ReplayReport(ticks, decisions, policy_error, sent_error)


def _observation(record: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        key: np.full(1, np.nan, np.float32) if values is None else array_of(values)
        for key, values in record["obs"].items()
    }
