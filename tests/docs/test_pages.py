"""The pages as a reader meets them: links lead somewhere, names and flags exist, the front page stays short."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from robotrl import config as configs
from robotrl import registry
from robotrl.cli.commands.sim_flags import sim_named
from robotrl.cli.commands.train import parse_config, split_names
from robotrl.cli.main import COMMANDS, main
from robotrl.errors import ConfigError
from robotrl.registry import PRESETS
from tests.kits.paths_kit import ROOT

DOCS = ROOT / "docs"
MANUAL = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
"""Pages whose code is looked at."""
TEXTS = [*MANUAL, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "llms.txt"]
"""Pages whose links are followed."""
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
PACKAGES = ("robotrl", "benchmarks")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for _, language, code in FENCE.findall(page.read_text()) if language in languages]


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    found: dict[str, int] = {}
    names: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return names


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Every internal link: the file and the anchor, which may be empty."""
    for target, anchor in LINK.findall(prose(page)):
        yield ((page.parent / target).resolve() if target else page), anchor


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{name_of(target)} has no heading #{anchor}"
    for picture in re.findall(r'<img[^>]*src="([^":]+)"', prose(page)):
        assert (page.parent / picture).is_file(), picture


def test_the_front_page_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1000
    assert "make test" in text, "continuous integration takes the command from here"


def test_headline_numbers_stand_on_the_pages_that_they_link_to() -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^- \*\*([\d.,]+)[^*]*\*\*.*?\]\((docs/results/[\w-]+\.md)\)", text, re.MULTILINE | re.DOTALL)
    assert len(rows) == 5
    for number, page in rows:
        assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d.,]\d)", (ROOT / page).read_text()), (number, page)


def test_every_page_is_reached_from_the_index() -> None:
    todo, seen = [DOCS / "README.md"], set[Path]()
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.is_relative_to(DOCS):
            continue
        seen.add(page)
        todo += [target for target, _ in links(page)]
    assert sorted(map(name_of, {*DOCS.rglob("*.md")} - seen)) == []


def test_every_page_of_results_is_in_their_index() -> None:
    linked = {target for target, _ in links(DOCS / "results" / "README.md")}
    assert {*(DOCS / "results").glob("*.md")} - linked == {DOCS / "results" / "README.md"}


# names in Python


def member(owner: Any, name: str) -> Any:
    """An attribute, a submodule or a dataclass's field; raises AttributeError where there is none."""
    if isinstance(owner, ModuleType) and not hasattr(owner, name):
        try:
            return importlib.import_module(f"{owner.__name__}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"{owner.__name__} has no {name}") from error
    if isinstance(owner, type) and dataclasses.is_dataclass(owner) and name in owner.__dataclass_fields__:
        return None
    return getattr(owner, name)


def resolve(dotted: str) -> None:
    """Follow a dotted name as far as modules and classes go; behind them it is a value, which nobody looks into."""
    first, *rest = dotted.split(".")
    found: Any = importlib.import_module(first)
    for name in rest:
        if not isinstance(found, (ModuleType, type)):
            return
        found = member(found, name)


def dotted_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def names_in(tree: ast.AST) -> Iterator[str]:
    """Dotted names of our packages that a program uses, by their full names."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    yield alias.name
                    top = alias.name.split(".")[0]
                    known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        name = dotted_name(node) if isinstance(node, ast.Attribute) else None
        if name is not None and name.split(".")[0] in known:
            first, _, rest = name.partition(".")
            yield f"{known[first]}.{rest}"


@pytest.mark.parametrize("page", [page for page in MANUAL if blocks(page, "python")], ids=name_of)
def test_python_of_the_page_parses_and_its_names_exist(page: Path) -> None:
    for code in blocks(page, "python"):
        for name in names_in(ast.parse(code)):
            resolve(name)


def test_names_in_the_text_exist() -> None:
    groups = {table.group for table in vars(registry).values() if isinstance(table, registry.Table)}
    for page in [*MANUAL, ROOT / "llms.txt"]:
        for name in re.findall(r"`((?:robotrl|benchmarks)(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`", prose(page)):
            if name in groups:
                continue
            try:
                resolve(name)
            except (AttributeError, ModuleNotFoundError) as error:
                raise AssertionError(f"{name_of(page)} names `{name}`: {error}") from error


def test_a_name_that_is_not_there_is_found() -> None:
    assert list(names_in(ast.parse("import robotrl as r\nr.evalute(1)"))) == ["robotrl", "robotrl.evalute"]
    with pytest.raises(AttributeError):
        resolve("robotrl.evalute")
    with pytest.raises(AttributeError):
        resolve("robotrl.config.TrainCfg.iterashuns")
    resolve("robotrl.config.TrainCfg.seed")


# commands


def commands(page: Path) -> Iterator[list[str]]:
    """The words behind each `robotrl` in the shell blocks of a page."""
    for code in blocks(page, "sh", "bash", "console", "text", ""):
        for line in code.replace("\\\n", " ").splitlines():
            if not re.match(r"^(\$ |[A-Z_]+=\S+ |torchrun .*)?robotrl [a-z]", line):
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            words = words[words.index("robotrl") + 1 :]
            ends = [i for i, word in enumerate(words) if word in ("|", "&&", ";", ">", "&", "...")]
            yield words[: ends[0]] if ends and words[ends[0]] != "..." else words


def trained(page: Path) -> Iterator[list[str]]:
    """Names and fields of each training that a page shows."""
    for command, *words in commands(page):
        known = words and (words[0] in PRESETS.names() or sim_named(words) in registry.SIMS.rows())
        if command == "train" and known and "--help" not in words:
            yield words


@cache
def help_of(*words: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        whole = "--help-all" if words[0] == "train" and len(words) > 1 else "--help"
        assert main([*words, whole]) == 0
    return said.getvalue()


def plain(flag: str) -> str:
    return flag.split("=")[0].replace("_", "-")


@cache
def flags_of(*words: str) -> set[str]:
    return {plain(flag) for flag in re.findall(r"(?<![\w-])--?[A-Za-z][\w.-]*", help_of(*words))}


def subject(words: list[str]) -> tuple[str, ...]:
    """The command whose help lists the flags that these words have."""
    if words[:2] == ["reward", "train"] and words[2:3] in (["clip"], ["preferences"]):
        return "reward", "train", words[2]
    if words[0] == "reward" and len(words) > 1 and not words[1].startswith("-"):
        return words[0], words[1], *chosen("--reward", words)
    if words[0] in ("dataset", "driving-log", "new", "traffic") and len(words) > 1:
        return words[0], words[1]
    if words[0] != "train":
        return (words[0],)
    preset = words[1:2] if len(words) > 1 and not words[1].startswith("-") else []
    assert not preset or preset[0] in PRESETS.names(), f"{preset[0]} is no preset"
    parts = [part for flag in ("--algo", "--policy", "--reward") for part in chosen(flag, words)]
    sim = ["--sim", "mujoco/reach"] if "--algo" in parts and not preset else []
    return "train", *preset, *sim, *parts


def chosen(flag: str, words: list[str]) -> list[str]:
    """A flag that chooses parts, and the names behind it: they decide which settings there are."""
    start = words.index(flag) if flag in words else len(words)
    end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
    return words[start:end]


def sim_flags(words: list[str]) -> set[str]:
    """Flags of the sim's options: of the sim that the words name, else of any."""
    name = sim_named(words[1:])
    family = next(
        (name for start in ("remote/", "isaac/", "carla/") if name and name.startswith(start)), "gym/CartPole-v1"
    )
    named = [name] if name in registry.SIMS.rows() else [family] if name else []
    rows = [registry.sim_options(row) for row in named or [*registry.SIMS.names(), "gym/CartPole-v1"]]
    plain_fields = {f"--sim.{field}".replace("_", "-") for row in rows for field in vars(row)}
    off = {f"--sim.no-{field}".replace("_", "-") for row in rows for field, value in vars(row).items() if value is True}
    nested = {
        f"--sim.{field}.{inner}".replace("_", "-")
        for row in rows
        for field, value in vars(row).items()
        if dataclasses.is_dataclass(value)
        for inner in vars(value)
    }
    return plain_fields | off | nested


@pytest.fixture(autouse=True)
def wide_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """No flag of a help text is broken over two lines."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.mark.parametrize("page", [page for page in MANUAL if list(commands(page))], ids=name_of)
def test_commands_and_flags_of_the_page_exist(page: Path) -> None:
    for words in commands(page):
        assert words[0] in COMMANDS, words
        known = flags_of(*subject(words)) | {"--help", "--help-all"}
        for word in words[1:]:
            if re.match(r"--[A-Za-z]", word):
                found = known | sim_flags(words) if word.startswith("--sim.") else known
                assert plain(word) in found, f"robotrl {shlex.join(words)}: {word}"


@pytest.mark.parametrize("page", [page for page in MANUAL if any(trained(page))], ids=name_of)
def test_what_the_page_trains_is_a_config(page: Path) -> None:
    for words in trained(page):
        try:
            cfg, _ = parse_config(*split_names(words))
        except ConfigError as error:
            # pages train on environments of packages that this project does not install
            assert "which is not installed" in str(error)
            continue
        configs.check(cfg)


def test_a_flag_that_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nrobotrl eval run --episodes 4 --num_envs 2 --epsiodes 3  # some\n```\n")
    ((command, *words),) = commands(page)
    known = flags_of(command)
    assert [word for word in words if word.startswith("--") and plain(word) not in known] == ["--epsiodes"]
