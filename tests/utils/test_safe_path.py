"""Nothing of the working directory is imported by a process that we start, whichever way it is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.kits.deploy_kit as kit
from tests.kits.commands import PEG_SAC
from tests.kits.paths_kit import KITS

HERE = KITS
PLANTED = ("numpy", "struct", "pickle", "mujoco", "json", "torch", "gymnasium", "glfw", "onnxruntime", "cloudpickle")
COMMAND = "import sys\nfrom robotrl.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
"""As the console script is: in a folder of its own, which Python puts first on the path."""
ASYNC = """
import sys
from pathlib import Path
from robotrl.sims.gymnasium_sim.processes import make_processes

def make():
    import gymnasium
    return gymnasium.make("Pendulum-v1")

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        env = make_processes("Pendulum-v1", [make, make], method)
        env.reset(seed=0)
        env.close()
    print("done", __import__("os").environ.get("PYTHONSAFEPATH"))
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder whose modules would be imported in the place of others, and say so."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'EXECUTED')!r}, 'a').write('{name} ')\n")
    return folder


def run_in(folder: Path, script: str, *arguments: str, path: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script that lies elsewhere, as a user does: without PYTHONSAFEPATH."""
    place = folder.parent / "bin" / "command.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text(script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, str(place), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def executed(folder: Path) -> str:
    place = folder / "EXECUTED"
    return place.read_text() if place.exists() else ""


def test_a_robot_and_a_module_that_the_user_names(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    bundle = kit.made("goal", tmp_path_factory.getbasetemp())[0]
    (planted / "own.py").write_text("from tests.kits.deploy_cart import make_cart as make\n")
    done = run_in(
        planted, COMMAND, "deploy", str(bundle), "--robot", "sim:own:make", "--episodes", "1", path=(str(HERE),)
    )
    assert done.returncode == 0, done.stderr
    assert executed(planted) == ""


def test_an_actor_in_a_process_of_its_own(planted: Path) -> None:
    sizes = "--algo.engine eager --algo.env-steps 16 --algo.warmup 8 --sim.num-envs 2 --algo.batch 8"
    words = [*sizes.split(), "--evaluation.episodes", "2"]
    done = run_in(planted, COMMAND, "train", *PEG_SAC, "--run-dir", "run", "--actor.process", *words)
    assert done.returncode == 0, done.stderr
    assert executed(planted) == ""


def test_environments_in_processes_of_their_own(planted: Path) -> None:
    """From a program of the user's, whose environment is as before when they have started."""
    done = run_in(planted, ASYNC)
    assert done.stdout.split() == ["done", "None"], done.stderr
    assert executed(planted) == ""


def test_the_planted_files_would_be_executed(planted: Path) -> None:
    """What the tests above rest on."""
    subprocess.run([sys.executable, "-c", "import json"], cwd=planted, env={"PATH": os.environ["PATH"]}, check=True)
    assert executed(planted).split() == ["json"]
