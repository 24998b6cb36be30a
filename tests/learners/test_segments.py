"""Rollouts cut into segments of consecutive decisions, by hand."""

from __future__ import annotations

import torch

from robotrl.learners.memory.segments import cut_segments


def flags(*rows: str) -> torch.Tensor:
    """(M, N) bool: one text per env, "x" for true, the first decision first."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows]).T


def test_two_envs_of_four_decisions():
    """Numbers go by time first: env 0 has the decisions 0, 2, 4, 6; its episode ends with the second of them."""
    rows, joined = cut_segments(flags("xxxx", "xxxx"), flags(".x..", "...."), 2)
    assert rows.tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert joined.tolist() == [[False, True], [False, True], [False, True], [False, True]]


def test_a_segment_goes_over_the_end_of_an_episode_and_to_the_next_env_without_joining_them():
    rows, joined = cut_segments(flags("xxx", "xxx"), flags(".x.", "..."), 6)
    assert rows.tolist() == [[0, 2, 4, 1, 3, 5]]
    # 4 begins an episode, 1 is of another env
    assert joined.tolist() == [[False, True, False, False, True, True]]


def test_incomplete_decisions_are_left_out_and_the_last_segment_is_filled_from_the_beginning():
    """Env 0 has two complete decisions (0 and 2), env 1 three (1, 3, 4)."""
    rows, joined = cut_segments(flags("xx.", "xxx"), flags("...", "..."), 4)
    assert rows.tolist() == [[0, 2, 1, 3], [4, 0, 2, 1]]
    # a decision at the beginning of a segment takes the stored memory, and so does what fills it up
    assert joined.tolist() == [[False, True, False, True], [False, False, True, False]]


def test_segments_longer_than_the_rollout_repeat_it():
    rows, joined = cut_segments(flags("xx"), flags(".."), 5)
    assert rows.tolist() == [[0, 1, 0, 1, 0]]
    assert joined.tolist() == [[False, True, False, True, False]]


def test_segments_of_one_decision_join_nothing():
    rows, joined = cut_segments(flags("xxx"), flags("..."), 1)
    assert rows.tolist() == [[0], [1], [2]]
    assert not joined.any()
