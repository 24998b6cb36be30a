"""`robotrl new robot`, as a user goes on from it: its test, a bundle, control, names of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.cli.main import main
from robotrl.cli.new_robot import LONGEST_NAME, TEMPLATE_CLASS, check_name, class_name, robot_files
from robotrl.errors import ConfigError
from robotrl.registry import ROBOT_SIMS, ROBOTS
from tests.docs.test_pages import DOCS, blocks
from tests.kits.paths_kit import ROOT
from tests.kits.real_time import undisturbed
from tests.kits.refusals import raises_naming

PAGE = DOCS / "add-a-robot.md"
ENTRY_POINTS = blocks(PAGE, "toml")[0].replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")


def run(argv: list[str], cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, as a user does outside the checkout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)])), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *argv], cwd=cwd, env=environment, capture_output=True, text=True)


def robotrl(line: str, cwd: Path, path: str = "") -> str:
    """Output of a command that succeeds."""
    code = "import sys; from robotrl.cli.main import main; sys.argv = ['robotrl', *sys.argv[1:]]; sys.exit(main())"
    done = run(["-P", "-c", code, *line.split()], cwd, path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new robot with the page's bundle for it."""
    place = tmp_path_factory.mktemp("robots")
    said = robotrl("new robot my_arm", place)
    assert said.splitlines()[:3] == [f"wrote my_arm/{name}" for name in ("my_arm.py", "test_my_arm.py", "README.md")]
    made = place / "my_arm"
    script = next(block for block in blocks(PAGE, "python") if "go.bundle" in block)
    (made / "go_to_goal.py").write_text(script)
    done = run(["go_to_goal.py"], made)
    assert done.returncode == 0, done.stderr
    return made


def test_its_own_test_passes(folder: Path) -> None:
    done = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_arm.py"], folder)
    assert done.returncode == 0, done.stdout
    assert "10 passed" in done.stdout


def test_its_own_test_finds_a_mistake(folder: Path, tmp_path: Path) -> None:
    source = (folder / "my_arm.py").read_text()
    (tmp_path / "my_arm.py").write_text(source.replace('units=("rad", "rad",', 'units=("rad", "deg",'))
    (tmp_path / "test_my_arm.py").write_text((folder / "test_my_arm.py").read_text())
    done = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_arm.py", "-k", "specs"], tmp_path)
    assert done.returncode == 1
    assert "element 'joint_2_pos' has unit 'deg': expected SI, 'rad'" in done.stdout


@undisturbed
def test_a_bundle_controls_it(folder: Path, tmp_path: Path) -> None:
    said = robotrl("deploy go.bundle --robot sim:my_arm:make --episodes 2", folder)
    assert said.startswith("success 2 of 2 at 50 Hz")


@undisturbed
def test_a_package_gives_it_a_name(folder: Path, tmp_path: Path) -> None:
    """The page's entry points and its `main`, in a package as an installer lays it out."""
    (tmp_path / "my_arm.py").write_text((folder / "my_arm.py").read_text())
    (tmp_path / "my_arm_robot.py").write_text(next(b for b in blocks(PAGE, "python") if "def main" in b))
    info = tmp_path / "my_arm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-arm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "my_arm" in robotrl("list robots", elsewhere, str(tmp_path))
    for robot in ("sim:my_arm", "my_arm:192.168.0.7"):
        said = robotrl(f"deploy {folder / 'go.bundle'} --robot {robot} --episodes 1", elsewhere, str(tmp_path))
        assert said.startswith("success 1 of 1 at 50 Hz"), robot


def test_the_pages_checks_pass(folder: Path) -> None:
    script = next(block for block in blocks(PAGE, "python") if "check_robot(" in block)
    done = run(["-c", script], folder)
    assert done.returncode == 0, done.stderr


def test_the_page_names_the_groups_of_the_registry() -> None:
    assert {f"[{ROBOT_SIMS.group}]", f"[{ROBOTS.group}]"} <= set(ENTRY_POINTS.splitlines())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("my-arm", "my_arm"),
        ("my arm!", "my_arm"),
        ("2arm", "arm"),
        ("_arm", "arm"),
        ("class", "class_robot"),
        ("None", "None_robot"),
        ("json", "json_robot"),
        ("numpy", "numpy_robot"),
        ("robotrl", "robotrl_robot"),
        ("conftest", "conftest_robot"),
        ("arm.left", "arm_left"),
        ("../arm", "arm"),
        ("ärm", "rm"),
        ("", "my_robot"),
        ("123", "my_robot"),
    ],
)
def test_names_that_cannot_be_imported_are_refused(name: str, nearest: str) -> None:
    with raises_naming(ConfigError, "NAME", nearest=nearest):
        check_name(name)
    check_name(nearest)


def test_long_names_are_refused_with_one_that_fits() -> None:
    check_name("a" * LONGEST_NAME)
    with raises_naming(ConfigError, "NAME", LONGEST_NAME):
        check_name("a" * (LONGEST_NAME + 1))


@pytest.mark.parametrize("there", ["folder", "file"])
def test_what_is_there_is_kept(
    there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "arm_of_mine"
    if there == "folder":
        place.mkdir()
        place = place / "notes.txt"
    place.write_text("mine")
    for argv in (["arm_of_mine"], ["other_arm", "--out", "arm_of_mine"]):
        assert main(["new", "robot", *argv]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "arm_of_mine" in said and "exists already" in said
    assert place.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["arm_of_mine"]


def test_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "with space" / "arm"
    assert main(["new", "robot", "left_arm", "--out", str(place)]) == 0
    assert f"next: cd '{place}' && python -m pytest test_left_arm.py" in capsys.readouterr().out
    assert {path.name for path in place.iterdir()} == {"left_arm.py", "test_left_arm.py", "README.md"}


def test_the_files_name_the_robot_alone() -> None:
    files = robot_files("left_arm")
    assert "class LeftArmRobot:" in files["left_arm.py"]
    assert TEMPLATE_CLASS not in files["left_arm.py"] and "new robot" not in files["left_arm.py"]
    assert "sim:left_arm:make" in files["README.md"]
    assert class_name("robot") == class_name("Robot") == "Robot"
    assert class_name("my_arm") == "MyArmRobot"
    assert class_name("spec") == "SpecRobot", "no class that is imported beside it"


def test_an_unknown_kind_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "robt"]) == 2
    assert "'robt' is unknown: did you mean 'robot'?" in capsys.readouterr().err
    assert main(["new"]) == 0
    assert capsys.readouterr().out.startswith("usage: robotrl new KIND")
