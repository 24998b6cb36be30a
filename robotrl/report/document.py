"""What the pages of evaluations and drives have in common: the document around them, and a folded table."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from robotrl.report.page import POLICY
from robotrl.report.text import esc

LONGEST_TABLE = 2000
"""Rows of a table; a page with more would open slowly."""


def resource(name: str) -> str:
    """A style sheet or script that lies beside this file."""
    return resources.files("robotrl.report").joinpath(name).read_text(encoding="utf-8")


def document(title: str, styles: Sequence[str], verdict: str, lede: str, parts: Sequence[str]) -> str:
    """A whole page as text: one HTML file that needs no server, no network and no other file.

    Args:
        title: of the page, whose first words it is.
        styles: names of style sheets, the first ones under the later ones.
        verdict: the page in one sentence.
        lede: what is shown and how it was chosen.
        parts: HTML; empty ones are left out.
    """
    style = "\n".join(resource(name) for name in styles)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{esc(title)}: robotrl</title>\n<style>\n{style}</style></head>\n<body><main>\n"
        f'<header><h1>{esc(title)}</h1><p class="verdict">{esc(verdict)}</p>'
        f'<p class="lede">{esc(lede)}</p></header>\n'
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def folded_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A section with a table of all episodes, which a click opens; nothing without rows.

    Args:
        heads: titles of the columns.
        rows: one for each episode, a text for each column.
    """
    if not rows:
        return ""
    shown = rows[:LONGEST_TABLE]
    head = "".join(f"<th>{esc(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f'<td class="n">{esc(cell)}</td>' for cell in row) + "</tr>" for row in shown)
    told = f"All {len(rows):,} episodes" if len(shown) == len(rows) else f"The first {len(shown):,} episodes"
    return (
        f"<section><details><summary>{told}</summary><div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details></section>"
    )
