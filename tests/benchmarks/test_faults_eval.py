"""Each kind of fault of evaluations, on a few inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.eval import KINDS
from benchmarks.faults.kind import Kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("number", range(2))
def test_nothing_wrong_goes_in_unnoticed(kind: Kind, number: int, tmp_path: Path) -> None:
    assert kind.attempt(np.random.default_rng(number), tmp_path) in kind.wanted
