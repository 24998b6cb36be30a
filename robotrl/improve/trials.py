"""Evidence from a robot: control logs of the policy of before and of the candidate, on the same starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robotrl.deploy.analysis.ticks import ControlTicks, read_ticks
from robotrl.errors import ConfigError, DataError
from robotrl.fn.evidence.sequential import PairedTest, decide, interval
from robotrl.fn.stats import wilson
from robotrl.improve.gate import GateDecision


def judge_trials(before: Path, after: Path, test: PairedTest, bundles: tuple[str | None, str | None]) -> GateDecision:
    """Judge a candidate by trials on a robot: its success on each start less that of the policy of before.

    Args:
        before: control log of the policy of before.
        after: control log of the candidate.
        test: the test.
        bundles: ids of both bundles; None for one that is unknown.

    Raises:
        ConfigError: a log of another bundle, the same log twice, or no start in common.
        DataError: no control log, or a start that was run twice.
    """
    logs = [read_ticks(path) for path in (before, after)]
    for path, log, bundle in zip((before, after), logs, bundles, strict=True):
        if bundle is not None and log.header["bundle_id"] != bundle:
            raise ConfigError(f"--trials: {path} is of bundle {log.header['bundle_id'][:12]}: expected {bundle[:12]}")
    if logs[0].header["bundle_id"] == logs[1].header["bundle_id"]:
        raise ConfigError(f"--trials: {before} and {after} are of one bundle: expected BEFORE and CANDIDATE")
    outcomes = [outcomes_of(path, log) for path, log in zip((before, after), logs, strict=True)]
    common = [start for start in outcomes[0] if start in outcomes[1]]
    if not common:
        raise ConfigError(f"--trials: {before} and {after} have no start in common: expected both on the same starts")
    first, second = (np.array([found[start] for start in common], np.float64) for found in outcomes)
    apart = second - first
    decision = decide(apart, test)
    low, high = interval(apart, test.detect, test.alpha)
    accepted = decision.outcome == "better"
    words = (
        f"on {len(common)} starts of the robot the candidate's success is {100 * apart.mean():+.1f} points from that of"
        f" the policy of before (interval at any time {100 * low:+.1f} to {100 * high:+.1f}): {decision.outcome}"
    )
    sides = [{"path": str(path), "success": [x.tolist()]} for path, x in ((before, first), (after, second))]
    verdict = {"score": "success", **test._asdict(), "starts": common, "sides": sides}
    scores = {"before": _score(first), "candidate": _score(second)}
    return GateDecision(accepted, decision.outcome, words, scores, verdict)


def outcomes_of(path: Path, log: ControlTicks) -> dict[int, bool]:
    """Success by start, of the episodes that ended, in their order.

    Raises:
        DataError: a start was run twice.
    """
    out: dict[int, bool] = {}
    for episode in log.episodes:
        if episode.success is None or episode.state_id is None:
            continue
        if episode.state_id in out:
            raise DataError(f"{path}: start {episode.state_id} was run twice: expected each once")
        out[episode.state_id] = episode.success
    return out


def _score(values: np.ndarray) -> str:
    rate = wilson(int(values.sum()), len(values))
    return f"success {100 * rate.value:.1f} % (95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %)"
