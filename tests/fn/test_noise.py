"""Draws: by place, and in series that last."""

from __future__ import annotations

import pytest
import torch

from robotrl.fn.random import noise


def test_places_choose_by_weight() -> None:
    """Weights 1, 0, 2, 1 of evenly spread places: a quarter, none, a half, a quarter; worked by hand."""
    share = torch.tensor([[1.0, 0.0, 2.0, 1.0]]).expand(8, -1)
    at = torch.arange(8) / 8
    assert noise.choose_at(share, at).tolist() == [0, 0, 2, 2, 2, 2, 3, 3]


def test_the_last_place_is_the_last_column_that_has_weight() -> None:
    share = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    assert noise.choose_at(share, torch.ones(2)).tolist() == [1, 1]
    assert noise.choose_at(share, torch.zeros(2)).tolist() == [0, 1]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_a_series_stays_normal_and_forgets_as_told(correlation: float) -> None:
    generator = torch.Generator().manual_seed(0)
    last = noise.randn((20_000, 2), generator, torch.device("cpu"))
    series = torch.cat([last[:, None], noise.lasting(last, 3, correlation, generator)], dim=1)
    assert series.shape == (20_000, 4, 2)
    assert series.mean(dim=0).abs().max() < 0.03 and series.std(dim=0).sub(1).abs().max() < 0.03
    expected = correlation ** (torch.arange(4)[:, None] - torch.arange(4)).abs().float()
    for column in range(2):
        assert torch.corrcoef(series[:, :, column].T) == pytest.approx(expected.numpy(), abs=0.03)
    assert torch.corrcoef(series.flatten(0, 1).T)[0, 1].abs() < 0.03
