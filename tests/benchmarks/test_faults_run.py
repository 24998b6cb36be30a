"""Faults of runs, files and command lines, a few inputs of each kind; the bench tries many."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.faults import files, flags, run
from benchmarks.faults.cell import attempt

MEMORY = "more memory than there is"
KINDS = [
    pytest.param(kind, id=f"{area}: {kind.name}")
    for area, kinds in (("run", run.KINDS), ("files", files.KINDS), ("flags", flags.KINDS))
    for kind in kinds
    if kind.name != MEMORY
]

ONE_OF_MEMORY = """
import sys
from benchmarks.faults import flags
from benchmarks.faults.cell import attempt
(kind,) = (kind for kind in flags.KINDS if kind.name == sys.argv[1])
outcome, said = attempt(kind, 0)
assert outcome in kind.wanted, f"{outcome} {said}"
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_comes_out_as_it_should(kind):
    for number in range(1 if kind.inputs < 50 else 3):
        outcome, said = attempt(kind, number)
        assert outcome in kind.wanted, f"input {number}: {outcome} {said}"


def test_more_memory_than_there_is():
    """In a new process: what the tests before have freed is memory too, and took forty seconds to fill."""
    done = subprocess.run([sys.executable, "-c", ONE_OF_MEMORY, MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
