"""HTML page of an evaluation in any sim: results, their distribution, and replays of some episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robotrl.report.document import document, folded_table, resource
from robotrl.report.histogram import ValueGroup, histogram
from robotrl.report.replay import EpisodePictures, pack_replays
from robotrl.report.text import esc, number

STYLES = ("style.css", "replays.css")
FEW = 3
"""Up to this number of replays, they are shown larger."""


@dataclass(frozen=True)
class EvalPage:
    """Content of the page.

    Args:
        title: title with actor and sim.
        verdict: main result in one sentence.
        lede: number of starts and split, and remarks.
        dt_s: duration of a step, s.
        judged: whether episodes are classified by success; otherwise only their returns are shown.
        tiles: further figures with labels.
        names: (n) start of each episode: the split and the number within it.
        success: (n,) bool.
        length: (n,) steps.
        returns: (n,).
        spread: show histograms of lengths and returns.
        replays: replays of some of the episodes.
        chosen: sentence on how they were chosen, or why there are none.
        command: command that makes the page again.
        settings: settings that the results depend on, by name.
    """

    title: str
    verdict: str
    lede: str
    dt_s: float
    judged: bool
    names: Sequence[str]
    success: NDArray[np.bool_]
    length: NDArray[np.int64]
    returns: NDArray[np.float64]
    tiles: Sequence[tuple[str, str]] = ()
    spread: bool = True
    replays: Sequence[EpisodePictures] = ()
    chosen: str = ""
    command: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


def render_evaluation(page: EvalPage) -> str:
    """Render the page as text."""
    parts = [_tiles(page.tiles), _replays(page), _spread(page) if page.spread else "", _table(page), _again(page)]
    return document(page.title, STYLES, page.verdict, page.lede, parts)


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    boxes = "".join(f'<div class="tile"><b>{esc(value)}</b><span>{esc(told)}</span></div>' for value, told in tiles)
    return f'<div class="tiles">{boxes}</div>' if boxes else ""


def _replays(page: EvalPage) -> str:
    if not page.replays:
        return f'<section><h2>Replays</h2><p class="why">{esc(page.chosen)}</p></section>' if page.chosen else ""
    payload = {"dt": page.dt_s, "replays": pack_replays(page.replays)}
    data = json.dumps(payload, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    cards = "".join(_card(k, replay, page.judged) for k, replay in enumerate(page.replays))
    speeds = "".join(
        f'<option value="{speed}"{" selected" if speed == "1" else ""}>{speed} &times;</option>'
        for speed in ("0.25", "0.5", "1", "2", "4")
    )
    return (
        f"<section><h2>Replays</h2><p>{esc(page.chosen)} A click on a picture stops it.</p>"
        '<div class="controls"><button id="play" type="button">Play</button>'
        f'<select id="speed" aria-label="speed">{speeds}</select></div>'
        f'<div class="replays{" few" if len(page.replays) <= FEW else ""}">{cards}</div>'
        "<noscript><p>The replays need JavaScript.</p></noscript></section>"
        f'<script type="application/json" id="replays">{data}</script>\n<script>\n{resource("replays.js")}</script>'
    )


def _card(index: int, replay: EpisodePictures, judged: bool) -> str:
    _, height, width, _ = replay.frames.shape
    mark = ""
    if judged:
        css, text = ("ok", "✓ success") if replay.success else ("fail", "✗ failed")
        mark = f'<span class="mark {css}">{text}</span>'
    return (
        f'<figure class="replay" id="replay-{index}"><canvas style="aspect-ratio:{width}/{height}" role="img"'
        f' aria-label="replay of start {esc(replay.name)}"></canvas>'
        f'<div class="told"><b>{esc(replay.name)}</b>{mark}</div>'
        f'<div class="figures"><span>return {number(replay.ret)}</span><span class="clock"></span></div>'
        f'<input type="range" min="0" value="0" step="any" aria-label="step of {esc(replay.name)}"></figure>'
    )


def _spread(page: EvalPage) -> str:
    groups = [("", "bar-all", np.ones(len(page.success), bool))]
    legend = ""
    if page.judged:
        groups = [("success", "bar-ok", page.success), ("failed", "bar-fail", ~page.success)]
        legend = '<ul class="legend sorts">' + "".join(
            f'<li><span class="key"></span>{label} <b>{int(rows.sum()):,}</b></li>' for label, _, rows in groups
        )
        legend += "</ul>"
    charts = ""
    for values, axis, whole in (
        (page.returns, "return (sum of rewards)", False),
        (page.length.astype(np.float64), "length (steps)", True),
    ):
        parts = [ValueGroup(label, css, values[rows]) for label, css, rows in groups]
        pictures = "".join(histogram(parts, axis, width, css, whole) for width, css in ((460, "wide"), (330, "narrow")))
        charts += f"<div>{pictures}</div>"
    return (
        f"<section><h2>Returns and lengths</h2><p>Of all {len(page.success):,} episodes.</p>{legend}"
        f'<div class="halves">{charts}</div></section>'
    )


def _table(page: EvalPage) -> str:
    columns = zip(page.names, page.success.tolist(), page.length.tolist(), page.returns.tolist(), strict=True)
    if page.judged:
        rows = [(name, "success" if ok else "failed", f"{n:,}", f"{r:,.3f}") for name, ok, n, r in columns]
        return folded_table(("start", "result", "length, steps", "return"), rows)
    return folded_table(
        ("start", "length, steps", "return"), [(name, f"{n:,}", f"{r:,.3f}") for name, _, n, r in columns]
    )


def _again(page: EvalPage) -> str:
    if not page.command and not page.settings:
        return ""
    rows = "".join(f'<tr><td>{esc(key)}</td><td class="n">{esc(text)}</td></tr>' for key, text in page.settings.items())
    command = f"<pre>{esc(page.command)}</pre>" if page.command else ""
    table = f"<details open><summary>Settings</summary><table><tbody>{rows}</tbody></table></details>" if rows else ""
    return f"<section><h2>Make it again</h2>{command}{table}</section>"
