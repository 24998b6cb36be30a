"""Lets torchvision be imported where its compiled operators do not fit the installed torch.

The default wheel of torchvision is built for CUDA. Beside a CPU build of torch its compiled library does not load, and
`import torchvision` then fails at `operator torchvision::nms does not exist`. open_clip and timm import torchvision at
their top, and transformers fails as soon as it is installed. None of them needs these operators for what robotrl does:
with the two operators declared, everything else of torchvision is Python and works; a call of an operator still raises
torchvision's own error, which names the cause.

The guard costs nothing until torchvision is imported, and does nothing where its library loads.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "torchvision"
LIBRARY = "_C"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Operators for which torchvision registers shape functions when it is imported."""
_declared: list[Any] = []
"""Keeps the declarations alive: they end with the object."""


class TorchvisionFinder(MetaPathFinder):
    """Declares the operators just before torchvision is imported for the first time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None: torchvision is found where it always is."""
        if fullname == PACKAGE:
            sys.meta_path.remove(self)
            spec = importlib.machinery.PathFinder.find_spec(fullname, path)
            if spec is not None and spec.submodule_search_locations:
                declare_missing_operators(Path(next(iter(spec.submodule_search_locations))))
        return None


def declare_missing_operators(package: Path) -> bool:
    """Declare torchvision's operators if its compiled library cannot be loaded.

    Args:
        package: directory of torchvision.

    Returns:
        True if they were declared.
    """
    torch: Any = importlib.import_module("torch")  # torchvision would import it next
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    library = next((file for end in suffixes if (file := package / f"{LIBRARY}{end}").is_file()), None)
    try:
        if library is not None:
            torch.ops.load_library(library)
            return False
    except OSError:  # built for another torch
        pass
    declared = torch.library.Library(PACKAGE, "DEF")
    for schema in SCHEMAS:
        declared.define(schema)
    _declared.append(declared)
    return True


def install() -> None:
    """Guard the first import of torchvision."""
    if PACKAGE not in sys.modules and not any(isinstance(finder, TorchvisionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchvisionFinder())
