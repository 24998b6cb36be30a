"""The pages on adding a sim, a policy and an algorithm, followed as an outsider would: a package with entry points."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.run.directory import Run
from tests.kits.command_lines import robotrl_lines
from tests.kits.paths_kit import ROOT

DOCS = ROOT / "docs"
TINY = "--sim.num-envs 4 --algo.env-steps 64 --algo.num-steps 8 --algo.minibatch 16 --algo.engine eager"
TINY += " --evaluation.every 0 --evaluation.episodes 4 --evaluation.num-envs 4 --evaluation.animation 0"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables under which a package with the pages' code is installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    package = source / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "point.py").write_text(blocks("add-a-sim.md", "python")[0])
    (package / "laplace.py").write_text(blocks("add-a-policy.md", "python")[0])
    (package / "fpo.py").write_text(blocks("add-an-algorithm.md", "python")[0])
    entries = [blocks(page, "toml")[0] for page in ("add-a-sim.md", "add-a-policy.md", "add-an-algorithm.md")]
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "my-package"\nversion = "1.0"\n' + re.sub(r"^ +", "", "\n".join(entries), flags=re.MULTILINE)
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(filter(None, [str(target), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def test_all_three_are_listed_and_have_flags(outside: dict[str, str], tmp_path: Path) -> None:
    flags = "train --sim my/point --algo ppo --policy laplace --help-all"
    lines = ["list sims", "list policies", "list algorithms", flags]
    sims, policies, algorithms, said = robotrl_lines(lines, outside, tmp_path)
    assert re.search(r"^my/point +\S", sims, re.MULTILINE)
    assert re.search(r"^laplace +Laplace policy", policies, re.MULTILINE)
    assert re.search(r"^fpo +FPO", algorithms, re.MULTILINE)
    assert "--sim.limit-steps INT" in said and "--policy.initial-scale FLOAT" in said


def test_the_policy_trains_is_evaluated_and_exported(outside: dict[str, str], tmp_path: Path) -> None:
    line = next(line for line in blocks("add-a-policy.md", "shell")[0].splitlines() if "train" in line).strip()
    robotrl_lines([f"{line.removeprefix('robotrl ')} {TINY}"], outside, tmp_path)
    assert Run.open(tmp_path / "runs" / "laplace").config["policy"]["initial_scale"] == 0.3
    # a process that knows nothing of the training
    evaluation = "eval {} --episodes 4 --num-envs 4"
    lines = [evaluation.format("runs/laplace"), "export runs/laplace --out bundle", evaluation.format("bundle")]
    of_run, _, of_bundle = robotrl_lines(lines, outside, tmp_path)
    assert "over 4 starts" in of_run and "over 4 starts" in of_bundle


def test_the_algorithm_fine_tunes_a_clone_by_its_name(outside: dict[str, str], tmp_path: Path) -> None:
    demos = "demos mujoco/reach --out demos --episodes 4 --sim.limit-s 2"
    clone = "train --sim mujoco/reach --algo bc --dataset demos --run-dir clone --algo.updates 20"
    clone += " --evaluation.episodes 4 --evaluation.num-envs 4"
    tuning = f"train --sim mujoco/reach --algo fpo --init-from clone --run-dir tuned --sim.limit-s 0.5 {TINY}"
    robotrl_lines([demos, clone, tuning], outside, tmp_path)
    assert Run.open(tmp_path / "tuned").config["types"]["algo"] == "my_package.fpo:FpoCfg"


def test_the_sim_is_trained_on_and_evaluated(outside: dict[str, str], tmp_path: Path) -> None:
    training = f"train --sim my/point --algo ppo --sim.limit-steps 9 --run-dir runs/point {TINY}"
    _, said = robotrl_lines([training, "eval runs/point --episodes 4 --num-envs 2"], outside, tmp_path)
    assert Run.open(tmp_path / "runs" / "point").config["sim"]["options"] == {"limit_steps": 9}
    assert "over 4 starts" in said


@pytest.mark.parametrize("page, module", [("add-a-policy.md", "laplace"), ("add-an-algorithm.md", "fpo")])
def test_the_test_of_the_page_passes(page: str, module: str, outside: dict[str, str], tmp_path: Path) -> None:
    code = blocks(page, "python")[-1]
    (tmp_path / "test_own.py").write_text(code.replace(f"from {module} import", f"from my_package.{module} import"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"]
    done = subprocess.run(command, env=outside, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_checks_of_the_sims_page_pass(outside: dict[str, str], tmp_path: Path) -> None:
    code = "from my_package.point import PointCfg\n" + next(
        block for block in blocks("add-a-sim.md", "python") if "robotrl.testing" in block
    )
    done = subprocess.run([sys.executable, "-c", code], env=outside, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
