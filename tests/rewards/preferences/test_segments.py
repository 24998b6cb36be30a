"""Segments, their keys and pairs, worked by hand."""

import numpy as np
import pytest
import torch

from robotrl.errors import ConfigError
from robotrl.rewards.preferences.segments import (
    after,
    dataset_pool,
    gather,
    pair_key,
    possible_starts,
    random_pairs,
    segment_keys,
)
from tests.kits.preference_kit import pool, walks


def test_a_segment_may_run_past_the_end_of_a_task_by_half_but_not_past_a_cut():
    # the task ended after step 3: 0 to 2 have two of their three steps; the cut episode has one segment, whose next
    # step would be unknown, so that none of three fits, and one of two
    assert possible_starts(pool(), 3).tolist() == [0, 1, 2]
    assert possible_starts(pool(), 2).tolist() == [0, 1, 2, 3, 4]
    assert len(possible_starts(pool(), 9)) == 0


def test_steps_after_the_end_are_not_valid_and_earn_nothing():
    found = gather(pool(), np.array([2, 4]), 3)
    assert found.valid.tolist() == [[True, True, False], [True, True, True]]
    assert found.reward.tolist() == [[3.0, 4.0, 0.0], [10.0, 20.0, 30.0]]
    assert found.action[0, :, 0].tolist() == [2.0, 3.0, 3.0]
    assert found.obs["walk"][1, 2].tolist() == [12.0, 13.0]


def test_the_step_after_a_segment_is_known_unless_the_task_ended():
    following, known = after(pool(), np.array([0, 2, 4]), 2)
    assert following.tolist() == [2, 3, 6] and known.tolist() == [True, False, True]


def test_keys_tell_contents_apart_and_a_pairs_key_has_no_order():
    same, other = gather(pool(), np.array([0, 0]), 2), gather(pool(), np.array([1, 4]), 2)
    keys = segment_keys(same) + segment_keys(other)
    assert keys[0] == keys[1] and len(set(keys)) == 3
    assert pair_key(keys[0], keys[2])[0] == pair_key(keys[2], keys[0])[0]
    assert {pair_key(keys[0], keys[2])[1], pair_key(keys[2], keys[0])[1]} == {True, False}


def test_the_segments_of_a_pair_do_not_overlap():
    pairs = random_pairs(np.arange(40), 300, 10, np.random.default_rng(0))
    assert pairs.shape == (300, 2) and np.abs(pairs[:, 0] - pairs[:, 1]).min() >= 10
    with pytest.raises(ConfigError, match=r"labeler\.length is 10"):
        random_pairs(np.arange(5), 1, 10, np.random.default_rng(0))


def test_a_dataset_gives_its_steps_with_their_ends(tmp_path):
    dataset = walks(tmp_path / "walks", 10)
    found = dataset_pool(dataset, ["walk"])
    assert torch.equal(found.obs["walk"], torch.from_numpy(dataset.frames("observation.walk")))
    for episode, end in enumerate(dataset.offsets[1:]):
        rows = slice(int(dataset.offsets[episode]), int(end))
        assert (found.end[rows] == end).all()
        assert (found.terminated[rows] == (not dataset.frames("next.truncated")[end - 1])).all()
