"""Faults around choices, a few inputs of each kind; all of them: `robotrl bench faults`."""

import numpy as np
import pytest

from benchmarks.faults.categorical import KINDS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_none_goes_in_unnoticed(kind, tmp_path):
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert kind.attempt(np.random.default_rng(number), folder) in kind.wanted
