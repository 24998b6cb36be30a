"""The sweep files of the page are read, and every setting of theirs is a config."""

from __future__ import annotations

from pathlib import Path

import pytest

from robotrl.cli.commands.train import parse_config, split_names
from robotrl.sweeps.file import read_sweep_file
from robotrl.sweeps.plan import checked, plan_of
from tests.docs.test_pages import DOCS, blocks

FILES = [(kind, code) for kind in ("toml", "python") for code in blocks(DOCS / "sweeps.md", kind)]


@pytest.mark.parametrize(("kind", "code"), FILES, ids=lambda value: value.splitlines()[0].removeprefix("# "))
def test_a_sweep_of_the_page_is_a_plan(kind: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / f"sweep.{'py' if kind == 'python' else kind}"
    path.write_text(code)
    plan = plan_of(read_sweep_file(path))
    assert len(checked(plan, lambda words: parse_config(*split_names(words))[0])) == len(plan.settings) > 1
