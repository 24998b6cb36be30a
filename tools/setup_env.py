"""Set up `.venv`: torch first, at the tested version and in the right build, then everything else.

Run by the Makefile with any Python 3.11 or newer; needs only the standard library. It does nothing if the environment
already matches `pyproject.toml`, `constraints.txt` and this file, and it starts again if an earlier set-up was
interrupted, because pip leaves a half-unpacked package looking installed.

Usage: setup_env.py train | test
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "robotrl-setup.json"
RUNNING = VENV / "robotrl-setup.running"
CONSTRAINTS = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_S = 5.0
LEVELS = ("train", "test")
"""`train` is what the quickstart needs; `test` adds the development tools and every other extra."""
MUJOCO = ("mujoco", "mujoco-core", "mujoco-studio")


class SetupError(Exception):
    """Set-up cannot go on; the message says why."""


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[setup] {text}", flush=True)


def has_gpu() -> bool:
    """True if an NVIDIA GPU is visible."""
    if Path("/dev/nvidia0").exists():
        return True
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


def wanted(level: str, gpu: bool) -> dict[str, object]:
    """Stamp of an up-to-date environment."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)):
        digest.update(path.read_bytes())
    return {"level": level, "gpu": gpu, "sources": digest.hexdigest(), "root": str(ROOT)}


def is_current(want: dict[str, object]) -> bool:
    """True if the stamp matches; an environment for tests also serves for training."""
    if RUNNING.exists() or not PYTHON.exists():
        return False
    try:
        have = json.loads(STAMP.read_text())
    except (OSError, json.JSONDecodeError):
        return False
    if not isinstance(have, dict):
        return False
    enough = have.get("level") in LEVELS[LEVELS.index(str(want["level"])) :]
    return enough and {**have, "level": None} == {**want, "level": None}


def index_answers(url: str, limit_s: float = PROBE_S) -> bool:
    """True if a package index answers within `limit_s`, name resolution included."""
    answered = threading.Event()

    def ask() -> None:
        try:
            context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
            request = urllib.request.Request(f"{url}/torch/", method="HEAD")
            with urllib.request.urlopen(request, timeout=limit_s, context=context):
                answered.set()
        except (OSError, ValueError):
            pass  # no answer: use the default index

    # In a thread, because the timeout of urlopen does not cover an unresponsive name server.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(limit_s + 1.0)
    return answered.is_set()


def run(command: list[str], doing: str) -> None:
    """Run a command that is silent unless it fails, and print a sign of life every 20 s."""
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    while True:
        try:
            code = process.wait(timeout=20)
            break
        except subprocess.TimeoutExpired:
            say(f"  still {doing} ({time.monotonic() - started:.0f} s)")
    if code != 0:
        raise SetupError(f"{doing} failed with exit code {code}; what pip said stands above")


def pip(*arguments: str, doing: str) -> None:
    """Run the environment's pip: errors only."""
    run([str(PYTHON), "-m", "pip", "--disable-pip-version-check", "-qq", *arguments], doing)


def installed() -> dict[str, str]:
    """Name to version of the distributions in the environment."""
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in m.distributions()}))"
    )
    return json.loads(subprocess.run([PYTHON, "-c", code], capture_output=True, check=True, text=True).stdout)


def make_venv() -> None:
    """Make the environment; replace one that is incomplete or has too old a Python."""
    if VENV.exists():
        probe = [PYTHON, "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
        works = PYTHON.exists() and subprocess.run(probe, capture_output=True, check=False).returncode == 0
        if works and not RUNNING.exists():
            return
        say("starting .venv afresh: " + ("an earlier set-up was cut off" if works else "its Python does not run"))
    else:
        say(f"making .venv with Python {platform.python_version()}")
    if VENV.is_symlink():  # `clear` refuses a symlink, whose target must not be emptied
        VENV.unlink()
    venv.create(VENV, clear=True, with_pip=True, symlinks=True)


def compile_packages() -> None:
    """Compile all modules to bytecode on all cores, which pip would do on one.

    Where bytecode may not be written later, each start of a program would compile torch anew.
    """
    # some packages carry templates that are no Python: their errors are none of ours
    subprocess.run([PYTHON, "-m", "compileall", "-qq", "-j", "0", VENV / "lib"], check=False)


def torch_pin() -> str:
    """Torch requirement from constraints.txt."""
    for line in CONSTRAINTS.read_text().splitlines():
        if line.startswith("torch=="):
            return line.strip()
    raise SetupError("constraints.txt has no line torch==...")


def install_torch(gpu: bool) -> None:
    """Install the pinned torch: the CPU build without a GPU, the CUDA build with one.

    Without dependencies: the CPU index does not carry them at our versions, and the next step brings them.
    """
    pin, have = torch_pin(), installed().get("torch")
    if have is not None and gpu and have.endswith("+cpu"):
        say("removing the CPU build of torch: this machine has a GPU")
        pip("uninstall", "-y", "torch", doing="removing torch")
        have = None
    if have is not None and have.split("+")[0] == pin.partition("==")[2]:
        return
    if not gpu and platform.system() == "Linux":
        if index_answers(CPU_INDEX):
            say(f"installing {pin}, CPU build, about 200 MB")
            try:
                pip("install", "--no-compile", "--no-deps", "--index-url", CPU_INDEX, pin, doing="installing torch")
                return
            except SetupError:
                say("the PyTorch CPU index failed; trying the default index")
        else:
            say("the PyTorch CPU index does not answer; taking torch from the default index")
    say(f"installing {pin}" + (", CUDA build, several GB" if gpu else ""))
    pip("install", "--no-compile", "--no-deps", pin, doing="installing torch")
    if gpu and installed()["torch"].endswith("+cpu"):
        say("note: a GPU is here, but the default index gave a CPU build of torch: training will use the CPU")


def clear_old_mujoco() -> None:
    """Remove a single-package MuJoCo 3: MuJoCo 4 is three packages, and the two mixed do not import."""
    have = {name: version for name, version in installed().items() if name in MUJOCO}
    if not have:
        return
    # The versions of such a mix look right: only an import reveals it.
    probe = subprocess.run([PYTHON, "-c", "import mujoco"], capture_output=True, check=False)
    if set(have) != set(MUJOCO) or len(set(have.values())) != 1 or probe.returncode != 0:
        say("removing an older or mixed MuJoCo first: " + ", ".join(f"{n} {v}" for n, v in sorted(have.items())))
        pip("uninstall", "-y", *have, doing="removing MuJoCo")


def install_project(extras: list[str]) -> None:
    """Install robotrl itself, editable, with these extras at the tested versions."""
    wanted_extras = f".[{','.join(extras)}]"
    pip("install", "--no-compile", "-c", str(CONSTRAINTS), "-e", wanted_extras, doing="installing packages")


def install_level(level: str) -> None:
    """Install a level's requirements; an optional extra that does not install here is reported and left out."""
    if level == "train":
        say("installing robotrl[train] at the versions of constraints.txt")
        install_project(["train"])
        return
    extras = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    say(f"installing every extra at the versions of constraints.txt: {', '.join(extras)}")
    try:
        install_project(extras)
        return
    except SetupError:
        say("not all extras install together; going one by one")
    kept = ["dev"]
    install_project(kept)
    for extra in extras:
        try:
            install_project([*kept, extra])
            kept.append(extra)
        except SetupError:
            say(f"extra {extra!r} does not install here; its tests will be reported as skipped")


def main(level: str) -> None:
    """Bring `.venv` to `level`, unless it is up to date."""
    # One set-up at a time per checkout; a lock on the folder itself leaves no file behind.
    fcntl.flock(os.open(ROOT, os.O_RDONLY), fcntl.LOCK_EX)
    want = wanted(level, has_gpu())
    if is_current(want):
        return
    started = time.monotonic()
    make_venv()
    RUNNING.touch()
    STAMP.unlink(missing_ok=True)
    try:
        install_torch(bool(want["gpu"]))
        clear_old_mujoco()
        install_level(level)
        compile_packages()
        STAMP.write_text(json.dumps(want, indent=1))
    except SetupError:
        # pip itself failed and left the environment whole: the next call may continue with it.
        RUNNING.unlink()
        raise
    RUNNING.unlink()
    say(f"done in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LEVELS:
        sys.exit(f"usage: {sys.argv[0]} {' | '.join(LEVELS)}")
    try:
        main(sys.argv[1])
    except SetupError as error:
        sys.exit(f"[setup] error: {error}")
    except KeyboardInterrupt:
        sys.exit("[setup] interrupted; the next call starts .venv afresh")
