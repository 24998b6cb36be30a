"""Fields of a sweep file as arguments of `robotrl train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from robotrl.config import TrainCfg, options_of
from robotrl.errors import ConfigError
from robotrl.sweeps.file import OF_SESSIONS

NAMES = ("sim", "algo", "policy", "profile", "reward")
"""Fields that choose the parts of a config, beside `preset`."""
MakeConfig = Callable[[Sequence[str]], TrainCfg[Any, Any]]
"""Makes the config of arguments of `robotrl train`."""


def train_arguments(fields: Mapping[str, Any], make: MakeConfig) -> tuple[str, ...]:
    """Arguments of `robotrl train` for a new run.

    Args:
        fields: value of each field by its dotted name ("preset", "sim", "algo.lr"), without options of sessions.
        make: makes configs, to know which switches are on.

    Raises:
        ConfigError: no config has the named parts.
    """
    words = [str(fields["preset"])] if fields.get("preset") is not None else []
    for name in NAMES:
        if fields.get(name) is not None:
            words += _flag(name, fields[name])
    base: TrainCfg[Any, Any] | None = None
    for field, value in fields.items():
        if field in ("preset", *NAMES, *OF_SESSIONS):
            continue
        if isinstance(value, bool):
            base = make(words) if base is None else base
            words_of_field = _switch(field, value, _current(base, field))
        else:
            words_of_field = _flag(field, value)
        words = [*words, *words_of_field]
    return tuple(words)


def session_arguments(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments of `robotrl train` for a new run and for a resumed one."""
    return tuple(word for name in OF_SESSIONS if name in fields for word in _flag(name, fields[name]))


def _flag(field: str, value: Any) -> list[str]:
    name = f"--{field.replace('_', '-')}"
    words = [_word(item) for item in value] if isinstance(value, list | tuple) else [_word(value)]  # pyright: ignore[reportUnknownVariableType]
    if len(words) == 1 and words[0].startswith("-"):  # a negative number is no flag
        return [f"{name}={words[0]}"]
    return [name, *words]


def _word(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _switch(field: str, value: bool, current: Any) -> list[str]:
    """A field that is on or off: its flag turns it."""
    if current is value:
        return []
    owner, dot, name = field.replace("_", "-").rpartition(".")
    if isinstance(current, bool):
        return [f"--{owner}{dot}{name}" if value else f"--{owner}{dot}no-{name}"]
    return [f"--{owner}{dot}{name}", str(value)]


def _current(config: TrainCfg[Any, Any], field: str) -> Any:
    """Value of a config's field; None if there is no such field, which the parser then refuses by name."""
    first, *rest = field.split(".")
    part: Any = config
    if first == "reward" and len(rest) > 1:
        sources = {one.name.replace("-", "_"): one.cfg for one in config.rewards}
        part, rest = sources.get(rest[0]), rest[1:]
    elif first == "sim" and rest and rest[0] not in vars(config.sim):
        part = options_of(config.sim)
    else:
        rest = [first, *rest]
    for name in rest:
        fields: Mapping[str, Any] = vars(part) if hasattr(part, "__dict__") else {}
        part = fields.get(name)
    return part


def of_training(config: object) -> TrainCfg[Any, Any]:
    """The config, if it is one of `robotrl.training.train`.

    Raises:
        ConfigError: it is of another package's own type.
    """
    if not isinstance(config, TrainCfg):
        raise ConfigError(f"the preset has a {type(config).__name__}: expected a robotrl.config.TrainCfg")
    return config  # pyright: ignore[reportUnknownVariableType]
