"""Settings dataclasses to and from JSON, with type checks."""

from __future__ import annotations

import inspect
import json
import types
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from robotrl.errors import ConfigError, nearest, short

LARGEST_INT = 2**63 - 1
"""Largest integer that arrays and other programs can hold."""


def settings_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for a frozen dataclass from JSON values: lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def settings_of(cls: type[Any], data: Mapping[str, Any]) -> Any:
    """A frozen dataclass from JSON values; those of a field that is a dataclass become one.

    Raises:
        TypeError: a setting is missing or unknown.
    """
    hints = hints_of(cls)
    given = settings_from_json(data)
    nested = {name: settings_of(hints[name], value) for name, value in given.items() if _is_nested(hints, name, value)}
    return cls(**given | nested)


def _is_nested(hints: Mapping[str, Any], name: str, value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(hints.get(name), type) and is_dataclass(hints[name])


FLAT = "flat"
"""Metadata key of a nested dataclass whose fields are named as if they were its owner's."""


def check_settings(settings: Any, where: str = "") -> None:
    """Check that the fields of a dataclass, nested ones included, have values of their declared types.

    Types that JSON cannot represent are not checked.

    Args:
        settings: an instance.
        where: prefix of field names in errors, e.g. "algo.".

    Raises:
        ConfigError: a field holds another type, or an integer that is too large.
    """
    hints = hints_of(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            check_settings(value, where if field.metadata.get(FLAT) else f"{where}{field.name}.")
        else:
            check_type(f"{where}{field.name}", value, hints[field.name])


def hints_of(cls: type) -> dict[str, Any]:
    """Types of a dataclass's fields; `Any` for one that cannot be resolved at run time."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        scope = vars(inspect.getmodule(base) or object)
        for name, hint in inspect.get_annotations(base).items():
            one = type(base.__name__, (), {"__annotations__": {name: hint}})
            try:
                found |= get_type_hints(one, dict(scope))
            except NameError:  # imported for the type checker only
                found[name] = Any
    return found


def check_type(field: str, value: Any, hint: Any) -> None:
    """Check that a value has the given type, as far as JSON can represent it; lists count as tuples.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    if not _fits(hint, value):
        choices = [option for option in get_args(hint) if isinstance(option, str)]
        close = nearest(value, choices) if isinstance(value, str) else None
        new = renamed_value(field, value) if isinstance(value, str) else None
        advice = f"it is now {new!r}, " if new else f"did you mean {close!r}? " if close else ""
        raise ConfigError(f"{field} is {short(repr(value))}: {advice}expected {_named(hint)}")


def _fits(hint: Any, value: Any) -> bool:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(option, value) for option in inside)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in inside)
    if origin in (tuple, list, abc.Sequence):
        if not isinstance(value, tuple | list):
            return False
        items: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
        several = origin is not tuple or inside[1:] == (...,)
        kinds = inside[:1] * len(items) if several else inside
        return len(kinds) == len(items) and all(map(_fits, kinds, items))
    if origin in (dict, abc.Mapping):
        held: Any = value
        return isinstance(value, Mapping) and all(_fits(inside[1], item) for item in held.values())
    if hint is float:
        return isinstance(value, float) or _is_whole(value)
    if hint is int:
        return _is_whole(value)
    if hint in (str, bool, type(None)):
        return type(value) is hint
    return hint is Any or not (is_dataclass(hint) and value is None)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_INT


def _named(hint: Any) -> str:
    words = {int: f"a whole number up to {LARGEST_INT}", float: "a number", str: "text", bool: "true or false"}
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_named(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) in (tuple, list, abc.Sequence):
        kinds = dict.fromkeys(_named(kind) for kind in get_args(hint) if kind is not ...)
        return f"a list of {' and '.join(kinds)}"
    if get_origin(hint) in (dict, abc.Mapping):
        return "values by name"
    return words.get(hint, "nothing" if hint is type(None) else str(hint))


REVISION = 7
"""Revision of the stored config format. Revision 1 was not written to the file; under it, actions of `gym/` sims with
categorical actions were scores. Under 2 some fields had other names (`RENAMED_FIELDS`). Under 3 options of sims were
texts "name=value", and the sim named a success classifier as its reward. Under 4 `RECOUNTED_FIELDS` counted
iterations. Under 5 some choices had other names (`RENAMED_VALUES`), and under 6 the fields of `RENAMED_LATER`."""
RENAMED_FIELDS = {
    "algo": {
        "grad_norm": "max_grad_norm",
        "lam": "gae_lambda",
        "largest_weight": "max_weight",
        "members": "num_critics",
        "normalise_advantage": "normalize_advantage",
        "normalise_obs": "normalize_obs",
        "normalise_reward": "normalize_reward",
        "steps_per_env": "num_steps",
        "update_ratio": "utd_ratio",
    },
    "": {"peers_timeout_s": "dist_timeout_s", "shard": "fsdp"},
}
"""Config section ("" for the top level) to former field names and their present names."""
RENAMED_LATER = {"algo": {"reading": "grounding_coef"}, "": {}}
"""The same for fields that revision 7 renamed."""
RECOUNTED_FIELDS = {"algo": {"critic_warmup": "critic_warmup_env_steps"}}
"""The same for fields that counted iterations, which have env steps in proportion to the number of envs."""
RENAMED_VALUES = {
    "algo": {"progress": {"sight": "embedding"}},
    "": {"cache": {"sight": "image-features"}},
}
"""Config section to fields, and for each its former choices and their present names."""


def renamed_field(field: str) -> str | None:
    """Present name of a renamed config field ("algo.lam" gives "algo.gae_lambda"); None for all others."""
    section, _, name = field.rpartition(".")
    tables = (RENAMED_FIELDS, RENAMED_LATER, RECOUNTED_FIELDS)
    new = next((table[section][name] for table in tables if name in table.get(section, {})), None)
    return None if new is None else f"{section}.{new}".lstrip(".")


def counted_iterations(field: str) -> bool:
    """True if a renamed config field counted iterations, and counts env steps under its present name."""
    section, _, name = field.rpartition(".")
    return name in RECOUNTED_FIELDS.get(section, {})


def renamed_value(field: str, value: str) -> str | None:
    """Present name of a renamed choice of a config field ("cache", "sight"); None for all others."""
    section, _, name = field.rpartition(".")
    return RENAMED_VALUES.get(section, {}).get(name, {}).get(value)


def migrated(data: Mapping[str, Any]) -> dict[str, Any]:
    """Migrate a stored config to the present revision; other JSON is returned unchanged."""
    revision: Any = data.get("revision", 1)
    if not isinstance(revision, int) or not isinstance(data.get("sim"), Mapping):
        return dict(data)
    out = dict(data)
    if revision < 2:
        out = _scores_named(out)
    # without the classes of its parts it is a config in name alone
    if revision < 3 and "types" in data:
        out = _fields_renamed(out, RENAMED_FIELDS)
    if revision < 4:
        out = _options_by_name(out)
        out = _rewards_listed(out) if "types" in data else out
    if revision < 5 and "types" in data:
        out = _counted_in_env_steps(out)
    if revision < 6 and "types" in data:
        out = _values_renamed(out)
    if revision < 7 and "types" in data:
        out = _fields_renamed(out, RENAMED_LATER)
    return {**out, "revision": REVISION} if "types" in data else out


def _options_by_name(data: dict[str, Any]) -> dict[str, Any]:
    sim: Any = data["sim"]
    options: Any = sim.get("options")
    if isinstance(options, str | Mapping) or not isinstance(options, Sequence):
        return data
    return {**data, "sim": {**sim, "options": name_values(options, "sim.options")}}


def name_values(texts: Sequence[str], field: str) -> dict[str, Any]:
    """Values by name of "name=value" texts; a value that is JSON is read as such, any other is text.

    Args:
        texts: the texts.
        field: name of their config field, for errors.

    Raises:
        ConfigError: a text without "=", or a name given twice.
    """
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in out:
            raise ConfigError(f'{field} holds {short(repr(text))}: expected "name=value", each name once')
        try:
            out[name] = json.loads(value)
        except (ValueError, RecursionError):  # not JSON, or JSON that cannot be used: numbers with thousands of digits
            out[name] = value
    return out


def _scores_named(data: dict[str, Any]) -> dict[str, Any]:
    sim: Any = data["sim"]
    options: Any = sim.get("options", ())
    if not str(sim.get("name")).startswith("gym/") or not isinstance(options, Sequence):
        return data
    if any(str(option).startswith("actions=") for option in options):
        return data
    return {**data, "sim": {**sim, "options": [*options, "actions=scores"]}}


def _fields_renamed(data: dict[str, Any], table: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    def renamed(part: Mapping[str, Any], section: str) -> dict[str, Any]:
        new = table[section]
        # beside its new name an old one stays, and is refused as unknown
        return {name if new.get(name) in part else new.get(name, name): value for name, value in part.items()}

    out = renamed(data, "")
    algo: Any = out.get("algo")
    return {**out, "algo": renamed(algo, "algo")} if isinstance(algo, Mapping) else out


def _values_renamed(data: dict[str, Any]) -> dict[str, Any]:
    def renamed(part: Mapping[str, Any], section: str) -> dict[str, Any]:
        new = RENAMED_VALUES[section]
        return {
            name: new.get(name, {}).get(value, value) if isinstance(value, str) else value
            for name, value in part.items()
        }

    algo: Any = data.get("algo")
    return renamed(data, "") | ({"algo": renamed(algo, "algo")} if isinstance(algo, Mapping) else {})


def _rewards_listed(data: dict[str, Any]) -> dict[str, Any]:
    """Move the sim's success classifier (`sim.reward`, `sim.reward_ends`) to the list of reward sources."""
    sim = dict(data["sim"])
    path, ends = sim.pop("reward", None), sim.pop("reward_ends", False)
    listed = [] if path is None else [{"name": "success", "weight": 1.0, "cfg": {"path": path, "ends": ends}}]
    return {**data, "sim": sim, "rewards": listed}


def _counted_in_env_steps(data: dict[str, Any]) -> dict[str, Any]:
    """Write numbers of iterations as the env steps that they took in one process."""
    algo, envs = data.get("algo"), data["sim"].get("num_envs")
    if not isinstance(algo, Mapping) or not isinstance(envs, int) or not isinstance(algo.get("num_steps"), int):
        return data
    given: Mapping[str, Any] = algo
    out: dict[str, Any] = {}
    for name, value in given.items():
        new = RECOUNTED_FIELDS["algo"].get(name)
        # beside its new name an old one stays, and is refused as unknown
        counted = new is not None and new not in given and isinstance(value, int)
        out |= {str(new): value * given["num_steps"] * envs} if counted else {name: value}
    return {**data, "algo": out}
