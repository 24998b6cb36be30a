"""Modules that a user names, found as Python would find them: on the path, else beside the user.

Nothing else of the working directory is imported: it stands last on the path, and only while such a module is imported
or what it makes is made. Processes that are started with `PYTHONSAFEPATH` find the module alike.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from robotrl.errors import ConfigError


@contextmanager
def beside_the_user() -> Generator[None]:
    """Let imports look in the working directory, after all other places."""
    here = os.getcwd()
    # the module may have appeared since Python last looked
    importlib.invalidate_caches()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def user_module(name: str, asked: str) -> ModuleType:
    """Import a module that the user named.

    Args:
        name: dotted name of the module.
        asked: the field and value that name it, which begin each error: "wrapper is 'own:Frames'".

    Raises:
        ConfigError: there is no such module, or importing it failed.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{asked}: {name!r} is no name of a module: expected {_likely(name)}")
    try:
        with beside_the_user():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{asked} needs the module {error.name!r}, which is not installed and not in {os.getcwd()}"
                f"{_nearby(name)}"
            ) from error
        raise ConfigError(f"{asked}: {name} needs the module {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:  # foreign code
        told = " ".join(str(error).split()) or "no message"
        raise ConfigError(f"{asked}: importing {name} raised {type(error).__name__}: {told}") from error


def _likely(name: str) -> str:
    """What was probably meant by a path or a file's name."""
    stem = name.removesuffix(".py").strip("./").replace("/", ".")
    fits = stem and all(part.isidentifier() for part in stem.split("."))
    return f"a dotted name, {stem!r}" if fits else "a dotted name"


def _nearby(name: str) -> str:
    """A file of the working directory that is called alike except for upper and lower case."""
    first = name.split(".")[0]
    alike = [path.stem for path in Path.cwd().glob("*.py") if path.stem.lower() == first.lower()]
    return f": did you mean {alike[0]!r}?" if alike and alike[0] != first else ""
