"""Each kind of fault in looking at episodes comes out as it should, on a few inputs."""

import numpy as np
import pytest

from benchmarks.faults.view import KINDS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_fault_is_not_silent(kind, tmp_path):
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert kind.attempt(np.random.default_rng([35, number]), folder) in kind.wanted
