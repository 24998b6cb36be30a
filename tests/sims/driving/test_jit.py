"""The folder of compiled kernels: every module that decides what they do counts, and the user may say where it lies."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from robotrl.sims.driving.backends import jit

PACKAGE = "robotrl.sims"
FOLDER = jit.FOLDER
MODULES = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for world in ("driving", "bev", "carla", "warp")
    for path in (FOLDER / world).rglob("*.py")
}


def source(module: str, folder: Path = FOLDER) -> Path:
    return folder.joinpath(*module.split(".")).with_suffix(".py")


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module).read_text())


@functools.cache
def imports(module: str) -> dict[str, tuple[str, str]]:
    """Names of a module that come from others of the package: (module, name there), "" for the module itself."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            folder = (node.module or "").removeprefix(PACKAGE).lstrip(".")
            for alias in node.names:
                whole = f"{folder}.{alias.name}".lstrip(".")
                found[alias.asname or alias.name] = (whole, "") if whole in MODULES else (folder, alias.name)
    return found


def kernels(module: str) -> list[ast.FunctionDef]:
    return [
        node
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "kernel" for mark in node.decorator_list)
    ]


@functools.cache
def assigned(module: str) -> dict[str, ast.expr]:
    """What each global name of a module is set to."""
    found: dict[str, ast.expr] = {}
    for node in tree(module).body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        found[name.id] = node.value
    return found


def sources_of(module: str, code: ast.AST, seen: set[tuple[str, str]]) -> set[str]:
    """Modules whose contents decide what some code of a module does, through its global names."""
    out: set[str] = set()
    names, values = imports(module), assigned(module)
    for node in ast.walk(code):
        name, attribute = "", ""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name, attribute = node.value.id, node.attr
        elif isinstance(node, ast.Name):
            name = node.id
        if not name or (module, name + attribute) in seen:
            continue
        seen.add((module, name + attribute))
        if name in names:
            source, there = names[name]
            out.add(source)
            there = there or attribute
            if there in assigned(source):
                out |= sources_of(source, assigned(source)[there], seen)
        elif name in values:
            out |= sources_of(module, values[name], seen)
    return out


def test_every_module_that_kernels_are_made_of_is_in_the_digest() -> None:
    with_kernels = {module for module in MODULES if kernels(module)}
    known = {"driving.traffic.ego", "bev.traffic.step", "driving.judge", "driving.render.raster", "bev.kernels"}
    assert known <= with_kernels
    needed = set(with_kernels)
    for module in with_kernels:
        for function in kernels(module):
            needed |= sources_of(module, function, set())
    assert "driving.tables" in needed  # it has no kernel, only constants
    assert needed <= set(jit.SOURCES), f"not in jit.SOURCES: {sorted(needed - set(jit.SOURCES))}"
    assert set(jit.SOURCES) <= MODULES
    assert len(set(jit.SOURCES)) == len(jit.SOURCES)
    assert "driving.backends.jit" in jit.SOURCES  # options of the compiler


def test_compiled_kernels_lie_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = jit.cache_folder.__wrapped__
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    found = folder()
    assert found.is_dir() and found.parent == tmp_path / "own" / "robotrl"
    assert folder() == found
    monkeypatch.delenv("ROBOTRL_CACHE")
    assert folder() == tmp_path / "xdg" / "robotrl" / found.name
    # a place that cannot be written is no reason to fail
    monkeypatch.setenv("ROBOTRL_CACHE", "/dev/null/nowhere")
    elsewhere = folder()
    assert elsewhere.is_dir() and elsewhere.name.startswith("robotrl-bev-")
    elsewhere.rmdir()


@pytest.mark.parametrize("changed", ["driving.geometry", "driving.tables"])
def test_the_folder_is_another_when_a_source_changes(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "cache"))
    before = jit.cache_folder.__wrapped__().name
    copies = tmp_path / "bev"
    copies.mkdir()
    for name in jit.SOURCES:
        source(name, copies).parent.mkdir(parents=True, exist_ok=True)
        source(name, copies).write_bytes(source(name).read_bytes())
    monkeypatch.setattr(jit, "FOLDER", copies)
    assert jit.cache_folder.__wrapped__().name == before
    with source(changed, copies).open("a") as file:
        file.write("# \n")
    assert jit.cache_folder.__wrapped__().name != before
