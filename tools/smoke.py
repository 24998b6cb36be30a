"""Smoke test of the built wheel: outside the checkout, in empty environments, once without torch.

The wheel is built from the source distribution, so that files missing there are missing here too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setup_env import CONSTRAINTS, CPU_INDEX, ROOT, has_gpu, index_answers, torch_pin

NOT_INHERITED = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
WITHOUT_TORCH = """
import sys
import robotrl.deploy.runtime
heavy = [name for name in ("torch", "mujoco", "gymnasium") if name in sys.modules]
assert not heavy, heavy
print("robotrl.deploy.runtime imports without torch")
"""
TINY = """
import torch
import robotrl
sim = robotrl.make_sim("mujoco/peg-insert", num_envs=4, seed=0)
sim.reset(seed=0)
step = sim.step(torch.zeros(4, sim.action_spec.shape[0]))
assert step.reward.shape == (4,) and all(torch.isfinite(value).all() for value in step.obs.values())
print("mujoco/peg-insert steps 4 envs")
"""


class Environment:
    """An empty virtual environment in a folder outside the checkout."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.environment = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
        venv.create(folder / "venv", with_pip=True, symlinks=True)

    def run(self, *command: str) -> str:
        """Run a program of the environment in its folder; returns its output, and prints it on failure."""
        line = [str(self.bin / command[0]), *command[1:]]
        done = subprocess.run(line, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"smoke: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def pip(self, *arguments: str) -> None:
        """Install packages at the tested versions; the few modules that are used are compiled when they are."""
        self.run("python", "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-compile", *arguments)


def build(target: Path) -> Path:
    """Build the wheel from the source distribution."""
    command = [sys.executable, "-m", "build", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"smoke: build failed\n{done.stdout}{done.stderr}")
    return next(target.glob("*.whl"))


def base_install(wheel: Path, folder: Path) -> None:
    """Test the base install: command line and runtime, without torch."""
    env = Environment(folder)
    env.pip("-c", str(CONSTRAINTS), str(wheel))
    assert "torch" not in env.run("python", "-m", "pip", "list").split(), "the base install brought torch"
    assert "quickstart" in env.run("robotrl", "--help")
    assert "mujoco/peg-insert" in env.run("robotrl", "list")
    assert "not installed" in env.run("robotrl", "doctor")
    print(env.run("python", "-c", WITHOUT_TORCH).strip())


def train_install(wheel: Path, folder: Path) -> None:
    """Test the install for training: a sim steps."""
    env = Environment(folder)
    index = [] if has_gpu() or not index_answers(CPU_INDEX) else ["--index-url", CPU_INDEX]
    env.pip("--no-deps", *index, torch_pin())
    env.pip("-c", str(CONSTRAINTS), f"{wheel}[train]")
    env.run("robotrl", "doctor")
    print(env.run("python", "-c", TINY).strip())
    help_text = env.run("robotrl", "train", "--sim", "mujoco/peg-insert", "--algo", "bc", "--help")
    assert "--run-dir" in help_text, help_text
    print("presets load")


TESTS = {"base": base_install, "train": train_install}
"""Name of an environment to its test."""


def main() -> None:
    """Build the wheel, install it twice, and test it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="robotrl-smoke-") as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        print(f"built {wheel.name}", flush=True)
        with ThreadPoolExecutor() as pool:
            tests = [pool.submit(test, wheel, folder / name) for name, test in TESTS.items()]
        for test in tests:
            test.result()
    print(f"smoke: passed in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
