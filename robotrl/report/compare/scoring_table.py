"""Table of what scored a run's steps beside the sim, for pages of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from robotrl.report.text import esc

COLUMNS: tuple[tuple[str, str], ...] = (
    ("requests_paid", "scored"),
    ("cost", "cost"),
    ("hit_rate", "known"),
    ("dropped", "dropped"),
    ("refused", "over budget"),
    ("unserved", "no worker"),
    ("failed", "server failed"),
    ("invalid", "invalid"),
    ("timed_out", "too late"),
    ("latency_p50_s", "latency, median"),
    ("latency_p95_s", "latency, 95 %"),
    ("queue_length", "waiting"),
    ("worker_restarts", "workers lost"),
    ("outages", "outages"),
    ("down", "down now"),
)
"""Metrics of the scoring service or of an endpoint, and their heads."""
SHARES = frozenset({"hit_rate", "dropped", "refused", "unserved", "failed", "invalid", "timed_out"})


class ScoringRow(NamedTuple):
    """A reward source of a run that scores beside the sim, or one path of it."""

    run: str
    source: str
    """Name of the source, and behind a slash that of the path."""
    metrics: Mapping[str, float]
    """Last values, by name of the metric; `valid` and `age` are those of the last iteration's steps."""


def scoring_rows(run: str, last: Mapping[str, float]) -> list[ScoringRow]:
    """Rows of a run, from its last scalars: one a source, or one for each of its paths."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in last.items():
        first, _, rest = name.partition("/")
        source, _, metric = rest.rpartition("/")
        if first == "scoring" and source:
            rows.setdefault(source, {})[metric] = value
    with_paths = {source.partition("/")[0] for source in rows if "/" in source}
    found: list[ScoringRow] = []
    for source, metrics in rows.items():
        if source in with_paths:  # metrics of the source as a whole, such as those of its gate
            continue
        steps = {f"reward_{key}/{source.partition('/')[0]}": key for key in ("valid", "age")}
        # an endpoint has a metric "valid" of its own, the share of its requests
        own = {key: value for key, value in metrics.items() if key not in steps.values()}
        found.append(ScoringRow(run, source, own | {key: last[name] for name, key in steps.items() if name in last}))
    return found


def scoring_section(rows: Sequence[ScoringRow]) -> str:
    """Section with one row a source; empty without rows."""
    if not rows:
        return ""
    heads = ("run", "reward", "steps with a score", "mean age, steps", *(head for _, head in COLUMNS))
    body = ""
    for row in rows:
        texts = [_shown("hit_rate", row.metrics.get("valid")), _shown("", row.metrics.get("age"))]
        texts += [_shown(key, row.metrics.get(key)) for key, _ in COLUMNS]
        cells = "".join(f'<td class="n">{esc(text)}</td>' for text in texts)
        body += f"<tr><td>{esc(row.run)}</td><td><code>{esc(row.source)}</code></td>{cells}</tr>"
    head = "".join(f"<th>{esc(text)}</th>" for text in heads)
    return (
        "<section><h2>Scoring beside the sim</h2><p>Steps of the last iteration, and counts since the start of the "
        f'process.</p><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        "</section>"
    )


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "down":
        return "yes" if value else "no"
    if key == "cost":
        return f"{value:,.2f}"
    if key in SHARES:
        return f"{100 * value:.1f} %"
    if key.endswith("_s"):
        return f"{1000 * value:.0f} ms"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
