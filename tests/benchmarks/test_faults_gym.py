"""Faults of Gymnasium environments, each kind on a few drawn inputs; the bench has many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.gym import KINDS
from benchmarks.faults.kind import Kind


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_fault_goes_in_unnoticed(kind: Kind, tmp_path: Path) -> None:
    for seed in range(3):
        path = tmp_path / str(seed)
        path.mkdir()
        assert kind.attempt(np.random.default_rng(seed), path) in kind.wanted, f"seed {seed}"
