"""Help of a training: what its preset and its algorithm are, and the fields that people set most."""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from typing import Any

from robotrl.registry import ALGORITHMS
from robotrl.utils.source_texts import field_texts

MOST_SET = (
    "init_from",
    "dataset",
    "sim.num_envs",
    "algo.env_steps",
    "algo.updates",
    "algo.iterations",
    "algo.num_steps",
    "algo.minibatch",
    "algo.batch",
    "algo.lr",
    "algo.gamma",
    "policy.horizon",
    "policy.hidden",
    "evaluation.every",
    "evaluation.every_env_steps",
    "evaluation.episodes",
    "stop_at_success",
    "seed",
    "device",
)
"""Fields of the page, in its order; those that a config lacks are left out."""
PAGES = {"dsrl-na": "dsrl", "pretrain": "pretraining", "rl100-online": "rl100"}
"""Algorithms whose page has another name: it is `docs/algorithms/NAME.md`."""
WIDEST = 100
UNSET = re.compile(r"\(default: None\)")


def short_help(command: str, about: str, config: Any) -> str:
    """The page of `--help`.

    Args:
        command: the command, with the names that choose the config.
        about: docstring of the preset; "" for a composition of names.
        config: the config with its defaults.
    """
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    stated = [f"usage: {command} [--FIELD VALUE ...]"]
    stated += [textwrap.fill(" ".join(part.split()), width) for part in about.split("\n\n") if part.strip()]
    stated.append(textwrap.fill(_algorithm(config.algo), width))
    rows = [
        ("--run-dir DIR", "The run's directory. Default: a new one in runs/."),
        ("--seeds N", "As many runs, with seeds in a row."),
        ("--sim, --algo, --policy, --reward NAME", "Other parts; see robotrl list."),
    ]
    rows += [row for path in MOST_SET if (row := _row(config, path)) is not None]
    column = max(len(flag) for flag, _ in rows) + 4
    lines = [
        textwrap.fill(text, width, initial_indent=f"  {flag:<{column - 2}}", subsequent_indent=" " * column)
        for flag, text in rows
    ]
    stated.append("\n".join(lines))
    stated.append(textwrap.fill(f"All fields, those of the sim included: {command} --help-all", width))
    return "\n\n".join(stated)


def without_none(page: str) -> str:
    """A help text whose "(default: None)" says that nothing is set; the field's text says what None means."""
    return UNSET.sub("(default unset)", page)


def _algorithm(algo: Any) -> str:
    """One sentence on an algorithm, with its page."""
    from robotrl.cli.commands.list import describe

    target = f"{type(algo).__module__}:{type(algo).__qualname__}"
    name = next((name for name, row in ALGORITHMS.rows().items() if row == target), None)
    if name is None:
        return " ".join((type(algo).__doc__ or type(algo).__name__).split("\n\n")[0].split())
    page = PAGES.get(name, name)
    ours = target.startswith("robotrl.")
    return describe(target, by_module=True) + (f" See docs/algorithms/{page}.md." if ours else "")


def _row(config: Any, path: str) -> tuple[str, str] | None:
    """Flag and text of a field; None where the config does not have it, or another field takes its place."""
    owner = config
    *parts, name = path.split(".")
    for part in parts:
        owner = vars(owner)[part]
    if name not in {field.name for field in dataclasses.fields(owner)}:
        return None
    value, text = vars(owner)[name], field_texts(type(owner)).get(name, "")
    if path == "evaluation.every" and value is None and owner.every_env_steps is not None:
        return None
    if path == "evaluation.every_env_steps" and value is None:
        return None
    flag = f"--{path.replace('_', '-')}"
    first = re.split(r"[;.] ", f"{text} ")[0].rstrip(". ")
    return flag, f"{first}. Default: {in_effect(value, text)}."


def in_effect(value: Any, text: str) -> str:
    """A default as it takes effect: for None, what the field's text says that None does."""
    if value is None:
        meaning = re.search(r"\bNone:? ([^.]*)", text)
        return meaning[1] if meaning else "not set"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
