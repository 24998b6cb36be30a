"""The last candidate of RECAP by its condition, and a clone of the actions that were labeled positive."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.finetune.bench import METHODS
from benchmarks.finetune.cell import base_cfg
from benchmarks.improve.cell import BASE
from benchmarks.improve.clones import Clone, rate
from benchmarks.improve.plan import LABELS
from benchmarks.kit.stages import have, have_run
from robotrl.datasets.merging import merge
from robotrl.datasets.reader import read_dataset
from robotrl.improve.state import ImproveState
from robotrl.labels.sidecar import labels_path, read_label, write_labels
from robotrl.policies.conditioned import ConditionedChainPolicy
from robotrl.policies.networks.condition import NEGATIVE, appended
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy

POSITIVES = "positives"


class NegativePolicy(ConditionedChainPolicy):
    """A conditioned policy that acts as the worse actions did."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D + 2) of the base policy, and the negative condition."""
        return appended(self.base.encode(obs), NEGATIVE)


def negative(policy: ConditionedChainPolicy) -> NegativePolicy:
    """The policy under the negative condition."""
    out = NegativePolicy(policy.base, policy.cfg)
    out.load_state_dict(policy.state_dict())
    out.control_dt_s = policy.control_dt_s
    return out


def dropped(policy: ConditionedChainPolicy) -> ConditionedChainPolicy:
    """The policy without a condition."""
    out = ConditionedChainPolicy(policy.base, replace(policy.cfg, guidance=0.0))
    out.load_state_dict(policy.state_dict())
    out.control_dt_s = policy.control_dt_s
    return out


def condition_arms(state: ImproveState, clone: Clone) -> dict[str, Any] | None:
    """Success of the last candidate by its condition, and of the clone of the positives; None without a candidate.

    Args:
        state: rounds of RECAP whose fits left labels.
        clone: the clone that they began with.
    """
    last = next((record for record in reversed(state.rounds) if record.candidate is not None), None)
    if last is None:
        return None
    run = Path(str(last.candidate))
    policy = load_policy(run)
    # the clone of the positives makes as many updates of a policy as the candidate
    updates = int(Run.open(run).config["algo"]["updates"])
    positives = positives_run(clone, run.parent.parent / "data", updates)
    arms = {"on": policy, "off": negative(policy), "dropped": dropped(policy), POSITIVES: load_policy(positives)}
    return {"round": last.number, **{arm: rate(clone.success(one)) for arm, one in arms.items()}}


def positives_run(clone: Clone, data: Path, updates: int) -> Path:
    """Go on cloning from the frames that are labeled positive, and the demonstrations; returns the run."""
    assert clone.demos is not None, "cells of RECAP have demonstrations"
    demos, both = clone.demos, clone.out / POSITIVES

    def make() -> None:
        shutil.rmtree(both, ignore_errors=True)
        logs, shown = read_dataset(data), read_dataset(demos)
        positive = read_label(labels_path(data, LABELS), "positive", data, logs.num_frames)
        merge([logs, shown], both)
        keep = np.concatenate([positive, np.ones(shown.num_frames, np.bool_)])
        write_labels(both, POSITIVES, {"keep": keep}, {"bench": "improve", "labels": LABELS})

    mark = have(both, {"data": str(data)}, clone.mark, make)
    cfg = base_cfg(METHODS[BASE], clone.task, clone.seed, both)
    cfg = replace(cfg, evaluation=replace(cfg.evaluation, episodes=0))
    algo = replace(cfg.algo, updates=updates, labels=str(labels_path(both, POSITIVES)))
    run = clone.out / f"{POSITIVES}-run"
    have_run(run, replace(cfg, algo=algo, init_from=str(clone.run)), mark)
    return run
