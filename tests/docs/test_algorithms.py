"""The algorithm of docs/add-an-algorithm.md, run as the page has it, and taken up again."""

from __future__ import annotations

import re
import subprocess
import sys

import tests.training.test_resume as test_resume
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from tests.kits.paths_kit import ROOT

DOCS = ROOT / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_algorithm_of_the_page_trains_and_resumes(tmp_path):
    algorithm, usage, _ = blocks("add-an-algorithm.md")
    (tmp_path / "fpo.py").write_text(algorithm)
    (tmp_path / "runs").mkdir()
    test_resume.make_clone(tmp_path / "runs" / "clone", horizon=4)
    stop = "from tests.training.test_resume import StopAt\ntrain(config, Path('runs/cut'), [StopAt(2)])\n"
    stop += "from robotrl.training import resume\nresume(Path('runs/cut'))\n"
    program = f"import sys\nsys.path.append('.')\n{usage}\n{stop}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    whole, cut = tmp_path / "runs" / "fpo", tmp_path / "runs" / "cut"
    test_resume.assert_same_end(whole, cut)
    lines = read_scalars(whole / "scalars.jsonl")
    assert [line["env_steps"] for line in lines] == [1280, 2560, 3840, 5120]
    # the critic's warm-up; then the first ratio is 1 but for decisions begun before, of which there are none here
    assert "ratio_error" not in lines[0]
    assert lines[1]["ratio_error"] <= 1e-5
    assert all(line["approx_kl"] > 0 for line in lines[1:])
    latest = Run.open(whole).latest()
    assert latest is not None
    assert latest.kind == "ChainLearner"


def test_the_loss_of_the_engines_page_is_learned():
    (block,) = blocks("engine.md")
    exec(compile(block, "engine.md", "exec"), {"__name__": "engine_page"})
