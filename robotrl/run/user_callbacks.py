"""Callbacks named on the command line: "module:Class" of an installed package or of a file in the present folder."""

from __future__ import annotations

from typing import Any

from robotrl.errors import ConfigError, nearest
from robotrl.run.callbacks import Callback
from robotrl.utils.user_module import user_module


def load_callback(target: str) -> Callback:
    """Import a callback's class and make it, without arguments.

    Args:
        target: "module:Class".

    Raises:
        ConfigError: there is no such module or class, it is no `Callback`, or it cannot be made.
    """
    field = f"--callback {target}"
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"--callback is {target!r}: expected MODULE:CLASS")
    found: Any = user_module(module, field)
    known = [key for key, value in vars(found).items() if _is_callback(value)]
    if name not in vars(found):
        close = nearest(name, known)
        hint = f"did you mean {module}:{close}? " if close else ""
        raise ConfigError(f"{field}: {module} has no {name}: {hint}its callbacks: {', '.join(known) or 'none'}")
    cls = vars(found)[name]
    if not _is_callback(cls):
        raise ConfigError(
            f"{field}: {name} does not derive from robotrl.run.callbacks.Callback: expected one that does"
        )
    try:
        return cls()
    except TypeError as error:
        raise ConfigError(f"{field}: {name} cannot be made without arguments ({error})") from error


def _is_callback(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Callback) and value is not Callback
