"""HTML document and collapsible table shared by the pages of evaluations and drives."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from robotrl.report.page import POLICY
from robotrl.report.text import esc

LONGEST_TABLE = 2000
"""Maximum number of table rows; larger pages would open slowly."""


def resource(name: str) -> str:
    """Text of a style sheet or script in this folder."""
    return resources.files("robotrl.report").joinpath(name).read_text(encoding="utf-8")


def document(title: str, styles: Sequence[str], verdict: str, lede: str, parts: Sequence[str]) -> str:
    """HTML document as text: one file that needs no server, no network and no other file.

    Args:
        title: title of the page.
        styles: names of style sheets; later ones override earlier ones.
        verdict: main result in one sentence.
        lede: description of the content and of its selection.
        parts: HTML sections; empty ones are left out.
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
    """Collapsible section with a table of all episodes; empty without rows.

    Args:
        heads: titles of the columns.
        rows: one for each episode, a text for each column.
    """
    if not rows:
        return ""
    shown = rows[:LONGEST_TABLE]
    head = "".join(f"<th>{esc(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f'<td class="n">{esc(cell)}</td>' for cell in row) + "</tr>" for row in shown)
    caption = f"All {len(rows):,} episodes" if len(shown) == len(rows) else f"The first {len(shown):,} episodes"
    return (
        f"<section><details><summary>{caption}</summary><div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details></section>"
    )
