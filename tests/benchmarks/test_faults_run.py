"""Faults of runs, files and command lines, a few inputs of each kind; the bench tries many."""

from __future__ import annotations

import pytest

from benchmarks.faults import files, flags, run
from benchmarks.faults.cell import attempt

KINDS = [
    pytest.param(kind, id=f"{area}: {kind.name}")
    for area, kinds in (("run", run.KINDS), ("files", files.KINDS), ("flags", flags.KINDS))
    for kind in kinds
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_comes_out_as_it_should(kind):
    for number in range(1 if kind.inputs < 50 else 3):
        outcome, said = attempt(kind, number)
        assert outcome in kind.wanted, f"input {number}: {outcome} {said}"
