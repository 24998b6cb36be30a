"""Lets pytest run from a bare checkout, and loads the rule about skips.

Six folders at the top of the repository install as one package (see `[tool.setuptools.package-dir]`). Where this
checkout is not the one that is installed, a folder of links with the installed layout goes to the front of the path,
for this process and for those that the tests start.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LINKS = ROOT / "build" / "checkout"
PARTS = ("sims", "policies", "deploy", "configs")

# A busy machine draws slowly: that is no fault of a test.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# Files that take longest (they start processes or compile). A worker that began one of them last would leave the others
# with nothing to do. `make test-fast` leaves them out.
SLOW_FIRST = (
    "engine/test_distributed_learners.py",
    "engine/test_distributed.py",
    "conformance/test_sims.py",
    "benchmarks/test_vla.py",
    "learners/test_remote_actor.py",
    "peft/test_lora.py",
    "learners/test_denoising.py",
    "engine/test_device.py",
    "cli/test_cli.py",
    "cli/test_sweep.py",
    "importers/test_hub.py",
    "policies/vla/test_token.py",
    "benchmarks/test_faults_run.py",
    "engine/test_auto.py",
    "algos/test_pretrain.py",
    "memory_estimate/test_estimate.py",
    "deploy/test_control.py",
    "policies/vla/test_flow.py",
    "algos/test_grpo.py",
    "benchmarks/test_driving.py",
    "deploy/test_export.py",
    "sims/gymnasium_sim/test_habits.py",
    "sims/bev/test_backends.py",
    "sims/mujoco/test_warp.py",
    "training/test_resume_replay.py",
    "learners/test_actor_start.py",
    "importers/test_vlm.py",
    "engine/test_engine.py",
    "deploy/test_stop.py",
    "conformance/test_policies.py",
    "training/test_resume.py",
    "api/test_view.py",
    "training/test_faults.py",
    "sims/mujoco/test_quadruped.py",
    "cli/test_quickstart.py",
    "algos/test_opd.py",
    "algos/test_flow_grpo.py",
    "policies/vla/test_input_checks.py",
    "learners/test_frames.py",
    "rewards/test_rewards.py",
    "rewards/test_process.py",
    "rewards/scoring/test_faults.py",
    "sims/bev/test_drive.py",
    "structure/test_stored_v0_1.py",
    "algos/test_vla_rl.py",
    "benchmarks/test_bev.py",
    "importers/test_importing.py",
    "benchmarks/test_finetune.py",
    "deploy/test_watch.py",
    "benchmarks/test_cells.py",
    "training/test_choices.py",
    "structure/test_setup.py",
    "utils/test_safe_path.py",
)

# A shell starts background jobs with Ctrl-C ignored, which every process started from here would inherit; the tests
# that send it need it to work wherever they run.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each worker has one thread, as have the processes that it starts: they are as many as the cores, and threads that wait
# for each other while others have the core take many times as long.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# compiling in this process: torch would start helpers, each of which imports it again, and the cores are busy
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Without bytecode on disk, each of the hundreds of processes that the tests start compiles the package anew. Images of
# containers often forbid it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# for `tests.kits` and `benchmarks`, in this process and in those that the tests start
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
pytest_plugins = ["tests.kits.folder_times", "tests.kits.strict_skips"]


def _installed_from_here() -> bool:
    """Whether `robotrl.sims` is found without help, and is ours."""
    try:
        found = importlib.util.find_spec("robotrl.sims")
    except ModuleNotFoundError:
        return False
    return found is not None and found.origin is not None and Path(found.origin) == ROOT / "sims" / "__init__.py"


def _link_layout() -> None:
    """Make `build/checkout/robotrl`, a folder of links laid out as the installed package is."""
    package = LINKS / "robotrl"
    package.mkdir(parents=True, exist_ok=True)
    targets = {entry.name: entry for entry in (ROOT / "robotrl").iterdir() if entry.name != "__pycache__"}
    targets |= {part: ROOT / part for part in PARTS}
    for name, target in targets.items():
        link = package / name
        if not link.is_symlink():
            link.symlink_to(target)


if not _installed_from_here():
    _link_layout()
    for name in [name for name in sys.modules if name.split(".")[0] == "robotrl"]:
        del sys.modules[name]
    sys.path.insert(0, str(LINKS))
    # In a child started here, the current folder would come first, and its `robotrl` lacks the other parts.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(LINKS), os.environ.get("PYTHONPATH")]))


def pytest_collection() -> None:
    """Import and collect without the garbage collector: nearly all that is made then stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking again and again through all that was imported and collected."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first; the order within a file, and of the others, stays."""
    rank = {name: place for place, name in enumerate(SLOW_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(HERE).as_posix(), len(rank)))
