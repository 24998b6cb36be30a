"""Options of a sim, read from the source of its config class: importing it would take seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from robotrl.registry import SIMS
from robotrl.utils.source_texts import module_tree


class SimField(NamedTuple):
    """An option of a sim."""

    flag: str
    """Its flag, "--sim.limit-s"."""
    takes_value: bool
    values: tuple[str, ...]
    """Values that can be listed; empty if any other is allowed."""


class _Found(NamedTuple):
    """A definition and the module that it stands in."""

    module: str
    node: ast.stmt


def sim_fields(name: str) -> list[SimField]:
    """Options of the sim named `name`; none for an unknown one, or one whose options are not a class of its module."""
    family = next((row for start, row in SIMS.families.items() if name.startswith(start) and name != start), None)
    target = SIMS.rows().get(name, "" if family is None else family.target)
    module, _, attribute = target.partition(":")
    found = _definition(module, attribute)
    # a family is a function from an id to a config
    if found is not None and isinstance(found.node, ast.FunctionDef) and isinstance(found.node.returns, ast.Name):
        found = _definition(found.module, found.node.returns.id)
    return [] if found is None else list(_of_class(found, "--sim."))


def _of_class(found: _Found, prefix: str) -> Iterator[SimField]:
    node = found.node
    if not isinstance(node, ast.ClassDef):
        return
    for base in node.bases:
        parent = _definition(found.module, base.id) if isinstance(base, ast.Name) else None
        if parent is not None:
            yield from _of_class(parent, prefix)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield from _of_field(found.module, line.target.id, line, prefix)


def _of_field(module: str, name: str, line: ast.AnnAssign, prefix: str) -> Iterator[SimField]:
    if any(word in ast.unparse(line.annotation) for word in ("ClassVar", "Fixed")):
        return
    kind, flag = _plain(line.annotation), f"{prefix}{name}".replace("_", "-")
    if isinstance(kind, ast.Name) and kind.id == "bool":
        on = isinstance(line.value, ast.Constant) and line.value.value is True
        yield SimField(f"{prefix}no-{name}".replace("_", "-") if on else flag, False, ())
        return
    named = _definition(module, kind.id) if isinstance(kind, ast.Name) else None
    if named is not None and isinstance(named.node, ast.ClassDef):
        yield from _of_class(named, f"{flag}.")
        return
    if named is not None and isinstance(named.node, ast.Assign):
        kind = named.node.value
    yield SimField(flag, True, _listed(kind))


def _plain(annotation: ast.expr) -> ast.expr:
    """A type without None and without annotations."""
    if isinstance(annotation, ast.BinOp):
        return _plain(annotation.left)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        inner = annotation.slice
        return _plain(inner.elts[0]) if isinstance(inner, ast.Tuple) else annotation
    return annotation


def _listed(kind: ast.expr) -> tuple[str, ...]:
    """Values of a Literal."""
    if not isinstance(kind, ast.Subscript) or ast.unparse(kind.value) != "Literal":
        return ()
    values = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
    return tuple(str(value.value) for value in values if isinstance(value, ast.Constant))


def _definition(module: str, name: str) -> _Found | None:
    """Where a name that a module uses is defined, through imports of robotrl and of the module's package."""
    tree = module_tree(module)
    for node in [] if tree is None else tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return _Found(module, node)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return _Found(module, node)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            alias = next((alias for alias in node.names if (alias.asname or alias.name) == name), None)
            if alias is not None and node.module.split(".")[0] == module.split(".")[0]:
                return _definition(node.module, alias.name)
    return None
