"""Builds the docs as a site with search: `make docs`, or `python tools/docs_site.py [OUT]`; the site is `build/site`.

The pages are those of `docs/`, as they are read in the repository; their index, `docs/README.md`, makes the navigation.
The front page, CONTRIBUTING.md and CHANGELOG.md are copied beside them. Links to other files outside `docs/` become
plain words. mkdocs is run strictly: a link or an anchor that leads nowhere fails the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from robotrl.utils.files import dump_json

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXTRA = {"README.md": "front-page.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside `docs/`, by their names in the site."""
SLUGIFY = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def place(path: Path) -> Path | None:
    """Where a file of the repository stands in the site, relative to its top; None for what is not in it."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    name = EXTRA.get(str(path.relative_to(ROOT))) if path.is_relative_to(ROOT) else None
    return None if name is None else Path(name)


def moved(text: str, page: Path) -> str:
    """The text of a page with its links as they are in the site.

    Args:
        text: Markdown.
        page: the file that holds it.
    """
    own = place(page)
    assert own is not None, page

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found.groups()
        there = place((page.parent / target).resolve())
        if there is None:
            return words
        return f"{picture}[{words}]({os.path.relpath(there, own.parent)}{anchor or ''})"

    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    # Markdown inside of HTML is read where the tag asks for it
    return "".join(parts).replace("<details>", '<details markdown="1">')


def navigation() -> list[dict[str, Any]]:
    """The sections of the index, each with its pages."""
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    nav: list[dict[str, Any]] = [{"Index": "README.md"}]
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        pages: list[dict[str, str]] = []
        for _, words, target, anchor in LINK.findall(body):
            there = place((DOCS / target).resolve())
            if there is not None and not anchor:
                pages.append({words[0].upper() + words[1:]: str(there)})
        nav.append({title.strip(): pages})
    return nav


def write_source(folder: Path) -> None:
    """Write the pages and the settings of mkdocs into an empty folder."""
    shutil.copytree(DOCS, folder / "docs")
    pages = [*DOCS.rglob("*.md"), *(ROOT / name for name in EXTRA)]
    for page in pages:
        name = place(page)
        assert name is not None, page
        (folder / "docs" / name).write_text(moved(page.read_text(encoding="utf-8"), page), encoding="utf-8")
    slugs = {"slugify": "SLUGIFY", "permalink": True}
    settings: dict[str, Any] = {
        "site_name": "robotrl",
        # without fonts from elsewhere
        "theme": {"name": "material", "font": False, "features": ["navigation.top", "search.highlight"]},
        "docs_dir": "docs",
        "use_directory_urls": False,
        "plugins": ["search"],
        "markdown_extensions": ["tables", "md_in_html", "pymdownx.superfences", "pymdownx.highlight", {"toc": slugs}],
        "validation": {"links": {"anchors": "warn"}, "nav": {"omitted_files": "ignore"}},
        "nav": navigation(),
    }
    # JSON is YAML; headings get GitHub's anchors from a function, for which JSON has no word
    text = dump_json(settings).decode().replace('"SLUGIFY"', SLUGIFY)
    (folder / "mkdocs.yml").write_text(text, encoding="utf-8")


def main(out: Path) -> int:
    """Build the site; returns the exit code of mkdocs."""
    source = ROOT / "build" / "site-source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    write_source(source)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
    command += ["-f", str(source / "mkdocs.yml"), "-d", str(out.resolve())]
    # the theme's notice about versions to come is for its authors' readers, not for ours
    done = subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode == 0:
        print(f"open {out / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"))
