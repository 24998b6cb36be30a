"""Docstrings read from source files, so that nothing slow is imported: of modules, definitions and fields."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def module_tree(name: str) -> ast.Module | None:
    """Syntax tree of a module that is not imported for it, its packages apart; None where there is no source."""
    try:
        spec = importlib.util.find_spec(name) if name else None
        return None if spec is None or spec.origin is None else ast.parse(Path(spec.origin).read_bytes())
    except (ImportError, OSError, SyntaxError, ValueError):
        return None


def texts_below(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Name of each assignment to the string below it, in one line; "" where there is none."""
    found: dict[str, str] = {}
    for here, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        target = here.targets[0] if isinstance(here, ast.Assign) else None
        target = here.target if isinstance(here, ast.AnnAssign) else target
        if isinstance(target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            found[target.id] = " ".join(str(text).split())
    return found


def class_texts(cls: type) -> dict[str, str]:
    """Texts below the fields of one class, without its bases; none for a class that was made at run time."""
    try:
        tree = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    return texts_below(tree.body if isinstance(tree, ast.ClassDef) else [])


def field_texts(cls: type) -> dict[str, str]:
    """Texts below the fields of a dataclass, those of its bases included; fields without a text are left out."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            # a field that is set anew without a text keeps its base's
            found |= {name: text for name, text in class_texts(base).items() if text}
    return found
