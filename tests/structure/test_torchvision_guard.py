"""torchvision is imported beside any build of torch; where its library loads, nothing is declared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchvision")


def ended(lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=300)


def test_open_clip_and_transformers_are_imported_behind_robotrl() -> None:
    done = ended(
        "import robotrl\nimport open_clip, timm\nfrom transformers import LlamaConfig\n"
        "from torchvision.transforms import functional\nprint(functional.InterpolationMode.BICUBIC.value)"
    )
    assert (done.returncode, done.stdout) == (0, "bicubic\n"), done.stderr


def test_an_operator_that_is_only_declared_says_why_it_cannot_be_called() -> None:
    done = ended(
        "import robotrl, torch\nimport torchvision\n"
        "keep = torchvision.ops.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1), 0.5)\nprint(keep.tolist())"
    )
    assert done.stdout == "[0]\n" or "Couldn't load custom C++ ops" in done.stderr


LOADS = """
import importlib.util, sys, torch
from pathlib import Path
from robotrl import torchvision_guard
loaded = []
torch.ops.load_library = loaded.append  # a library that fits
folder = Path(sys.argv[1])
print(torchvision_guard.declare_missing_operators(folder), [Path(file).name for file in loaded])
"""


@pytest.mark.parametrize("fits", [True, False])
def test_operators_are_declared_only_where_the_library_does_not_load(tmp_path: Path, fits: bool) -> None:
    import importlib.machinery

    name = f"_C{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    (tmp_path / name).write_bytes(b"not a library")
    lines = LOADS if fits else LOADS.replace("torch.ops.load_library = loaded.append", "")
    done = subprocess.run([sys.executable, "-c", lines, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.stdout == (f"False ['{name}']\n" if fits else "True []\n"), done.stderr


def test_nothing_is_imported_until_torchvision_is() -> None:
    assert ended("import sys, robotrl\nprint('torch' in sys.modules)").stdout == "False\n"
