"""Faulty bundles, robots, sensors and places, each kind on a few inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.deploy import KINDS
from benchmarks.faults.kind import Kind


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_no_fault_is_silent(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert kind.attempt(np.random.default_rng(number), folder) in kind.wanted
