"""`make test-fast` runs the tests of what changed, and none of the slow ones that did not."""

import sys
from pathlib import Path

from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from fast_tests import ALWAYS, changed, changed_and_slow, chosen, slow_files


def of(*files: str) -> set[str]:
    return set(chosen([Path(file) for file in files]))


def test_contracts_and_pure_functions_always_run():
    found = of()
    assert {name.split("/")[1] for name in found} == set(ALWAYS)
    assert "tests/fn/test_chain.py" in found


def test_a_changed_module_adds_the_tests_of_its_folder():
    assert {"tests/replay/test_buffer.py", "tests/replay/test_disk.py"} <= of("robotrl/replay/buffer.py")
    assert "tests/sims/bev/test_traffic.py" in of("sims/bev/traffic/step.py")
    assert "tests/sims/mujoco/test_mujoco.py" in of("sims/mujoco/engine/core.py")
    assert "tests/training/test_train.py" in of("robotrl/training.py")
    assert "tests/run/test_renamed_fields.py" in of("robotrl/config.py")
    assert of("README.md", "robotrl/report/style.css") == of()


def test_slow_files_are_left_to_the_whole_suite_and_named():
    slow = {f"tests/{name}" for name in slow_files()}
    assert all((ROOT / name).is_file() for name in slow)
    assert not slow & of("robotrl/engine/engine.py", "robotrl/learners/denoising.py", "sims/starts.py")
    assert "tests/engine/test_distributed.py" not in of("tests/engine/test_distributed.py")
    assert "tests/engine/test_muon.py" in of("tests/engine/test_muon.py")
    both = [Path("tests/engine/test_distributed.py"), Path("tests/engine/test_muon.py")]
    assert changed_and_slow(both) == ["tests/engine/test_distributed.py"]


def test_what_changed_is_found():
    assert all(not file.is_absolute() for file in changed())
