"""Advantages, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robotrl.fn.advantage import Gae, gae, normalize, vtrace

YES, NO = True, False


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def flags(*values: bool) -> Tensor:
    return torch.tensor(values)[:, None]


def run(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ended: Tensor,
    valid: Tensor,
    gae_lambda: float = 0.5,
) -> Gae:
    return gae(reward, value, next_value, discount, ended, valid, gae_lambda)


def test_gae_worked_by_hand():
    # delta = r + 0.5 * next - value = 1 + .5*4 - 2, 0 + .5*2 - 4, 3 + .5*0 - 2  (terminated)  = 1, -3, 1
    # A2 = 1; A1 = -3 + 0.5 * 0.5 * 1 = -2.75; A0 = 1 + 0.25 * -2.75 = 0.3125
    out = run(
        column(1, 0, 3),
        column(2, 4, 2),
        column(4, 2, 0),
        column(0.5, 0.5, 0.5),
        flags(NO, NO, YES),
        flags(YES, YES, YES),
    )
    assert torch.equal(out.advantage, column(0.3125, -2.75, 1))
    assert torch.equal(out.value_target, column(2.3125, 1.25, 3))


def test_an_end_cuts_the_sum_and_the_next_episode_does_not_leak_back():
    out = run(
        column(0, 100), column(1, 1), column(0, 0), column(0.5, 0.5), flags(YES, YES), flags(YES, YES), gae_lambda=1.0
    )
    assert torch.equal(out.advantage, column(-1, 99))


def test_a_time_out_and_a_failure_give_different_targets():
    # the caller puts 0 after a termination and the final observation's value, here 10, after a time-out
    shared = column(1), column(2), column(0.9), flags(YES), flags(YES)
    reward, value, discount, ended, valid = shared
    failed = run(reward, value, column(0), discount, ended, valid)
    timed_out = run(reward, value, column(10), discount, ended, valid)
    assert failed.value_target.item() == 1
    assert timed_out.value_target.item() == 1 + 0.9 * 10


def test_a_chunk_is_discounted_by_the_steps_it_took():
    # a decision of 3 steps, then one of 1 step: A0 = 1 + g^3 * 4 - 2 + g^3 * gae_lambda * A1
    g, gae_lambda = 0.9, 0.95
    out = run(
        column(1, 2), column(2, 4), column(4, 6), column(g**3, g), flags(NO, NO), flags(YES, YES), gae_lambda=gae_lambda
    )
    later = 2 + g * 6 - 4
    assert abs(out.advantage[1].item() - later) < 1e-12
    assert abs(out.advantage[0].item() - (1 + g**3 * 4 - 2 + g**3 * gae_lambda * later)) < 1e-12


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(-10, 10)] * 3, st.floats(0.1, 1), st.booleans(), st.booleans()), min_size=1, max_size=8
    ),
    st.floats(0, 1),
)
def test_padding_changes_nothing(rows, gae_lambda):
    """Rows that are not valid, wherever they stand and whatever they hold, leave the others as they are."""
    padded = [torch.tensor([[row[i]] for row in rows]) for i in range(6)]
    valid = padded[5]
    whole = gae(*padded[:5], valid, gae_lambda)
    if valid.any():
        kept = [array[valid][:, None] for array in padded[:5]]
        alone = gae(*kept, torch.ones_like(kept[4]), gae_lambda)
        assert torch.equal(whole.advantage[valid], alone.advantage[:, 0])
        assert torch.equal(whole.value_target[valid], alone.value_target[:, 0])
    assert (whole.advantage[~valid] == 0).all()


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 40))
def test_equal_advantages_normalise_to_exactly_zero(value, count):
    valid = torch.ones(count, dtype=torch.bool)
    assert (normalize(torch.full((count,), value), valid) == 0).all()


def test_normalise_uses_the_valid_entries_alone():
    advantage = torch.tensor([1.0, 3.0, 1e9])
    out = normalize(advantage, torch.tensor([True, True, False]))
    assert torch.allclose(out, torch.tensor([-1.0, 1.0, 0.0]))


def test_normalise_among_those_of_others():
    """Mean 4 and variance 5 of all four; only the own two come back."""
    out = normalize(torch.tensor([1.0, 3.0]), torch.ones(2, dtype=torch.bool), torch.tensor([1.0, 3.0, 5.0, 7.0]))
    assert out.tolist() == pytest.approx([-3 / 5**0.5, -1 / 5**0.5])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=30))
def test_normalised_advantages_have_zero_mean_and_unit_deviation(values):
    advantage = torch.tensor(values, dtype=torch.float64)
    out = normalize(advantage, torch.ones(len(values), dtype=torch.bool))
    assert abs(out.mean().item()) < 1e-6
    deviation = out.std(unbiased=False).item()
    assert deviation < 1 + 1e-6
    if advantage.std(unbiased=False) > 1e-5:
        assert deviation > 0.99


def test_vtrace_worked_by_hand():
    """Two decisions of one env, the second ends the episode; ratios 2 and 1/2, discount 1/2.

    rho = (1, 1/2), c = (1, 1/2); delta_2 = 1/2 (4 + 0 - 2) = 1; delta_1 = 1 (1 + 1/2 * 2 - 1) = 1.
    target_2 = 2 + 1 = 3; target_1 = 1 + delta_1 + 1/2 * 1 * 1 = 2.5.
    advantage_1 = 1 (1 + 1/2 * target_2 - 1) = 1.5; advantage_2 = 1/2 (4 - 2) = 1.
    """
    out = vtrace(
        reward=torch.tensor([[1.0], [4.0]]),
        value=torch.tensor([[1.0], [2.0]]),
        next_value=torch.tensor([[2.0], [0.0]]),
        discount=torch.tensor([[0.5], [0.5]]),
        ended=torch.tensor([[False], [True]]),
        valid=torch.ones(2, 1, dtype=torch.bool),
        log_ratio=torch.tensor([[2.0], [0.5]]).log(),
    )
    assert out.value_target.tolist() == [[2.5], [3.0]]
    assert out.advantage.tolist() == [[1.5], [1.0]]


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_vtrace_of_the_policy_itself_has_the_targets_of_gae(lam):
    torch.manual_seed(0)
    shape = (6, 3)
    reward, value, next_value = torch.randn(3, *shape, dtype=torch.float64)
    next_value[:-1] = value[1:]
    ended, valid = torch.rand(shape) < 0.2, torch.ones(shape, dtype=torch.bool)
    valid[-2:, 1] = False
    rows = (reward, value, next_value, torch.full(shape, 0.9, dtype=torch.float64), ended, valid)
    mine, theirs = vtrace(*rows, torch.zeros(shape, dtype=torch.float64), lam), gae(*rows, lam)
    assert torch.allclose(mine.value_target[valid], theirs.value_target[valid], atol=1e-12, rtol=0)
    if lam == 1.0:
        assert torch.allclose(mine.advantage[valid], theirs.advantage[valid], atol=1e-12, rtol=0)
    assert (mine.advantage[~valid] == 0).all()
