"""Checks of the installation: what works on this machine, and what to install for the rest.

Each extra is imported in a separate process, so that a broken compiled module cannot crash the report.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from robotrl import __version__
from robotrl.cli.import_probe import ImportProbe, probe_modules
from robotrl.utils.installation import install_line

EXTRAS = {
    "mujoco": ("mujoco", "mujoco.batch"),
    "train": (
        "torch",
        "mujoco",
        "gymnasium",
        "safetensors",
        "onnx",
        "onnxscript",
        "pyarrow",
        "tensorboard",
        "PIL",
        "psutil",
        "numba",
    ),
    "cuda": ("numba.cuda", "numba_cuda"),
    "warp": ("torch", "mujoco_warp", "warp", "array_api_compat"),
    "video": ("av",),
    "viewer": ("viser", "trimesh"),
    "clip": ("open_clip", "torchvision", "timm"),
    "wandb": ("wandb",),
    "ray": ("ray",),
    "vla": ("torch", "transformers", "peft", "huggingface_hub"),
    "remote": ("websockets", "msgpack"),
    "mcap": ("mcap",),
    "sign": ("cryptography",),
    "driver": ("carla_driver_interface",),
    "carla": ("carla",),
    "sb3": ("stable_baselines3",),
    "interop": ("stable_baselines3", "rsl_rl", "skrl", "torchrl", "minari", "h5py"),
    "peers": ("stable_baselines3", "rsl_rl", "skrl", "torchrl", "envpool", "highway_env"),
}
"""Modules that must import for an extra to be usable. `mujoco.batch` needs MuJoCo 3.17 or newer."""
CARLA_HERE = sys.version_info < (3, 13) and sys.platform == "linux" and platform.machine() == "x86_64"
"""True if CARLA's client library exists for this machine, by the same conditions as in `pyproject.toml`."""
MUJOCO_PARTS = ("mujoco", "mujoco-core", "mujoco-studio")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Extra:
    """The state of one extra."""

    name: str
    usable: bool
    detail: str
    """Installed versions, or the fault."""
    advice: str
    """Command that fixes it; empty if it is usable."""


@dataclass(frozen=True)
class Diagnosis:
    """Result of `robotrl doctor`."""

    robotrl: str
    python: str
    executable: str
    platform: str
    cores: int
    """Number of cores that this process may use."""
    gpus: tuple[str, ...]
    versions: dict[str, str]
    """Package versions of the base install."""
    torch: dict[str, str | int | bool | None] | None
    """Torch version, its CUDA version, whether it finds a GPU, its threads; None if it does not import."""
    threads: dict[str, str | None]
    """Environment variables that set thread counts."""
    compiler: str | None
    """C++ compiler that `torch.compile` would use on a CPU."""
    extras: tuple[Extra, ...]
    problems: tuple[str, ...]
    """Faults and their fixes, one line each; an extra that is only absent is not a fault."""


def diagnose(wanted: Mapping[str, Sequence[str]] = EXTRAS) -> Diagnosis:
    """Examine this machine; takes a few seconds, because the packages are imported.

    Args:
        wanted: extras to try, each with the modules that must import.
    """
    probes = probe_modules(wanted)
    extras = tuple(_judge(name, probes[name]) for name in wanted)
    gpus = _gpus()
    problems = [f"{extra.detail}: {extra.advice}" for extra in extras if _is_broken(probes[extra.name])]
    torch = next((probe.torch for probe in probes.values() if probe.torch is not None), None)
    if gpus and torch is not None and not torch["sees_gpu"]:
        problems.append(f"torch {torch['version']} does not use the GPU that is here: install a CUDA build of torch")
    return Diagnosis(
        robotrl=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        gpus=gpus,
        versions={name: _version(name) or "missing" for name in ("numpy", "onnxruntime", "tyro", "rich")},
        torch=torch,
        threads={name: os.environ.get(name) for name in THREAD_VARIABLES},
        compiler=next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None),
        extras=extras,
        problems=tuple(dict.fromkeys(problems)),
    )


def to_json(found: Diagnosis) -> str:
    """The diagnosis as JSON."""
    return json.dumps({"schema_version": 1, **asdict(found)}, indent=1)


def _is_broken(probe: ImportProbe) -> bool:
    return bool(probe.failed) or probe.crash is not None


def _judge(name: str, probe: ImportProbe) -> Extra:
    install = install_line(name)
    if probe.crash is not None:
        return Extra(name, False, probe.crash, install)
    if any(module.split(".")[0] == "mujoco" for module in probe.failed):
        return Extra(name, False, *_mujoco_fault(probe))
    if probe.failed:
        module, reason = next(iter(probe.failed.items()))
        return Extra(name, False, f"{module} does not import: {reason}", f"{install} --force-reinstall")
    if probe.absent and name == "carla" and not CARLA_HERE:
        return Extra(name, False, "exists for x86-64 Linux and Python up to 3.12 only", "")
    if probe.absent:
        return Extra(name, False, f"not installed: {', '.join(probe.absent)}", install)
    return Extra(name, True, ", ".join(f"{module} {version}" for module, version in probe.versions.items()), "")


def _mujoco_fault(probe: ImportProbe) -> tuple[str, str]:
    """Fault of an installed MuJoCo that does not import, and its fix."""
    parts = {part: version for part in MUJOCO_PARTS if (version := _version(part))}
    found = ", ".join(f"{part} {version}" for part, version in parts.items())
    if "mujoco" not in probe.failed:
        return f"{found} is too old: mujoco.batch came with 3.17", "pip install --upgrade 'mujoco>=3.17'"
    if "mujoco-core" in parts:
        # MuJoCo 4 was installed over the single-package MuJoCo 3, whose removal then deleted files of the new packages.
        detail = f"a mix of MuJoCo 3 and 4 ({found}) that does not import"
        return detail, f"pip uninstall -y {' '.join(MUJOCO_PARTS)} && {install_line('mujoco')}"
    return f"{found} does not import: {probe.failed['mujoco']}", "pip install --force-reinstall mujoco"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> tuple[str, ...]:
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        query = [smi, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
    return tuple(f"NVIDIA GPU at {path}" for path in sorted(Path("/dev").glob("nvidia[0-9]*")))
