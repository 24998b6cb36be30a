"""Realism and character of traffic, against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robotrl.errors import ConfigError
from robotrl.traffic.realism import BINS, character, overlap, realism, sample_of


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_overlap_by_hand() -> None:
    # bins of 1: (1/2, 1/2, 0) and (0, 1/4, 3/4) have 1/4 in common
    assert overlap(floats(0.5, 1.5), floats(1.5, 2.5, 2.5, 2.5), 0.0, 3.0, 3) == pytest.approx(0.25)
    assert overlap(floats(1, 2, 3), floats(3, 1, 2), 0.0, 4.0, 8) == pytest.approx(1.0)
    assert overlap(floats(0.5), floats(2.5), 0.0, 3.0, 3) == 0.0
    # outer bins hold what lies beyond them
    assert overlap(floats(-7.0, 9.0), floats(0.5, 2.5), 0.0, 3.0, 3) == pytest.approx(1.0)


def test_empty_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="samples have 0 and 1 values"):
        overlap(floats(), floats(1.0), 0.0, 1.0, 2)


def test_quantities_by_hand() -> None:
    sample = sample_of(
        speed=floats(10.0, 0.5, 8.0, 12.0),
        accel=floats(0.0, -4.0, 1.0, -2.0),
        gap=floats(20.0, 2.0, 1000.0, 30.0),
        closing=floats(4.0, 0.2, 0.0, -1.0),
        limit=floats(20.0, 10.0, 10.0, 12.0),
        overlaps=floats(0.0, 1.0, 0.0, 0.0),
    )
    # who stands has no headway, who is alone neither; only the first closes in
    assert sample.headway.tolist() == [2.0, 2.5] and sample.ttc.tolist() == [5.0]
    found = character(sample)
    assert found["pace"] == pytest.approx((0.5 + 0.05 + 0.8 + 1.0) / 4.0)
    assert found["headway_s"] == pytest.approx(2.25)
    assert found["hard_braking"] == 0.25 and found["overlaps_per_mille"] == 250.0
    same = realism(sample, sample)
    assert set(same) == {*BINS, "realism"} and all(value == pytest.approx(1.0) for value in same.values())
