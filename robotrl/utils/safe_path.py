"""The module search path of the processes that we start: the working directory is not on it.

`python -m`, `python -c` and the spawn of `multiprocessing` put the working directory first on the path. Whoever runs a
command in a folder that holds a `numpy.py` would run that file. Processes of ours start without it; `user_module`
finds there what the user names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

_SAFE, _PATH = "PYTHONSAFEPATH", "PYTHONPATH"


def safe_environment() -> dict[str, str]:
    """This process's environment for a Python process that does not look into the working directory."""
    environment = dict(os.environ)
    environment[_SAFE] = "1"
    if _PATH in environment:
        # an empty entry, as a stray colon leaves it, stands for the working directory
        environment[_PATH] = os.pathsep.join(filter(None, environment[_PATH].split(os.pathsep)))
    return environment


def leave_working_directory() -> None:
    """Take the working directory off the path of this process and of all that it starts; for our own commands.

    An entry of PYTHONPATH that happens to be the working directory stays: somebody asked for it.
    """
    os.environ.update(safe_environment())
    if not sys.flags.safe_path and sys.path and _is_here(sys.path[0]):
        del sys.path[0]
    sys.path[:] = filter(None, sys.path)


@contextmanager
def safe_children() -> Generator[None, None, None]:
    """Inside the block, processes that `multiprocessing` starts look into the working directory last.

    For what is started from a program of the user's, whose own environment and path are as before when the block ends.
    """
    environment, path = {name: os.environ.get(name) for name in (_SAFE, _PATH)}, list(sys.path)
    os.environ.update(safe_environment())
    # spawn hands the path of this process on
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
