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

STYLES = ("style.css", "drive.css", "replays.css")
SCRIPTS = ("drive_charts.js", "episodes.js")
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
        has_success: whether episodes are classified by success; otherwise only their returns are shown.
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
    has_success: bool
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
    replays = replay_section(page.replays, page.dt_s, page.has_success, page.chosen, _names_of_starts(page.replays))
    again = again_section(page.command, page.settings)
    parts = [_tiles(page.tiles), replays, _spread(page) if page.spread else "", _table(page), again]
    return document(page.title, STYLES, page.verdict, page.lede, parts)


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    boxes = "".join(
        f'<div class="tile"><b>{esc(value)}</b><span>{esc(caption)}</span></div>' for value, caption in tiles
    )
    return f'<div class="tiles">{boxes}</div>' if boxes else ""


def replay_section(replays: Sequence[EpisodePictures], dt_s: float, has_success: bool, chosen: str, starts: str) -> str:
    """Player of some episodes; only the reason if there are none.

    Args:
        replays: the episodes.
        dt_s: duration of a step, s.
        has_success: whether they are classified by success.
        chosen: sentence on how they were chosen, or why there are none.
        starts: HTML sentences about their names.
    """
    if not replays:
        return f'<section><h2>Replays</h2><p class="why">{esc(chosen)}</p></section>' if chosen else ""
    payload = {"dt": dt_s, "judged": has_success, "replays": pack_replays(replays)}
    data = json.dumps(payload, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    cards = "".join(_card(k, replay, has_success) for k, replay in enumerate(replays))
    speeds = "".join(
        f'<option value="{speed}"{" selected" if speed == "1" else ""}>{speed} &times;</option>'
        for speed in ("0.25", "0.5", "1", "2", "4")
    )
    script = "\n".join(resource(name) for name in SCRIPTS)
    return (
        _stage(chosen, starts, speeds) + '<section><details id="together"><summary>All replays side by side</summary>'
        '<div class="controls"><button id="play-all" type="button">Play</button>'
        f'<select id="speed-all" aria-label="speed of all">{speeds}</select></div>'
        f'<div class="replays{" few" if len(replays) <= FEW else ""}">{cards}</div></details></section>'
        f'<script type="application/json" id="replays">{data}</script>\n<script>\n{resource("replays.js")}</script>'
        f'<script>\n(() => {{\n"use strict";\n{script}}})();\n</script>'
    )


def _names_of_starts(replays: Sequence[EpisodePictures]) -> str:
    if not replays:
        return ""
    first = replays[0]
    return (
        "A start is named by its split and its number there, from 0: "
        f"<b>{esc(first.name)}</b> is start id {first.state_id}. The same start, policy and seed give the same "
        f"episode: <code>robotrl view</code> with <code>--state-id {first.state_id}</code> shows this one again. "
        "A picture shows the state before its step."
    )


def _stage(chosen: str, starts: str, speeds: str) -> str:
    """One episode at a time: its pictures, a scrub bar, and its rewards; beside it the list of episodes."""
    return (
        f'<p class="selection">{esc(chosen)}</p>'
        '<div class="stage"><div class="screen"><div class="picture">'
        '<canvas id="film" role="img" aria-label="the chosen episode"></canvas>'
        '<span id="instruction" hidden></span>'
        '<span id="scenario"></span><span id="end" hidden></span></div>'
        '<div class="bar"><button type="button" id="play" aria-label="play"></button>'
        '<button type="button" id="back" title="a step back (&larr;)" aria-label="a step back">&lsaquo;</button>'
        '<button type="button" id="on" title="a step on (&rarr;)" aria-label="a step on">&rsaquo;</button>'
        '<div class="track"><div class="rail"><div id="done"></div></div><div id="marks"></div>'
        '<input id="scrub" type="range" min="0" value="0" step="any" aria-label="step"></div>'
        f'<span id="clock"></span><select id="speed" aria-label="speed">{speeds}</select></div>'
        '<div id="plots" class="under"></div></div>'
        '<aside><h2>Episodes</h2><div id="episodes"></div></aside></div>'
        f'<p class="starts">{starts}</p>'
        "<noscript><p>The replays need JavaScript.</p></noscript>"
        "<footer><kbd>space</kbd> plays, <kbd>&larr;</kbd> <kbd>&rarr;</kbd> go by a step (<kbd>shift</kbd>: by ten), "
        "<kbd>&uarr;</kbd> <kbd>&darr;</kbd> by an episode; a click on a chart goes there. "
        "<code>#e=1&amp;t=20</code> behind the address opens the second episode at step 20.</footer>"
    )


def _card(index: int, replay: EpisodePictures, has_success: bool) -> str:
    _, height, width, _ = replay.frames.shape
    mark = ""
    if has_success:
        css, text = ("ok", "✓ success") if replay.success else ("fail", "✗ failed")
        mark = f'<span class="mark {css}">{text}</span>'
    said = f'<p class="instruction">{esc(replay.instruction)}</p>' if replay.instruction else ""
    return (
        f'<figure class="replay" id="replay-{index}"><canvas style="aspect-ratio:{width}/{height}" role="img"'
        f' aria-label="replay of start {esc(replay.name)}"></canvas>'
        f'<div class="told"><b>{esc(replay.name)}</b>{mark}</div>{said}'
        f'<div class="figures"><span>return {number(replay.ret)}</span><span class="clock"></span></div>'
        f'<input type="range" min="0" value="0" step="any" aria-label="step of {esc(replay.name)}"></figure>'
    )


def _spread(page: EvalPage) -> str:
    groups = [("", "bar-all", np.ones(len(page.success), bool))]
    legend = ""
    if page.has_success:
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
    if page.has_success:
        rows = [(name, "success" if ok else "failed", f"{n:,}", f"{r:,.3f}") for name, ok, n, r in columns]
        return folded_table(("start", "result", "length, steps", "return"), rows)
    return folded_table(
        ("start", "length, steps", "return"), [(name, f"{n:,}", f"{r:,.3f}") for name, _, n, r in columns]
    )


def again_section(command: str, settings: Mapping[str, str]) -> str:
    """The command that makes a page again, and the settings that its results depend on; empty without either."""
    if not command and not settings:
        return ""
    rows = "".join(f'<tr><td>{esc(key)}</td><td class="n">{esc(text)}</td></tr>' for key, text in settings.items())
    shown = f"<pre>{esc(command)}</pre>" if command else ""
    table = f"<details open><summary>Settings</summary><table><tbody>{rows}</tbody></table></details>" if rows else ""
    return f"<section><h2>Make it again</h2>{shown}{table}</section>"
