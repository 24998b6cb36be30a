"""Process rewards in files and checkpoints; see `robotrl.rewards.stored`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from robotrl.errors import DataError
from robotrl.fn.stats import Interval
from robotrl.rewards.network import RewardNet
from robotrl.rewards.process_model import AcceptanceThresholds, HeldOutVerdict, ProcessReward
from robotrl.rewards.stored import MISFITS, digest_of, net_from_tree, net_tree, read_kind
from robotrl.run.checkpoint import write_checkpoint

KIND = "process-reward"


def process_identity(net: RewardNet, verdict: HeldOutVerdict) -> str:
    """Hexadecimal SHA-256 of everything that determines a process reward's outputs and whether it may be used."""
    return digest_of(net, _verdict_to_json(verdict))


def process_tree(reward: ProcessReward) -> dict[str, Any]:
    """Return the state tree of a process reward for a checkpoint.

    Raises:
        NumericsError: a weight is not finite.
    """
    return {
        **net_tree(reward.net, "process reward"),
        "verdict": _verdict_to_json(reward.verdict),
        "about": reward.about,
        "identity": reward.identity,
    }


def process_from_tree(tree: dict[str, Any], where: str) -> ProcessReward:
    """Build a process reward from `process_tree`'s result, and check it.

    Args:
        tree: from a checkpoint.
        where: name of the source, for errors.

    Raises:
        DataError: it is of another version, or differs from what was saved; the error names the difference.
    """
    what = f"{where}: the process reward"
    net = net_from_tree(tree, what)
    try:
        stored, about, identity = tree["verdict"], tree["about"], tree["identity"]
        fields: dict[str, Any] = {
            **stored,
            "rank": Interval(**stored["rank"]),
            "bar": AcceptanceThresholds(**stored["bar"]),
        }
        verdict = HeldOutVerdict(**fields)
    except MISFITS as error:
        raise DataError(f"{what} does not fit this version of robotrl: {error!r}") from error
    if process_identity(net, verdict) != identity:
        raise DataError(f"{what} or its verdict is not the one that was saved: its digest differs")
    return ProcessReward(net, verdict, about, identity)


def save_process(path: Path, reward: ProcessReward) -> Path:
    """Write a process reward to a file; see `write_checkpoint`.

    Raises:
        NumericsError: a weight is not finite.
        RobotrlError: the disk refused.
    """
    return write_checkpoint(path, process_tree(reward), step=int(reward.about.get("updates", 0)), kind=KIND)


def load_process(path: str | Path) -> ProcessReward:
    """Read and check a process reward from a file.

    Raises:
        DataError: there is no complete checkpoint, it is no process reward, or it differs from what was saved; the
            error names the difference.
    """
    where, tree = read_kind(path, KIND)
    return process_from_tree(tree, where)


def _verdict_to_json(verdict: HeldOutVerdict) -> dict[str, Any]:
    return {**verdict._asdict(), "rank": verdict.rank._asdict(), "bar": asdict(verdict.bar)}
