"""Markdown tables for the pages."""

from __future__ import annotations

from collections.abc import Iterable


def table_head(titles: Iterable[str]) -> list[str]:
    """The first two lines of a table."""
    titles = tuple(titles)
    return [table_row(titles), f"|{' --- |' * len(titles)}"]


def table_row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"
