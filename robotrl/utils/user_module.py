"""Imports modules named by the user: from the Python path, else from the working directory.

Nothing else is imported from the working directory: it is last on the path, and only during the import of such a module
or a call of its factory. Processes started with `PYTHONSAFEPATH` find the module in the same way.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from robotrl.errors import ConfigError, nearest, out_of_range


@contextmanager
def beside_the_user() -> Generator[None]:
    """Let imports search the working directory, after all other places."""
    here = os.getcwd()
    # the module may have appeared since Python last searched
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
        asked: field and value that name it, as the beginning of each error: "wrapper is 'own:Frames'".

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
    except (Exception, SystemExit) as error:  # third-party code
        message = " ".join(str(error).split()) or "no message"
        raise ConfigError(f"{asked}: importing {name} raised {type(error).__name__}: {message}") from error


def user_callable(name: str, field: str, expected: str = "MODULE:CALLABLE") -> Any:
    """Import a callable that the user named "MODULE:CALLABLE".

    Args:
        name: the text.
        field: the field or option that holds it, for errors.
        expected: the expected form of its value, for errors.

    Raises:
        ConfigError: another form, a module that cannot be imported, or a module without such a callable.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise out_of_range(field, name, expected)
    asked = f"{field} is {name!r}"
    module = user_module(module_name, asked)
    found: Any = getattr(module, attribute, None)
    if found is None:
        close = nearest(attribute, [known for known in vars(module) if not known.startswith("_")])
        hint = f"did you mean '{module_name}:{close}'? " if close else ""
        raise ConfigError(f"{asked}: {module_name} has no {attribute!r}: {hint}expected {expected}")
    if not callable(found):
        raise ConfigError(f"{asked}, of type {type(found).__name__}: expected a callable")
    return found


def _likely(name: str) -> str:
    """Suggestion for a module name that looks like a path or file name."""
    stem = name.removesuffix(".py").strip("./").replace("/", ".")
    fits = stem and all(part.isidentifier() for part in stem.split("."))
    return f"a dotted name, {stem!r}" if fits else "a dotted name"


def _nearby(name: str) -> str:
    """A file of the working directory whose name differs only in upper and lower case."""
    first = name.split(".")[0]
    alike = [path.stem for path in Path.cwd().glob("*.py") if path.stem.lower() == first.lower()]
    return f": did you mean {alike[0]!r}?" if alike and alike[0] != first else ""
