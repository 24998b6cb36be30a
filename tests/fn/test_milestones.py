"""Milestones, progress, shaping and the figures that judge a progress, all worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robotrl.fn.progress.metrics import calibration_error, rank_correlation, ranks, separation
from robotrl.fn.progress.milestones import MilestoneThresholds, gripper_changes, milestones, progress, rests
from robotrl.fn.progress.shaping import potential_term, raw_term, step_term

LIMITS = MilestoneThresholds(change=0.3, still_mps=0.02, moving_mps=0.1, gap=3)


def series(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


# where the gripper turns


def test_one_closing_is_one_change_however_slow() -> None:
    # closes in steps of 0.2 to a thing at 0.4, waits, is squeezed further, and opens again
    opening = series(1.0, 1.0, 0.8, 0.6, 0.4, 0.4, 0.0, 0.0, 0.2, 0.4, 1.0)
    # by 0.4 below the highest at frame 3; by 0.4 above the lowest at frame 9
    assert gripper_changes(opening, 0.3).tolist() == [3, 9]
    assert gripper_changes(opening, 0.9).tolist() == [6, 10]
    assert gripper_changes(opening, 1.1).tolist() == []


def test_a_gripper_that_shakes_or_stands_has_no_change() -> None:
    assert gripper_changes(series(0.5, 0.7, 0.45, 0.7, 0.5), 0.3).tolist() == []
    assert gripper_changes(series(0.2), 0.3).tolist() == []
    # which way it goes first does not matter
    assert gripper_changes(series(0.0, 1.0, 1.0, 0.0, 1.0), 0.3).tolist() == [1, 3, 4]


def test_a_turn_after_a_long_way_is_one_turn() -> None:
    """Down by 2, up by 1, up by 2: the turn at 3 is counted once, though it has not come back to where 1 was."""
    assert gripper_changes(series(16.0, 15.0, 13.0, 14.0, 16.0), 1.0).tolist() == [1, 3]
    assert gripper_changes(series(0.0, 1.0, 3.0, 2.0, 0.0), 1.0).tolist() == [1, 3]


@given(st.lists(st.integers(0, 16), min_size=1, max_size=40), st.integers(1, 17))
def test_changes_know_neither_direction_nor_pace(values: list[int], change: int) -> None:
    opening = np.array(values) / 16
    found = gripper_changes(opening, change / 16)
    assert gripper_changes(1 - opening, change / 16).tolist() == found.tolist()
    # each frame twice: the same changes, at the first of the two
    assert gripper_changes(opening.repeat(2), change / 16).tolist() == (2 * found).tolist()
    # every change costs that much way
    assert len(found) * change / 16 <= np.abs(np.diff(opening)).sum()
    assert bool(len(found)) == (np.ptp(opening) >= change / 16)


# where the hand rests


def test_a_rest_needs_a_movement_before_it() -> None:
    speed = series(0.0, 0.0, 0.2, 0.05, 0.01, 0.0, 0.05, 0.01, 0.3, 0.01)
    # rests at 0 and 1 have no movement before them; 0.05 at frame 6 is none, so neither is the rest at 7
    assert rests(speed, 0.02, 0.1).tolist() == [4, 9]
    assert rests(series(0.5, 0.5), 0.02, 0.1).tolist() == []


# both


def test_milestones_by_hand() -> None:
    #                    0    1    2    3    4    5    6    7    8    9    10   11
    opening = series(1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    speed = series(0.0, 0.3, 0.3, 0.0, 0.3, 0.0, 0.3, 0.3, 0.0, 0.3, 0.3, 0.0)
    found = milestones(opening, speed, LIMITS, success=True)
    # rests at 3, 5, 8 and 11: 3 and 5 lie within 3 frames of the grip at 5, 11 within 3 of the end; so does the
    # opening at 10
    assert (found.frames.tolist(), found.kinds) == ([5, 8, 12], ("gripper", "still", "end"))
    failed = milestones(opening, speed, LIMITS, success=False)
    assert (failed.frames.tolist(), failed.kinds) == ([5, 10], ("gripper", "gripper"))


def test_what_is_near_the_start_is_part_of_it() -> None:
    opening = series(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert milestones(opening, np.zeros(6), LIMITS, success=True).frames.tolist() == [6]
    assert milestones(opening, np.zeros(6), LIMITS._replace(gap=1), success=True).frames.tolist() == [1, 6]


def test_progress_by_hand() -> None:
    # a third at frame 2, two thirds at frame 3, all of it after the last frame, 6
    found = progress(np.array([2, 3, 6]), 6)
    assert found == pytest.approx([0, 1 / 6, 1 / 3, 2 / 3, 7 / 9, 8 / 9])
    # without milestones on the way, time alone
    assert progress(np.array([4]), 4) == pytest.approx([0, 0.25, 0.5, 0.75])


@given(st.data(), st.integers(1, 60), st.integers(1, 8))
def test_progress_rises_from_0_and_stays_below_1(data: st.DataObject, length: int, gap: int) -> None:
    values = st.lists(st.floats(0, 1), min_size=length, max_size=length)
    opening, speed = (np.array(data.draw(values)) for _ in range(2))
    found = milestones(opening, speed, LIMITS._replace(gap=gap), success=True)
    assert found.kinds[-1] == "end" and found.frames[-1] == length
    # the end stands, however short the episode; all others keep their distance
    assert (np.diff([0, *found.frames])[: None if len(found.frames) > 1 else 0] >= gap).all()
    label = progress(found.frames, length)
    assert label[0] == 0 and (np.diff(label) > 0).all() and label[-1] < 1


# shaping


def test_the_term_of_a_step_by_hand() -> None:
    before, after, over = torch.tensor([0.25, 0.5]), torch.tensor([0.5, 1.0]), torch.tensor([False, True])
    assert step_term("potential", before, after, 0.5, over).tolist() == [0.0, -0.5]
    assert step_term("raw", before, after, 0.5, over).tolist() == [0.5, 1.0]


def test_the_potential_term_by_hand() -> None:
    phi, after = torch.tensor([[0.2, 0.5, 0.5]]), torch.tensor([[0.6, 0.9, 0.9]])
    discount = torch.tensor([[0.5, 1.0, 1.0]])
    found = potential_term(phi, after, discount, torch.tensor([[False, False, True]]))
    assert found[0].tolist() == pytest.approx([0.1, 0.4, -0.5])


def test_what_a_terminal_observation_shows_cannot_leak_in() -> None:
    found = potential_term(torch.zeros(1), torch.tensor([float("nan")]), torch.ones(1), torch.tensor([True]))
    assert found.item() == 0.0


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 2**31 - 1), st.floats(0.5, 1.0))
def test_potential_terms_of_decisions_telescope(lengths: list[int], seed: int, gamma: float) -> None:
    """Chunk by chunk or step by step, an episode's terms sum up to -phi of its start, whatever happened in it."""
    steps = sum(lengths)
    phi = torch.rand(steps + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ends = torch.tensor(lengths).cumsum(0)
    begins = ends - torch.tensor(lengths)
    over = ends == steps
    terms = potential_term(phi[begins], phi[ends], gamma ** torch.tensor(lengths).double(), over)
    assert float((gamma ** begins.double() * terms).sum()) == pytest.approx(-float(phi[0]), abs=1e-9)
    # cut off instead, what was reached is still there to be valued
    cut = potential_term(phi[begins], phi[ends], gamma ** torch.tensor(lengths).double(), torch.zeros_like(over))
    reached = gamma**steps * float(phi[-1]) - float(phi[0])
    assert float((gamma ** begins.double() * cut).sum()) == pytest.approx(reached, abs=1e-9)


def test_the_raw_term_comes_with_the_last_step() -> None:
    found = raw_term(torch.tensor([0.8, 0.8]), 0.5, torch.tensor([1, 3]))
    assert found.tolist() == pytest.approx([0.8, 0.2])


# judging


def test_ranks_and_their_correlation_by_hand() -> None:
    assert ranks(series(3.0, 1.0, 3.0, 2.0)).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert rank_correlation(series(1, 2, 3), series(10, 20, 15)) == pytest.approx(0.5)
    assert rank_correlation(series(1, 2, 3), series(9, 5, 1)) == -1.0
    assert rank_correlation(series(1, 2, 3), series(4, 4, 4)) == 0.0


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20, unique=True))
def test_rank_correlation_sees_order_alone(values: list[float]) -> None:
    x = series(*values)
    assert rank_correlation(x, np.argsort(np.argsort(x)).astype(np.float64)) == pytest.approx(1.0)


def test_separation_by_hand() -> None:
    # of six pairs four are larger and one is equal
    assert separation(series(0.9, 0.5), series(0.1, 0.5, 0.7)) == pytest.approx(4.5 / 6)
    assert separation(series(0.9), series(0.1)) == 1.0
    assert separation(series(0.3, 0.3), series(0.3)) == 0.5


def test_calibration_error_by_hand() -> None:
    # bins [0, 1/2): mean 0.2 for 0.1; [1/2, 1]: mean 0.9 for 0.5, of four predictions two each
    predicted, label = series(0.1, 0.3, 0.8, 1.0), series(0.2, 0.0, 0.0, 1.0)
    assert calibration_error(predicted, label, bins=2) == pytest.approx((0.1 + 0.4) / 2)
    assert calibration_error(label, label) == 0.0
