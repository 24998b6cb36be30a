"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """`__getattr__` of a package.

    Args:
        package: its `__name__`.
        modules: name to the module that has it; a name whose module ends with it stands for the module itself.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else vars(module)[name]

    return find
