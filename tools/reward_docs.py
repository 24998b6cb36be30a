"""Writes the tables of the pages about rewards from the code: `python tools/reward_docs.py [--check]`.

The text between `<!-- BLOCK:begin -->` and `<!-- BLOCK:end -->` is generated; everything else is prose. `rewards` is
the index in docs/rewards.md, `fields NAME` the settings of a source, `settings NAME` those of what several build
on, and of guidance.
tests/docs/test_reward_pages.py fails if a page is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim_docs import BLOCK, Asked, table
from sim_docs import fields as fields_of

from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.registry import REWARDS
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.preferences.labelers.browser import BrowserCfg
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.preferences.labelers.served import ServedLabelerCfg
from robotrl.rewards.preferences.labelers.synthetic import SyntheticCfg
from robotrl.rewards.preferences.training import PreferenceTrainingCfg
from robotrl.rewards.scoring.cfg import ServiceCfg

DOCS = Path(__file__).resolve().parents[1] / "docs"
INDEX = DOCS / "rewards.md"
FOLDER = DOCS / "rewards"
SHARED = {"language", "scoring", "endpoint", "eval"}
"""Pages about what several sources build on."""
GUIDANCE = DOCS / "guidance.md"
SETTINGS: dict[str, type] = {
    "service": ServiceCfg,
    "endpoint": EndpointCfg,
    "guidance": GuidanceCfg,
    "labeler": LabelingCfg,
    "labeler.synthetic": SyntheticCfg,
    "labeler.endpoint": ServedLabelerCfg,
    "labeler.browser": BrowserCfg,
    "training": PreferenceTrainingCfg,
}


def page_of(name: str) -> tuple[Path, str]:
    """Page of a source, and its anchor there if the page is about several."""
    module = REWARDS.load(name).__module__
    path = FOLDER / f"{module.rpartition('.')[2]}.md"
    several = sum(REWARDS.load(other).__module__ == module for other in ours()) > 1
    return path, name if several else ""


def ours() -> list[str]:
    """Names of the sources of robotrl itself, the sim's own first."""
    names = [name for name in REWARDS.names() if REWARDS.rows()[name].startswith("robotrl.")]
    return sorted(names, key=lambda name: (name != "task", name))


def rewards() -> str:
    """Index of the sources, one row per source."""
    rows: list[Sequence[Any]] = []
    for name in ours():
        path, anchor = page_of(name)
        link = f"[`{name}`]({path.relative_to(DOCS)}{anchor and f'#{anchor}'})"
        rows.append((link, " ".join(REWARDS.load(name).__doc__.split("\n\n")[0].split())))
    return table(("reward", "value"), rows)


def fields(name: str) -> str:
    """Settings of a source, with its weight."""
    cfg = REWARDS.load(name)
    weight = "| `weight` | 1 | Factor of the source in the sum. |\n"
    return settings(cfg) + weight


def settings(cfg: type) -> str:
    """Fields of a dataclass."""
    return fields_of(Asked("", (cfg.__module__, cfg.__qualname__), {}))


def block(name: str, words: str) -> str:
    """Text of a block."""
    if name == "rewards":
        return rewards()
    return settings(SETTINGS[words]) if name == "settings" else fields(words)


def filled(page: Path) -> str:
    """Text of a page with regenerated blocks."""

    def fill(found: re.Match[str]) -> str:
        return found[1] + block(found["block"], found["words"].strip()) + found[5]

    return BLOCK.sub(fill, page.read_text())


def main(arguments: Sequence[str]) -> int:
    """Write all pages; with `--check`, compare them."""
    stale = 0
    for page in (INDEX, GUIDANCE, *sorted(FOLDER.glob("*.md"))):
        text = filled(page)
        if text != page.read_text():
            print(page)
            stale += 1
            if "--check" not in arguments:
                page.write_text(text)
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
