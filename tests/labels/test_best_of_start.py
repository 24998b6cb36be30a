"""Labels by the best trial of each start (RM-RL), on six trials by hand, with and without noisy rewards."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.algos.bc import BcCfg
from robotrl.datasets.reader import read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import ConfigError
from robotrl.labels.best_of_start import Trials, best_frames, grouped_by_id, grouped_within, trials_of
from tests.kits.learner_kit import ACTION, FLOW, SPECS, setup
from tests.kits.refusals import raises_naming

CFG = BcCfg(updates=2, updates_per_iteration=1, batch=8, label="best_of_start")
IDS = [7, 3, 7, 7, 3, 9]
STARTS = [0.0, 1.0, 0.1, -0.1, 1.1, 2.0]
RETURNS = [1.0, 4.0, 3.0, 2.0, 5.0, 0.0]
LENGTHS = [1, 2, 2, 1, 1, 2]
# the best of 7 is trial 2, of 3 trial 4, of 9 the only one
BEST = [2, 4, 2, 2, 4, 5]


def trials(returns: list[float] = RETURNS) -> Trials:
    return Trials(grouped_by_id(np.array(IDS)), np.array(returns))


def write(path: Path, returns: list[float] = RETURNS, ids: list[int] | None = IDS, rewarded: bool = True) -> Path:
    """Trial k has the actions k / 10 and, in its second step, k / 10 + 0.05; the reward comes in its last step."""
    with DatasetWriter(
        path, fps=10, observation_spec=SPECS, action_spec=ACTION, robot_type="walk", provenance={}
    ) as writer:
        for trial, (start, gained, length) in enumerate(zip(STARTS, returns, LENGTHS, strict=True)):
            reward = np.zeros(length, np.float32)
            reward[-1] = gained if rewarded else 0.0
            writer.add_episode(
                {"walk": np.array([[start, t] for t in range(length)], np.float32)},
                np.array([[trial / 10 + 0.05 * t] for t in range(length)], np.float32),
                reward,
                success=True,
                truncated=False,
                task="walk",
                extra={} if ids is None else {"state_id": ids[trial]},
            )
        return writer.finish()


def test_groups_and_labels_of_six_trials_by_hand():
    found = trials()
    assert found.group.tolist() == [0, 1, 0, 0, 1, 2]
    assert found.best.tolist() == BEST
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    assert offsets.tolist() == [0, 1, 3, 5, 6, 7, 9]
    frames = best_frames(offsets, found.best)
    # all first frames, and the second ones of trials 2 and 5 alone: that of trial 1, frame 2, is not cloned
    assert frames.frame.tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    assert frames.source.tolist() == [3, 6, 3, 4, 3, 6, 7, 8]


def test_of_equal_trials_the_first_is_the_best():
    assert trials([2.0, 1.0, 2.0, 2.0, 1.0, 0.0]).best.tolist() == [0, 1, 0, 0, 1, 5]


def test_groups_of_close_starts_by_hand():
    """Each trial joins the first group whose first start is near; groups do not grow along chains."""
    starts = np.array([[0.0, 0.0], [0.8, 0.0], [1.6, 0.0], [0.0, 0.9], [1.5, 0.1]])
    assert grouped_within(starts, 1.0).tolist() == [0, 0, 1, 0, 1]
    assert grouped_within(starts, 0.1).tolist() == [0, 1, 2, 3, 4]


def test_the_overestimate_by_hand():
    first = math.sqrt(((1 - 2) ** 2 + (3 - 2) ** 2 + (2 - 2) ** 2) / 2) * math.sqrt(2 * math.log(3))
    second = math.sqrt(2 * 0.5**2) * math.sqrt(2 * math.log(2))
    found = trials()
    assert found.overestimates.tolist() == pytest.approx([first, second, 0.0])
    assert found.scalars == {
        "labels/groups": 3.0,
        "labels/trials_per_group": 2.0,
        "labels/overestimate": pytest.approx((first + second) / 3),
    }


def test_without_noise_nothing_is_overestimated_and_with_noise_the_bound_holds():
    """Trials of one start that all do the same: the best return lies above the mean by noise alone."""
    draw = np.random.default_rng(0)
    for sigma in (0.0, 0.5):
        found = Trials(np.repeat(np.arange(400), 8), 1.0 + sigma * draw.normal(size=3200))
        excess = float((found.returns[np.unique(found.best)] - 1.0).mean())
        # the largest of 8 normal numbers is 1.424 on average, and sqrt(2 ln 8) is 2.039
        assert excess == pytest.approx(1.424 * sigma, abs=0.05)
        assert found.scalars["labels/overestimate"] == pytest.approx(2.039 * sigma, rel=0.06, abs=1e-12)
        assert excess <= found.scalars["labels/overestimate"] + 1e-12


def rows(learner: Any) -> list[tuple[float, float, float, list[bool]]]:
    data = learner._demonstrated.arrays
    x, t = data["obs/walk"].unbind(1)
    chunks, valid = data["chunk"][..., 0], data["valid"]
    return [
        (round(float(a), 3), float(b), round(float(c[0]), 3), v.tolist())
        for a, b, c, v in zip(x, t, chunks, valid, strict=True)
    ]


@pytest.mark.parametrize("distance", [None, 0.25])
def test_cloning_takes_the_chunks_of_the_best_trials(tmp_path: Path, distance: float | None):
    data = write(tmp_path / "walks")
    made = replace(CFG, start_distance=distance).build(setup(None, FLOW, data, 4)._replace(accept_data=True))
    assert rows(made) == [
        (0.0, 0.0, 0.2, [True, True]),
        (1.0, 0.0, 0.4, [True, False]),
        (0.1, 0.0, 0.2, [True, True]),
        (0.1, 1.0, 0.25, [True, False]),
        (-0.1, 0.0, 0.2, [True, True]),
        (1.1, 0.0, 0.4, [True, False]),
        (2.0, 0.0, 0.5, [True, True]),
        (2.0, 1.0, 0.55, [True, False]),
    ]
    scalars = made.iterate()
    assert scalars["labels/groups"] == 3.0 and scalars["labels/overestimate"] > 0
    plain = BcCfg(updates=2, updates_per_iteration=1, batch=8)
    recorded = plain.build(setup(None, FLOW, data, 4)._replace(accept_data=True))
    assert len(rows(recorded)) == 9 and "labels/groups" not in recorded.iterate()


def test_a_noisy_reward_moves_the_label_and_the_bound(tmp_path: Path):
    """One lucky trial: its action labels the group, and the bound says by how much the return may be luck."""
    lucky = [1.0 + 9.0, 4.0, 3.0, 2.0, 5.0, 0.0]
    dataset = read_dataset(write(tmp_path / "walks", lucky))
    found = trials_of(dataset, ["walk"], None)
    assert found.best.tolist() == [0, 4, 0, 0, 4, 5]
    assert found.returns.tolist() == lucky
    assert found.overestimates[0] == pytest.approx(np.std([10, 3, 2], ddof=1) * math.sqrt(2 * math.log(3)))
    assert found.overestimates[0] > trials().overestimates[0]
    assert torch.equal(torch.from_numpy(found.group), torch.tensor([0, 1, 0, 0, 1, 2]))


def test_what_cannot_be_grouped_is_refused(tmp_path: Path):
    unnumbered = read_dataset(write(tmp_path / "unnumbered", ids=None))
    with raises_naming(ConfigError, "algo.start_distance", None, "state_id"):
        trials_of(unnumbered, ["walk"], None)
    with raises_naming(ConfigError, "6", "algo.start_distance"):
        trials_of(unnumbered, ["walk"], 0.01)
    with raises_naming(ConfigError, "algo.start_distance", 0.5):
        trials_of(unnumbered, [], 0.5)
    with raises_naming(ConfigError, "algo.start_distance", 0.5, "recorded"):
        BcCfg(start_distance=0.5).check()
    with raises_naming(ConfigError, "algo.label", "best", nearest="best_of_start"):
        replace(CFG, label="best").check()
