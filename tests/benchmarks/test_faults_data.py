"""Faulty datasets end as they should: a few inputs of each kind that the bench tries by the hundred."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.data import KINDS
from benchmarks.faults.kind import Kind


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_each_kind_ends_as_it_should(kind: Kind, tmp_path: Path) -> None:
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert kind.attempt(np.random.default_rng(seed), folder) in kind.wanted
