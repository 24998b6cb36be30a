"""The kinds of faults of replays, sims' numbers and actors that the bench of faults tries, a few inputs of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.kind import Kind
from benchmarks.faults.replay import KINDS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_comes_out_as_it_should(tmp_path: Path, kind: Kind) -> None:
    for number in range(1 if kind.inputs < 50 else 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert kind.attempt(np.random.default_rng((7, number)), folder) in kind.wanted
