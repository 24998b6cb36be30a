"""Module search path of child processes without the working directory.

`python -m`, `python -c` and the spawn of `multiprocessing` put the working directory first on the path. A command
in a folder with a file `numpy.py` would then run that file. Our child processes start without it; `user_module` imports
modules that the user names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

_SAFE, _PATH = "PYTHONSAFEPATH", "PYTHONPATH"


def safe_environment() -> dict[str, str]:
    """Copy of this process's environment for a Python process that does not search the working directory."""
    environment = dict(os.environ)
    environment[_SAFE] = "1"
    if _PATH in environment:
        # an empty entry, for example from a stray colon, stands for the working directory
        environment[_PATH] = os.pathsep.join(filter(None, environment[_PATH].split(os.pathsep)))
    return environment


def leave_working_directory() -> None:
    """Remove the working directory from the path of this process and its children; only for our own commands.

    A PYTHONPATH entry equal to the working directory is kept, because the user asked for it.
    """
    os.environ.update(safe_environment())
    if not sys.flags.safe_path and sys.path and _is_here(sys.path[0]):
        del sys.path[0]
    sys.path[:] = filter(None, sys.path)


@contextmanager
def safe_children() -> Generator[None, None, None]:
    """Inside the block, processes started by `multiprocessing` search the working directory last.

    For processes started from a user's program; its environment and path are restored when the block ends.
    """
    environment, path = {name: os.environ.get(name) for name in (_SAFE, _PATH)}, list(sys.path)
    os.environ.update(safe_environment())
    # the spawn method passes the path of this process on
    sys.path[:] = sorted((entry or os.getcwd() for entry in path), key=_is_here)
    try:
        yield
    finally:
        sys.path[:] = path
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_here(entry: str) -> bool:
    return os.path.abspath(entry or ".") == os.path.abspath(".")
