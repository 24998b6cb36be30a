"""Identifiers use the words of robot learning: words of our own that were replaced do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.kits.paths_kit import ROOT

FOLDERS = ("robotrl", "sims", "policies", "deploy", "configs", "benchmarks", "tools")
REPLACED = {
    "adapt_alike": "stand_in_adapters",
    "as_seen": "match_policy_columns",
    "asking": "query",
    "brought_up": "migrated",
    "check_room": "check_memory_fits",
    "climb": "actor_loss",
    "clumsiness": "episode_noise",
    "Doubt": "DataIssue",
    "doubts": "issues",
    "Footprint": "MemoryEstimate",
    "footprint": "estimate_memory",
    "Growing": "GrowingRollout",
    "HalfLinear": "Bf16Linear",
    "Handicap": "ExpertNoise",
    "heeded": "state_mask",
    "hidden_from": "attention mask",
    "in_full": "to_float32",
    "is_heard": "has_hooks",
    "judged": "q_pi, verdict, has_success",
    "last_of": "last_index",
    "Lexicon": "Vocabulary",
    "lexicon": "vocab",
    "look_again": "reevaluate_best",
    "looked_at": "present_digests",
    "looking": "image_features",
    "meant": "grounding targets",
    "odd_flags": "flag_issues",
    "placed": "on_device",
    "PlacedSim": "DeviceSim",
    "raw_action": "normalized_action",
    "ReaderNet": "PolicyFeatureRewardNet",
    "said_of": "tokens_to_store",
    "sayer": "graphs",
    "sight": "image features",
    "SightNet": "ImageRewardNet",
    "speech": "decoding_cfg",
    "stop_wished": "stop_requested",
    "taught": "teacher_logits, flow_chunk",
    "Teller": "InstructionEncoder",
    "Telling": "InstructionSource",
    "telling_starts": "informative_starts",
    "told": "predictions, caption, instruction: what it is",
    "turn_to": "rotary_tables",
    "Watched": "ValidatedEnv",
    "Wish": "ViewRequest",
    "wish": "request",
    "without_memory": "on_meta_device",
    "worth_logging": "loggable_scalars",
}
"""Replaced identifiers, and the field's word for each."""
BRITISH = re.compile(
    r"colour|centre|normalis|optimis|initialis|randomis|prioritis|labell|neighbour|metres", re.IGNORECASE
)
STORED = {"CENTRE"}
"""A member of an enum whose name is an option's value."""


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


@pytest.mark.parametrize("folder", FOLDERS)
def test_identifiers_have_one_spelling(folder):
    modules = sorted((ROOT / folder).rglob("*.py"))
    found = {str(m): sorted(n for n in identifiers(m) if BRITISH.search(n) and n not in STORED) for m in modules}
    assert {module: names for module, names in found.items() if names} == {}
