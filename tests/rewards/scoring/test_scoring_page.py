"""The page about the scoring service: its example prints what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.kits.paths_kit import ROOT

PAGE = ROOT / "docs" / "rewards" / "scoring.md"


def test_the_example_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    scorer, trainer = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^It prints.*?```\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "dark_scorer.py").write_text(scorer)
    (tmp_path / "trainer.py").write_text(trainer)
    done = subprocess.run([sys.executable, "trainer.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", shown)


def test_the_overhead_is_measured_as_the_page_says() -> None:
    command = [sys.executable, str(ROOT / "tools" / "scoring_overhead.py"), "8"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    header, _, row = done.stdout.splitlines()
    assert header in PAGE.read_text()
    assert re.fullmatch(r"\| 8 x 8 \|( [\d.]+ \|){4} [\d,]+ \|", row), row
