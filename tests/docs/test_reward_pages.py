"""Pages about rewards: their tables are those of the code, and a reward of another package works as the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.rewards.source import RewardSetup
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from tests.kits.command_lines import robotrl_lines
from tests.kits.paths_kit import ROOT
from tests.kits.walk_sim import Walk

sys.path.insert(0, str(ROOT / "tools"))
import reward_docs

PAGE = ROOT / "docs" / "add-a-reward.md"
TINY = "--sim.num-envs 4 --sim.limit-s 0.5 --algo.env-steps 128 --algo.num-steps 16 --algo.minibatch 32"
TINY += " --algo.engine eager --evaluation.every 0 --evaluation.episodes 4 --evaluation.num-envs 4"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [reward_docs.INDEX, reward_docs.GUIDANCE, *sorted(reward_docs.FOLDER.glob("*.md"))],
    ids=lambda page: page.stem,
)
def test_the_tables_of_the_page_are_those_of_the_code(page: Path) -> None:
    assert reward_docs.filled(page) == page.read_text(), "run python tools/reward_docs.py"


def test_every_source_has_a_page_with_its_settings() -> None:
    for name in reward_docs.ours():
        page, anchor = reward_docs.page_of(name)
        wanted = f"\n## {anchor}\n" if anchor else f"<!-- fields {name}:begin -->"
        assert wanted in page.read_text(), name
    assert {page.stem for page in reward_docs.FOLDER.glob("*.md")} == {
        reward_docs.page_of(name)[0].stem for name in reward_docs.ours()
    } | reward_docs.SHARED


def test_the_list_of_the_page_is_read(tmp_path: Path) -> None:
    from robotrl.config import reward_from_json

    (listed,) = blocks(reward_docs.INDEX, "json")
    found = [reward_from_json(one) for one in json.loads("{" + listed + "}")["rewards"]]
    assert [(one.name, one.weight) for one in found] == [("task", 1.0), ("progress", 1.0), ("action-rate", 0.05)]
    for code in blocks(reward_docs.INDEX, "python"):
        exec(compile(code, "rewards.md", "exec"), names := {})
        assert [one.name for one in names["config"].rewards] == ["task", "progress"]


def test_the_function_of_the_page_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from robotrl.rewards.function import FunctionRewardCfg

    (code,) = blocks(reward_docs.FOLDER / "function.md", "python")
    (tmp_path / "own_of_the_page.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert FunctionRewardCfg("own_of_the_page:near_goal").build(Walk(2), RewardSetup()).fallback == 0.0


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables under which the page's package is installed, and beside it one that cannot be imported."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "calm_reward.py").write_text(blocks(PAGE, "python")[0])
    (source / "pyproject.toml").write_text(blocks(PAGE, "toml")[0])
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (target / "broken_reward.py").write_text("raise RuntimeError('no licence found')\n")
    info = target / "broken_reward-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-reward\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[robotrl.rewards]\nbroken = broken_reward:BrokenCfg\n")
    path = os.pathsep.join(filter(None, [str(target), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def robotrl(words: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robotrl.cli", *words.split()]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


def test_a_reward_of_another_package_is_listed_trained_and_resumed(outside: dict[str, str], tmp_path: Path) -> None:
    listing, training = blocks(PAGE, "shell")[0].splitlines()
    words = [listing.removeprefix("robotrl "), f"{training.removeprefix('robotrl ')} {TINY}"]
    told, _ = robotrl_lines(words, outside, tmp_path)
    assert re.search(r"^calm +How little an observation has changed in a step", told, re.MULTILINE)
    assert re.search(r"^task ", told, re.MULTILINE) and re.search(r"^broken", told, re.MULTILINE)
    run = tmp_path / "runs" / "calm"
    config = Run.open(run).config
    assert config["rewards"][1] == {"name": "calm", "weight": 0.1, "cfg": {"key": "state", "every": 2}}
    lines = read_scalars(run / "scalars.jsonl")
    assert len(lines) == 2
    for line in lines:
        assert 0.3 < line["reward_valid/calm"] < 0.6, "about every second step"
        assert 0.0 < line["reward/calm"] <= line["reward_valid/calm"]
    again = robotrl("train --resume runs/calm", outside, tmp_path)
    assert again.returncode == 0, again.stderr


def test_a_package_that_cannot_be_imported_is_named_and_hides_no_other(outside: dict[str, str], tmp_path: Path) -> None:
    done = robotrl("train --sim mujoco/reach --algo ppo --reward broken", outside, tmp_path)
    assert done.returncode == 2
    wanted = "reward 'broken' of the package 'broken-reward' cannot be imported: RuntimeError: no licence found"
    assert done.stderr.splitlines()[-1] == f"error: {wanted}"
    done = robotrl(
        "train --sim mujoco/reach --algo ppo --reward calm --help",
        outside,
        tmp_path,
    )
    said = re.sub(r"[│\s]+", " ", done.stdout)
    assert done.returncode == 0 and "--reward.calm.every INT" in said
    assert "Steps between two scores" in said and "(default: 4)" in said


def test_the_test_of_the_page_passes(outside: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_calm.py").write_text(blocks(PAGE, "python")[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_calm.py"]
    done = subprocess.run(command, env=outside, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
