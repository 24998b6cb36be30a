"""The code of the tutorials runs, at a small size: every ```sh line and ```python block, in the order of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from robotrl.cli.main import main
from tests.kits.paths_kit import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Smaller(NamedTuple):
    """What makes a tutorial small."""

    arguments: dict[str, tuple[str, ...]]
    """Command to arguments that are added to it; those of the same name on the page give way."""
    text: dict[str, str]
    """What stands in a python block, to what takes its place."""
    writes: tuple[str, ...]
    """Files that are there in the end."""


SMALLER = {
    "quadruped": Smaller(
        arguments={
            "train": (
                *("--algo.env-steps", "512", "--algo.num-steps", "32", "--algo.minibatch", "128"),
                *(
                    "--algo.engine",
                    "eager",
                    "--algo.epochs",
                    "1",
                    "--sim.num-envs",
                    "8",
                    "--sim.limit-s",
                    "0.4",
                ),
                *("--evaluation.every", "0", "--evaluation.episodes", "4", "--evaluation.num-envs", "4"),
            ),
            "eval": ("--episodes", "4"),
        },
        text={
            "16, 8\n": "2, 0.2\n",
            '("test")[:64]': '("test")[:4]',
            "num_envs=len(starts)": "num_envs=len(starts), limit_s=0.3",
        },
        writes=("walk.gif", "walk.bundle/manifest.json", "runs/walk/scalars.jsonl"),
    )
}


def smaller(line: str, extra: dict[str, tuple[str, ...]]) -> list[str]:
    """The arguments of `robotrl COMMAND ...` with those of `extra` in place of the page's."""
    words = shlex.split(line)
    assert words[0] == "robotrl", line
    added = extra.get(words[1], ())
    for option in (word for word in added if word.startswith("--")):
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    return [*words[1:], *added]


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_the_code_of_the_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    size = SMALLER[page.stem]
    names: dict[str, Any] = {"__name__": "tutorial"}
    unused = set(size.text)
    for language, code in BLOCK.findall(page.read_text()):
        if language == "sh":
            for line in code.splitlines():
                assert main(smaller(line, size.arguments)) == 0, line
            continue
        for text, shorter in size.text.items():
            if text in code:
                unused.discard(text)
                code = code.replace(text, shorter)
        exec(compile(code, str(page), "exec"), names)
    assert not unused, "the page no longer holds what is made smaller"
    for name in size.writes:
        assert Path(name).is_file(), name


def test_options_of_the_page_give_way() -> None:
    assert smaller("robotrl eval x --episodes 256", {"eval": ("--episodes", "4")}) == ["eval", "x", "--episodes", "4"]
    assert smaller("robotrl inspect 'a b'", {"eval": ("--episodes", "4")}) == ["inspect", "a b"]
