"""Statements are counted without docstrings, in the working tree and at a commit; what was added can be left out."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from count_statements import added, by_folder, folder_of, sources, statements

SOURCE = '''"""Module."""

import math


class Circle:
    """Round."""

    radius: float = 1.0
    """Half of its width."""

    def area(self) -> float:
        """Area."""
        if self.radius:
            return math.pi * self.radius**2
        return 0.0
'''


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: a module, which the second one renames, and another module beside it."""

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    (tmp_path / "robotrl" / "algos").mkdir(parents=True)
    (tmp_path / "robotrl" / "old.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_circle.py").write_text("x = 1\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    git("tag", "first")
    git("mv", "robotrl/old.py", "robotrl/algos/circle.py")
    (tmp_path / "robotrl" / "more.py").write_text("a = 1\nb = 2\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "second")
    return tmp_path


def test_docstrings_are_no_statements() -> None:
    # import, class, field, def, if, two returns
    assert statements(SOURCE) == 7
    assert statements('print("text")\n"""Text."""\n') == 1


def test_folders_of_the_package_are_counted_one_level_deep() -> None:
    assert folder_of("robotrl/training.py") == "robotrl"
    assert folder_of("robotrl/fn/text/tokens.py") == "robotrl/fn"
    assert folder_of("sims/bev/core.py") == "sims"


def test_a_commit_and_the_working_tree_are_counted_without_tests(repository: Path) -> None:
    assert by_folder(sources("first", repository)) == {"robotrl": 7}
    (repository / "robotrl" / "untracked.py").write_text("c = 3\n")
    assert by_folder(sources(None, repository)) == {"robotrl": 3, "robotrl/algos": 7}


def test_what_was_added_is_known_and_what_was_renamed_is_not_added(repository: Path) -> None:
    assert added("first", "HEAD", repository) == {"robotrl/more.py"}
    (repository / "robotrl" / "untracked.py").write_text("c = 3\n")
    assert added("first", None, repository) == {"robotrl/more.py", "robotrl/untracked.py"}
