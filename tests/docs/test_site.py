"""The pages as `make docs` lays them out for the generator; `make docs` itself fails on what leads nowhere."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.docs.test_pages import LINK, prose
from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import docs_site


def test_links_of_the_site_stay_inside_and_lead_somewhere(tmp_path: Path) -> None:
    docs_site.write_source(tmp_path)
    pages = [*(tmp_path / "docs").rglob("*.md")]
    assert {page.name for page in pages} >= {"front-page.md", "contributing.md", "changelog.md", "README.md"}
    for page in pages:
        for target, _ in LINK.findall(prose(page)):
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page}: {target}"
            assert there.is_relative_to((tmp_path / "docs").resolve())


def test_the_navigation_is_the_index(tmp_path: Path) -> None:
    docs_site.write_source(tmp_path)
    settings = (tmp_path / "mkdocs.yml").read_text()
    nav = json.loads(re.sub(r"!!python[^\n]*\}\}", '""', settings))["nav"]
    sections = [name for entry in nav for name in entry]
    assert sections == ["Index", *re.findall(r"^## (.*)$", (ROOT / "docs" / "README.md").read_text(), re.MULTILINE)]
    shown = {page for entry in nav[1:] for pages in entry.values() for item in pages for page in item.values()}
    assert {"concepts.md", "front-page.md", "results/README.md", "algorithms/ppo.md"} <= shown


def test_links_to_code_become_words() -> None:
    page = ROOT / "docs" / "coming-from.md"
    assert docs_site.moved("[loop](../robotrl/training.py), [top](../README.md#install)", page) == (
        "loop, [top](front-page.md#install)"
    )
    code = "```md\n[top](../README.md)\n```\n"
    assert docs_site.moved(code, page) == code
