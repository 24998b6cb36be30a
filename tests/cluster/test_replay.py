"""Replays that shards fill, in one process: they are the replays of all envs, whatever the method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.algos.dsrl import DsrlCfg
from robotrl.cluster.merging import joined_steps
from robotrl.config import ClusterCfg
from robotrl.errors import CapabilityError
from robotrl.learners.collection.collectors import STEP_VERSION, StepBatch
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.policies.steered import SteeredCfg
from robotrl.replay.buffer import StepRecord
from robotrl.spec.late_rewards import LateRewards
from tests.kits import learner_kit as kit
from tests.kits import off_policy_kit as off
from tests.kits.cluster_kit import ENVS, TWO, clustered, collectors
from tests.kits.guided_kit import guided_setup
from tests.kits.learner_kit import same, setup, snapshot, write_walks
from tests.kits.refusals import raises_naming

ONE = ClusterCfg("local", workers=1)
SAC = replace(off.SAC, warmup=ENVS * 8, utd_ratio=0.05, capacity=4096)
RLPD = replace(off.RLPD, warmup=ENVS * 2, utd_ratio=1, num_steps=1, capacity=512, env_steps=ENVS * 6)
DSRL = DsrlCfg(env_steps=ENVS * 5 * 6, num_steps=5, warmup=ENVS * 5, updates=1, batch=16, capacity=2048, engine="eager")
METHODS: dict[str, tuple[Any, Any, Any]] = {
    "sac": (SAC, None, off.CHUNKS),
    "rlpd": (RLPD, None, off.CHUNKS),
    "fql": (replace(off.FQL, updates=4, updates_per_iteration=2, env_steps=ENVS * 24, utd_ratio=0.05), None, kit.FLOW),
    "iql": (replace(off.IQL, updates=4, updates_per_iteration=2, env_steps=ENVS * 6, num_steps=1), None, kit.GAUSSIAN),
    "qc": (
        replace(off.QC, updates=4, updates_per_iteration=2, env_steps=ENVS * 24, warmup=ENVS * 2, utd_ratio=0.05),
        kit.flow,
        kit.FLOW,
    ),
    "residual": (
        replace(off.RESIDUAL, updates=2, updates_per_iteration=2, env_steps=ENVS * 24, warmup=ENVS * 2, utd_ratio=0.05),
        kit.flow,
        None,
    ),
    "dsrl": (DSRL, kit.flow, SteeredCfg(hidden=(16,))),
}
"""Settings, a policy to start from, a policy to make."""


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walks(tmp_path_factory.mktemp("walks") / "walks")


def built(name: str, cluster: ClusterCfg | None, walks: Path) -> Any:
    cfg, init, policy = METHODS[name]
    start = None if init is None else init()
    made = setup(start, policy) if cluster is None else clustered(cluster, start, policy)
    return cfg.build(made._replace(dataset=walks if name in ("rlpd", "fql", "iql", "qc", "residual") else None))


def state_after(learner: Any, iterations: int) -> Any:
    for _ in range(iterations):
        learner.iterate()
    found = snapshot(learner.state())
    learner.close()
    return found


def replays(state: Any) -> tuple[Any, Any]:
    """Stored columns without that of the versions, and that of the versions."""
    columns = dict(state["experience"]["replay"]["columns"])
    versions = columns.pop(f"extras/{STEP_VERSION}", None)
    return columns, versions


@pytest.mark.parametrize("name", METHODS)
def test_one_shard_gives_the_numbers_of_none(name: str, walks: Path):
    """Networks, optimizer, normalization, generator and each stored step are equal to the last bit."""
    alone, sharded = (state_after(built(name, one, walks), 5) for one in (None, ONE))
    for part in alone.keys() - {"experience"}:
        assert same(alone[part], sharded[part]), part
    columns, versions = replays(sharded)
    assert same(replays(alone)[0], columns)
    assert versions.max() > versions.min() >= 0


@pytest.mark.parametrize("name", ["sac", "dsrl"])
def test_a_run_in_shards_goes_on_exactly(name: str, walks: Path):
    whole, half = state_after(built(name, TWO, walks), 6), state_after(built(name, TWO, walks), 3)
    resumed = built(name, TWO, walks)
    resumed.load(half)
    assert same(state_after(resumed, 3), whole)


@pytest.mark.parametrize("lead", [0, 2])
def test_each_transition_has_the_version_of_the_policy_that_decided_it(lead: int, walks: Path):
    """Batch i is of version max(1, i - L), but for the second step of chunks that were begun in the batch before."""
    cfg = replace(SAC, num_steps=5)
    learner = cfg.build(clustered(replace(TWO, max_staleness=lead), None, off.CHUNKS))
    logged = [learner.iterate() for _ in range(5)]
    _, versions = replays(learner.state())
    found = versions[: 5 * 5 * ENVS].reshape(5, 5, ENVS)
    for batch, steps in enumerate(found, start=1):
        version = max(1, batch - lead)
        assert set(steps.flatten().tolist()) <= {version, max(1, version - 1)}
        assert (steps[1:] == version).all()
    # what is drawn from the replay says so, too
    index = learner.experience.memory.replay.indices(2)
    drawn = learner.experience.memory.replay.view(index, 2, 1.0).extras[STEP_VERSION]
    assert drawn.shape == (len(index), 2) and drawn.max() == max(1, 5 - lead)
    assert lead <= logged[-1]["cluster/staleness"] <= lead + 0.2


@pytest.mark.parametrize("lead", [0, 2])
def test_actions_are_random_until_the_warmup_however_far_ahead(lead: int):
    """Two of the batches are random: the third begins with as many env steps as the warmup has."""
    cfg = replace(SAC, warmup=2 * 8 * ENVS)
    learner = cfg.build(clustered(replace(TWO, max_staleness=lead), None, off.POLICY))
    seen: list[int] = []
    for shard in learner.experience._collector._runner._shards:
        decide = shard._acting._decide

        def told(policy: Any, obs: Any, generator: Any, random: bool, decide: Any = decide) -> Any:
            seen.append(random)
            return decide(policy, obs, generator, random)

        shard._acting._decide = told
    for _ in range(4):
        learner.iterate()
    assert seen == [True] * 2 * 16 + [False] * 2 * 16


def record(envs: int, first: float, ended: list[int]) -> StepRecord:
    count = np.arange(first, first + envs, dtype=np.float32)
    flags = np.isin(np.arange(envs), ended)
    arrays: Any = (
        {"x": count[:, None]},
        count[:, None],
        count,
        flags,
        ~flags,
        {"x": -count[ended, None]},
        np.array(ended, np.int64),
        "rollout",
        flags,
        {STEP_VERSION: count + 100},
        count - 0.5,
    )
    return StepRecord(*arrays)


def test_steps_are_joined_by_env_with_their_ends_late_rewards_and_gaps():
    def batch(envs: int, first: float, ended: list[int], cut: tuple[int, ...]) -> StepBatch:
        late: Any = ([0], [1], [0.25], [True])
        return StepBatch(
            [record(envs, first, ended), record(envs, first + 10, [])],
            np.array([True] * len(ended)),
            np.full(len(ended), first, np.float32),
            LateRewards(*(np.array(x) for x in late)),
            cut,
        )

    joined = joined_steps([batch(2, 1, [1], ()), batch(3, 5, [0, 2], (0, 1, 2))])
    one, other = joined.records
    assert one.reward.tolist() == [1, 2, 5, 6, 7] and other.obs["x"][:, 0].tolist() == [11, 12, 15, 16, 17]
    assert one.final_ids.tolist() == [1, 2, 4] and one.final_obs["x"][:, 0].tolist() == [-2, -5, -7]
    assert other.final_ids.tolist() == [] and one.source == "rollout" and one.cost is None
    assert one.terminated.tolist() == [False, True, True, False, True] == one.decision.tolist()  # type: ignore[union-attr]
    assert joined.late.env.tolist() == [1, 3] and joined.late.back.tolist() == [0, 0]
    assert joined.cut == (2, 3, 4) and joined.returns.tolist() == [1, 5, 5]
    assert joined.versions().tolist() == [101, 102, 105, 106, 107, 111, 112, 115, 116, 117]
    assert one.log_prob is not None and torch.equal(one.log_prob, one.reward - 0.5)


def test_suggestions_are_refused():
    cfg = replace(SAC, guidance=GuidanceCfg(by="expert"))
    with raises_naming(CapabilityError, "algo.guidance", "cluster"):
        cfg.build(guided_setup(off.POLICY)._replace(collectors=collectors(TWO)))
