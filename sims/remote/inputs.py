"""Inputs of a remote sim: the files and modules that its workers read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robotrl.registry import sim_options
from robotrl.spec import HasInputs, Input


def is_own(served: str) -> bool:
    """True for the name of a sim of robotrl, "gym/MODULE:ID" included; False for MODULE:FUNCTION."""
    return "/" in served


def inputs_of(
    served: str, kwargs: Mapping[str, Any] | None, python: str | None, path: Sequence[str], worker_file: str | None
) -> list[Input]:
    """Inputs of the served sim; what only another Python has is not known here.

    Args:
        served: sim of robotrl, or MODULE:FUNCTION.
        kwargs: options of the sim, or arguments of the function.
        python: interpreter of the workers; None for this one.
        path: folders in which they look first.
        worker_file: copy of `worker.py`; None for the one of this robotrl.

    Raises:
        ConfigError: an option of a sim of robotrl is unknown.
    """
    found = [Input("worker_file", "file", worker_file)] if worker_file is not None else []
    if not is_own(served):
        return found + _module(served.partition(":")[0], python, path)
    # packages of another Python may be of other versions, and need not be here
    if python is not None:
        return found
    options = sim_options(served, kwargs)
    own = options.inputs() if isinstance(options, HasInputs) else []
    return found + [one._replace(field="kwargs" if one.field else "") for one in own]


def _module(name: str, python: str | None, path: Sequence[str]) -> list[Input]:
    """Files of a module's package in the workers' folders; the module itself if it is found as usual."""
    top = name.partition(".")[0]
    folders = [*path, os.getcwd()] if python is not None else path
    for folder in map(Path, folders):
        package, file = folder / top, folder / f"{top}.py"
        if (package / "__init__.py").is_file():
            return [Input("", "file", str(one)) for one in sorted(package.rglob("*.py"))]
        if file.is_file():
            return [Input("", "file", str(file))]
    return [Input("", "module", name)] if python is None else []
