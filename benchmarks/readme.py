"""`python -m benchmarks.readme`: writes the committed results into the pages of `docs/results`.

Charts go to `docs/images`.

The inside of such a block is replaced by the table made from `benchmarks/results/NAME.json`:

    <!-- bench:NAME -->
    ...
    <!-- /bench -->

`bench:NAME/PART` is another table of the same results, by a function in the bench's `PARTS`. `TABLES` has those of
results that no bench made.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import benchmarks
from benchmarks.kit.cells import outdated
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.runner import SCHEMA_VERSION, rows
from robotrl.errors import DataError, unknown
from robotrl.utils.files import read_json, replace_file

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "results").glob("*.md")))
"""Pages whose blocks are filled."""
_OPEN = re.compile(r"^<!-- bench:", re.MULTILINE)
_BLOCK = re.compile(
    r"^(?P<open><!-- bench:(?P<name>[\w-]+)(?:/(?P<part>[\w-]+))? -->\n)"
    r"(?P<body>(?:(?!<!-- bench:).)*?)^(?P<close><!-- /bench -->)$",
    re.DOTALL | re.MULTILINE,
)


def filled(text: str, results: Path) -> str:
    """`text` with every block regenerated from the results in the folder `results`.

    An empty block without results stays empty.

    Raises:
        DataError: a non-empty block has no results, results were made with `--quick`, or a block is not closed.
        ConfigError: a block names an unknown bench or part.
    """
    if len(_OPEN.findall(text)) != len(_BLOCK.findall(text)):
        raise DataError("a block <!-- bench:NAME --> is not closed by <!-- /bench --> on a line of its own")

    def fill(block: re.Match[str]) -> str:
        path = results / f"{block['name']}.json"
        if not block["body"].strip() and not path.exists():
            if block["name"] not in TABLES:
                benchmarks.load(block["name"])
            return block[0]
        document = read_json(path, "bench results", SCHEMA_VERSION)
        if document.get("quick"):
            raise DataError(f"bench results {block['name']} were made with --quick: run the bench in full")
        return f"{block['open']}{block_text(block['name'], block['part'], document)}\n{block['close']}"

    return _BLOCK.sub(fill, text)


def block_text(name: str, part: str | None, document: Mapping[str, Any]) -> str:
    """Markdown of one bench: its table or figures with a line about the machine; or one part only."""
    module = None if name in TABLES else benchmarks.load(name)
    if part is not None:
        parts: Mapping[str, Callable[[Mapping[str, Any]], str]] = getattr(module, "PARTS", {})
        if part not in parts:
            raise unknown(f"part of bench {name}", part, parts)
        return parts[part](document)
    table = (TABLES[name] if module is None else module.table if hasattr(module, "table") else figures_table)(document)
    versions = ", ".join(f"{package} {version}" for package, version in document["versions"].items())
    made = f"`{document['command']}`, {document['date']}; {_where(document)}; {versions}.{_rules(document)}"
    return f"{table}\n\n{made}{earlier(module, document)}"


def earlier(module: ModuleType | None, document: Mapping[str, Any]) -> str:
    """Sentence about cells that an earlier revision of the bench has made; empty without."""
    cells = document.get("cells", {})
    if module is None or not cells or not hasattr(module, "cells"):
        return ""
    old = outdated(module.cells(False), cells)
    if not old:
        return ""
    if len(old) == len(cells):
        return " All cells are of an earlier revision of the bench and have not been run again."
    methods = ", ".join(dict.fromkeys(cell["method"] for cell in old.values()))
    return f" Cells of an earlier revision of the bench: {len(old)} ({methods})."


def _rules(document: Mapping[str, Any]) -> str:
    """Evaluation rules of the cells, and the number of cells by each."""
    rules = Counter(cell["rule"] for cell in document.get("cells", {}).values() if cell.get("rule"))
    summary = "; ".join(f"{rule} ({count} cells)" for rule, count in rules.most_common())
    return f" Evaluated by: {summary}." if summary else ""


def _where(document: Mapping[str, Any]) -> str:
    """Machine of the results; for cells from several processors, the number of cells from each."""
    cpus = Counter(cell["machine"]["cpu"] for cell in document.get("cells", {}).values())
    if len(cpus) > 1:
        made = ", ".join(f"{count} on {cpu}" for cpu, count in cpus.most_common())
        return f"of {cpus.total()} cells {made}; each has its machine, versions and commit in the file"
    machine = document["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['ram_gib']:g} GiB"


def figures_table(document: Mapping[str, Any]) -> str:
    """Figures as a Markdown table."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    head = ("figure", "ours", "lowest to highest", "peer", "peer's", "ratio", "runs")
    lines = table_head(head)
    lines += [table_row((row[0].replace("_", " "), *row[1:])) for row in rows(figures)]
    return "\n".join(lines)


def speed_table(document: Mapping[str, Any]) -> str:
    """Rates of two commits side by side, from `tools/speed_against.py`."""
    lines = table_head(("unit", "now over before", "95 % interval", "pairs", "at least 0.97"))
    for unit, found in document["units"].items():
        interval = f"{found['low']:.2f} to {found['high']:.2f}"
        reached = "yes" if found["reached"] else "**no**"
        lines.append(table_row((unit, f"**{found['ratio']:.2f}**", interval, str(len(found["now"])), reached)))
    return "\n".join(lines)


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "speed_against": speed_table,
    "speed_since_folders": speed_table,
}
"""Results that no bench made, by the name of their file, each with the function that writes its table."""


def write_pictures(results: Path, out: Path) -> list[Path]:
    """Draw the benches' charts from the results in a folder; returns the written files."""
    written: list[Path] = []
    for name in benchmarks.BENCHES:
        path, module = results / f"{name}.json", benchmarks.load(name)
        if path.exists() and hasattr(module, "pictures"):
            for picture, data in module.pictures(read_json(path, "bench results", SCHEMA_VERSION)).items():
                replace_file(out / picture, data)
                written.append(out / picture)
    return written


def main(check: bool = False) -> int:
    """Update the pages; with `check` only report which of them differ. Returns the exit code."""
    stale: list[str] = []
    results = ROOT / "benchmarks" / "results"
    if not check:
        write_pictures(results, ROOT / "docs" / "images")
    for name in PAGES:
        page = ROOT / name
        before = page.read_text(encoding="utf-8")
        after = filled(before, results)
        if before != after:
            stale.append(name)
            if not check:
                replace_file(page, after.encode())
    if stale:
        print(f"{'differs from the results' if check else 'rewritten'}: {', '.join(stale)}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
