"""The arithmetic of `tools/speed_against.py`."""

import sys

import pytest

from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from speed_against import median_interval


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # of 15 values, the 4th from either end encloses the median with 96.5 %, the 5th with 88 %
        (range(1, 16), (8, 4, 12)),
        # of 6, only the ends do, with 97 %
        (range(6), (2.5, 0, 5)),
        # of 3 not even they do (75 %): there is nothing wider
        ([3.0, 1.0, 2.0], (2.0, 1.0, 3.0)),
        ([1.0], (1.0, 1.0, 1.0)),
    ],
)
def test_the_interval_of_a_median(values, expected):
    assert median_interval(list(values)) == expected
