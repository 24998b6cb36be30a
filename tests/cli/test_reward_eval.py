"""`robotrl reward eval` from the command line: real sims, the files that it writes, and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from robotrl.cli.main import main

PUSH = ["reward", "eval", "mujoco/push", "--num-envs", "6", "--episodes", "24"]
RAW = ["--reward.progress.form", "raw"]
SHORT_DRIVE = ["reward", "eval", "bev/drive", "--sim.limit-s", "3", "--sim.threads", "1", "--episodes", "8"]


def shown_data(page: str) -> dict[str, Any]:
    """The replays in a page."""
    found = re.search(r'<script type="application/json" id="replays">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def test_verdicts_and_metrics_of_several_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "push.json"
    args = ["--reward", "progress", "step-penalty", *RAW, "--json", str(out), "--require", "0.7", "--split", "val"]
    args += ["--by", "final"]
    assert main([*PUSH, *args]) == 0
    said = capsys.readouterr().out
    assert re.search(r"reward 'progress' tells success from failure \(AUC of the last score [01]\.\d\d, ", said)
    assert "reward 'step-penalty' does not tell success from failure (AUC of the last score 0.50, 0.50 to 0.50)" in said
    found = json.loads(out.read_text())
    assert found["schema_version"] == 1 and found["split"] == "val"
    assert found["rewards"][0] == {"name": "progress", "weight": 1.0, "settings": {"scale": 0.1, "form": "raw"}}
    assert set(found["metrics"]) == {"progress", "step-penalty", "sum", "sim's own"}
    assert {name: one["standing"] for name, one in found["verdicts"].items()} == {
        "progress": "tells",
        "step-penalty": "fails",
        "sum": "tells",
    }
    metrics = found["metrics"]["progress"]
    assert metrics["auc_mean"]["low"] <= metrics["auc_mean"]["value"] <= metrics["auc_mean"]["high"]
    assert metrics["progress"]["value"] > 0.99
    assert found["metrics"]["sim's own"]["auc_return"]["value"] == 1.0
    assert len(found["episodes"]) == 24 and len({one["id"] for one in found["episodes"]}) == 24
    assert len({one["actor"] for one in found["episodes"]}) == 6
    assert metrics["successes"] == sum(one["success"] for one in found["episodes"])


def test_page_shows_scores_beside_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "drive.html"
    args = ["--reward", "alive", "action-rate", "--random", "--replays", "2", "--out", str(out)]
    assert main([*SHORT_DRIVE, *args, "--require", "0.5"]) == 1, "nothing succeeds within 3 s, so nothing is judged"
    said = capsys.readouterr().out
    assert "not judged: all 8 episodes failed" in said and "8 by random" in said
    page = out.read_text()
    assert "<h2>Verdict</h2>" in page and "<h2>alive by scenario</h2>" in page and "robotrl reward eval" in page
    replays = shown_data(page)["replays"]
    assert len(replays) == 2
    for one in replays:
        titles = [title for title, _, _ in one["curves"]]
        assert titles == ["alive", "action-rate", "sum", "truth: progress", "truth: the sim's own reward"]
        assert {len(values) for _, _, values in one["curves"]} == {one["length"]}
        assert one["sheet"].startswith("data:image/") and one["name"].endswith(", random")
    assert replays[0]["instruction"] == "highest mean score"


def test_two_runs_of_the_command_agree(tmp_path: Path) -> None:
    found: list[str] = []
    for name in ("a.json", "b.json"):
        args = ["--reward", "action-size", "--expert", "--random", "--episodes", "6", "--json", str(tmp_path / name)]
        assert main([*PUSH, *args]) == 0
        found.append((tmp_path / name).read_text())
    assert found[0] == found[1]


def test_experts_that_always_succeed_are_no_judge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PUSH, "--reward", "step-penalty", "--expert", "--episodes", "4"]) == 0
    assert "not judged: all 4 episodes succeeded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ([], ["--reward"]),
        (["--reward", "progres"], ["progres", "progress"]),
        (["--reward", "alive", *RAW], ["--reward.progress.form", "progress"]),
        (["--reward", "alive", "--require", "1.5"], ["--require", "1.5"]),
        (["--reward", "alive", "--gamma", "0"], ["--gamma", "0"]),
        (["--reward", "alive", "--out", "page.json"], ["--out", "page.json", ".html"]),
        (["--reward", "alive", "--tells", "0.2"], ["judge.tells", "0.2", "0.5"]),
        (["--reward", "alive", "--policy", "nowhere"], ["nowhere"]),
        (["--reward", "alive", "--episodes", "0"], ["episodes", "0"]),
    ],
)
def test_faults_are_named_in_one_line(args: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PUSH, *args]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and all(part in said[0] for part in parts)


def test_help_lists_the_settings_of_the_named_sources(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reward", "eval", "mujoco/push", "--reward", "progress", "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert "--reward.progress.form" in said and "--require" in said and "--sim.limit-s" in said
