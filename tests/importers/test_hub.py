"""`robotrl import ORGANISATION/NAME`: fetched from a real server, at one commit, once, and without code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.errors import ConfigError, DataError
from robotrl.importers.hub import fetch
from robotrl.run.checkpoint import read_checkpoint
from tests.importers.test_flow import write_lerobot
from tests.kits.hub_kit import COMMIT, GATED, hub

OPTIONS = ("--sim.image", "flat_near", "--sim.image-size", "32", "--sim.families", "point")
CAMERAS = ("--cameras", "observation.images.top=image_flat_near", "observation.images.wrist=")


def settings(home: Path, endpoint: str, **env: str) -> dict[str, str]:
    """The environment of a process that reaches a hub; its package reads these variables when it is imported."""
    return {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", **env}


def run(home: Path, endpoint: str, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "robotrl.cli", "import", "lerobot", *command, "--sim", "mujoco/tabletop", *OPTIONS],
        env=settings(home, endpoint, **env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("hub") / "policy"
    write_lerobot(source, "smolvla")
    (source / "modeling.py").write_text("raise SystemExit('code of others was run')\n")
    return source


@pytest.mark.timeout(400)
def test_a_name_on_the_hub_is_fetched_once_at_one_commit(theirs: Path, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "ours"
    with hub({"toys/policy": theirs, "toys/words": theirs / "vlm"}) as (endpoint, asked):
        done = run(home, endpoint, "toys/policy@main", "--vlm", "toys/words", *CAMERAS, "--out", str(out))
        assert done.returncode == 0, done.stderr
        assert f"toys/policy@{COMMIT}" in done.stdout and "unverified" in done.stdout
        assert any(path.endswith("model.safetensors") for path in asked)
        assert not any(path.endswith(".py") for path in asked)
    origin = read_checkpoint(out).tree["import"]
    assert (origin["source"], origin["vlm"]) == (f"toys/policy@{COMMIT}", f"toys/words@{COMMIT}")
    # the server is gone; what was fetched is here
    again = run(
        home,
        endpoint,
        origin["source"],
        "--vlm",
        origin["vlm"],
        *CAMERAS,
        "--out",
        str(tmp_path / "again"),
        HF_HUB_OFFLINE="1",
    )
    assert again.returncode == 0, again.stderr
    assert read_checkpoint(tmp_path / "again").tree["import"]["fingerprint"] == origin["fingerprint"]


FETCH = """
import sys
from robotrl.errors import RobotrlError
from robotrl.importers.hub import fetch
for name in sys.argv[1:]:
    try:
        fetch(name)
    except RobotrlError as error:
        print(error)
"""


def test_what_the_hub_refuses_is_said_in_one_line(theirs: Path, tmp_path: Path) -> None:
    refusals = {
        "toys/polcy": ("toys/polcy", "neither a directory here nor a name on the hub"),
        "toys/policy@v9": ("toys/policy", "'v9'", "a branch, a tag or a commit"),
        GATED: (GATED, "consent", "log in"),
    }
    with hub({"toys/policy": theirs}) as (endpoint, _):
        command = [sys.executable, "-c", FETCH, *refusals]
        done = subprocess.run(command, env=settings(tmp_path / "home", endpoint), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, words in zip(done.stdout.splitlines(), refusals.values(), strict=True):
        assert all(word in line for word in words), line


def test_a_hub_that_cannot_be_reached_is_said_in_one_line(theirs: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "http://127.0.0.1:9", "toys/policy", "--vlm", str(theirs), *CAMERAS, "--out", "ours")
    assert done.returncode == 2 and "toys/policy is no directory here, and the hub gave nothing: " in done.stderr
    assert "Traceback" not in done.stderr


def test_directories_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toys" / "policy").mkdir(parents=True)
    assert fetch("toys/policy") == (Path("toys/policy"), "toys/policy")
    with pytest.raises(DataError, match=r"toys/a/b is no directory: expected one, or a name on the hub"):
        fetch("toys/a/b")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file is no directory"):
        fetch(tmp_path / "file")


@pytest.mark.parametrize("name", ["org/na--me", "org/na..me", "org/name.git", "org/" + "a" * 120])
def test_a_name_that_no_hub_has_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"{name} is no directory here, and no name on the hub: "):
        fetch(name)
