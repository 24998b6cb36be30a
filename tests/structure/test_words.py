"""Identifiers use the words of robot learning: words of our own that were replaced do not come back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.kits.paths_kit import ROOT

FOLDERS = ("robotrl", "sims", "policies", "deploy", "configs", "benchmarks", "tools")
REPLACED = {
    "asking": "query",
    "climb": "actor_loss",
    "clumsiness": "episode_noise",
    "Doubt": "DataIssue",
    "doubts": "issues",
    "heeded": "state_mask",
    "hidden_from": "attention mask",
    "is_heard": "has_hooks",
    "judged": "q_pi, verdict, has_success",
    "last_of": "last_index",
    "looking": "image_features",
    "meant": "grounding targets",
    "placed": "on_device",
    "raw_action": "normalized_action",
    "sayer": "graphs",
    "sight": "image features",
    "speech": "decoding_cfg",
    "taught": "teacher_logits, flow_chunk",
    "told": "predictions, caption, instruction: what it is",
    "turn_to": "rotary_tables",
    "Wish": "ViewRequest",
    "wish": "request",
}
"""Replaced identifiers, and the field's word for each."""


def identifiers(path: Path) -> set[str]:
    """Names that a module defines or uses, without underscores around them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.arg():
                found.add(node.arg)
            case ast.Name():
                found.add(node.id)
            case ast.Attribute():
                found.add(node.attr)
            case _:
                pass
    return {name.strip("_") for name in found}


@pytest.mark.parametrize("folder", FOLDERS)
def test_replaced_words_do_not_come_back(folder):
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert modules, folder
    back = {
        f"{path.relative_to(ROOT)}: {name} is now {REPLACED[name]}"
        for path in modules
        for name in identifiers(path) & set(REPLACED)
    }
    assert not back, "\n".join(sorted(back))


def test_replaced_words_are_found(tmp_path):
    path = tmp_path / "some.py"
    path.write_text("class Wish:\n    def f(self, told):\n        self._sight = told\n")
    assert identifiers(path) & set(REPLACED) == {"Wish", "told", "sight"}
