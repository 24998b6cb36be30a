"""The help of a training: short, with the effect of defaults that are None, and whole on request."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from robotrl.cli.main import main
from robotrl.cli.train_help import PAGES, field_texts, in_effect, without_none
from robotrl.registry import ALGORITHMS
from tests.kits.paths_kit import ROOT


def said(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["train", *words.split()]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_a_preset_says_what_it_is_and_shows_what_is_set_most(capsys: pytest.CaptureFixture[str]) -> None:
    page = said("peg-insert-fql-online --help", capsys)
    flat = " ".join(page.split())
    first, algorithm, flags = (
        flat.index(text) for text in ("Fine-tune a clone with flow Q-learning", "FQL: flow Q-learning", "--algo.lr")
    )
    assert first < algorithm < flags
    assert "See docs/algorithms/fql.md." in flat
    assert "--algo.updates Number of offline updates, on the dataset only. Default: 0." in flat
    assert "--stop-at-success Stop when two evaluations in a row reach this success rate. Default: runs the" in flat
    assert len(page.splitlines()) < 60
    assert len(re.findall(r"^  --", page, re.MULTILINE)) <= 22
    assert page.rstrip().endswith("robotrl train peg-insert-fql-online --help-all")


def test_a_composition_has_the_same_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = said("--sim mujoco/reach --algo reinflow --help", capsys)
    assert page.startswith("usage: robotrl train --sim mujoco/reach --algo reinflow [--FIELD VALUE ...]")
    assert "docs/algorithms/reinflow.md" in page and "--algo.env-steps" in page
    # evaluations follow env steps here: their number of iterations is not shown
    assert "--evaluation.every-env-steps" in page and "--evaluation.every " not in page


def test_all_fields_are_on_the_whole_page_and_none_is_nowhere_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    page = said("gym-ppo --help-all", capsys)
    for flag in ("--algo.adam-eps", "--evaluation.second-look", "--lora.rank", "--sim.curriculum", "--seed"):
        assert flag in page
    assert "default: None" not in page
    for words in ("gym-ppo --help", "peg-insert-dsrl-na --help"):
        assert "None" not in said(words, capsys)


def test_what_none_does_is_told_by_the_fields_text() -> None:
    assert in_effect(None, "Gap. None: 10, unless `other` is given.") == "10, unless `other` is given"
    assert in_effect(None, "Rate; None runs the whole budget.") == "runs the whole budget"
    assert in_effect(None, "Data.") == "not set"
    assert (in_effect(300000, ""), in_effect((64, 64), ""), in_effect(True, "")) == ("300,000", "64 64", "True")
    assert without_none("x (default: None) │") == "x (default unset) │"


@dataclass
class Base:
    old: int = 1
    """Of the base."""
    both: int = 1
    """Of the base."""


@dataclass
class Derived(Base):
    both: int = 2
    """Of the derived,
    in two lines."""
    silent: int = 3


def test_texts_of_fields_are_those_below_them_the_nearest_class_first() -> None:
    assert field_texts(Derived) == {"old": "Of the base.", "both": "Of the derived, in two lines."}


def test_every_algorithm_of_ours_has_the_page_that_its_help_names() -> None:
    for name, target in ALGORITHMS.rows().items():
        if target.startswith("robotrl."):
            assert (ROOT / "docs" / "algorithms" / f"{PAGES.get(name, name)}.md").is_file(), name
