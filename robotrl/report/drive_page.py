"""HTML page with a viewer of recorded drives: one file that needs no server, no network and no other file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from robotrl.report.document import document, folded_table, resource
from robotrl.report.text import esc, percent
from robotrl.spec.drive_trace import KINDS

SCRIPTS = ("drive_data.js", "drive_scene.js", "drive_charts.js", "drive.js")
STYLES = ("style.css", "drive.css")


class Share(NamedTuple):
    """Number of successes in a group of episodes."""

    name: str
    successes: int
    episodes: int


class EpisodeRow(NamedTuple):
    """A row of the table of all episodes."""

    state_id: int
    scenario: str
    success: bool
    length_s: float
    ret: float
    """Sum of rewards."""


@dataclass(frozen=True)
class DrivePage:
    """Content of the page.

    Args:
        title: title with the driver's name.
        verdict: main result in one sentence.
        lede: description of the content and of its selection.
        drives: results of `robotrl.report.drive_pack.pack_drive`; without any, the viewer is left out.
        shares: success of groups of episodes.
        episodes: all episodes behind the verdict.
    """

    title: str
    verdict: str
    lede: str
    drives: Sequence[dict[str, Any]] = ()
    shares: Sequence[Share] = ()
    episodes: Sequence[EpisodeRow] = field(default_factory=tuple[EpisodeRow, ...])


def render_drives(page: DrivePage) -> str:
    """Render the page as text."""
    rows = [
        (
            str(one.state_id),
            one.scenario,
            "success" if one.success else "failed",
            f"{one.length_s:.1f} s",
            f"{one.ret:.3f}",
        )
        for one in page.episodes
    ]
    parts = [
        _viewer(page.drives) if page.drives else "",
        _shares(page.shares),
        folded_table(("start", "scenario", "result", "length", "return"), rows),
    ]
    return document(page.title, STYLES, page.verdict, page.lede, parts)


def _viewer(drives: Sequence[dict[str, Any]]) -> str:
    payload = json.dumps({"drives": drives}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    script = "\n".join(resource(name) for name in SCRIPTS)
    speeds = "".join(
        f'<option value="{speed}"{" selected" if speed == "1" else ""}>{speed} &times;</option>'
        for speed in ("0.25", "0.5", "1", "2", "4", "8")
    )
    views = "".join(
        f'<option value="{value}">{text}</option>'
        for value, text in (("ego", "ego, heading up"), ("north", "ego, map up"), ("fixed", "fixed: whole route"))
    )
    kinds = "".join(f'<span style="--tone:var(--{kind})">{kind}</span>' for kind in KINDS)
    return (
        '<div class="stage"><div class="screen"><div class="picture">'
        '<canvas id="scene" aria-label="the drive from above"></canvas>'
        '<div class="hud"><span class="speed"><b id="speed-now">0.0</b><small>m/s</small></span>'
        '<span id="limit-sign" title="speed limit, m/s"><span id="limit-now"></span></span>'
        '<svg id="wheel" viewBox="0 0 40 40" aria-hidden="true"><circle cx="20" cy="20" r="16"/>'
        '<path d="M4 20H36M20 20V36"/></svg>'
        '<span class="pedals" title="accelerator and brake"><span><i id="gas"></i></span>'
        '<span><i id="brake"></i></span></span></div>'
        '<span id="scenario"></span><span id="end" hidden></span><div class="tools">'
        '<button type="button" id="farther" title="zoom out (-)">&minus;</button>'
        '<button type="button" id="nearer" title="zoom in (+)">+</button>'
        '<button type="button" id="reset" title="back to the first view (0)">reset</button>'
        f'<select id="camera" aria-label="view">{views}</select></div></div>'
        '<div class="bar"><button type="button" id="play" aria-label="play"></button>'
        '<button type="button" id="back" title="a step back (&larr;)" aria-label="a step back">&lsaquo;</button>'
        '<button type="button" id="on" title="a step on (&rarr;)" aria-label="a step on">&rsaquo;</button>'
        '<div class="track"><div class="rail"><div id="done"></div></div><div id="marks"></div>'
        '<input id="scrub" type="range" min="0" value="0" step="any" aria-label="time"></div>'
        f'<span id="clock"></span><select id="speed" aria-label="speed">{speeds}</select></div>'
        '<div id="remarks"></div></div>'
        '<aside><h2>Episodes</h2><div id="episodes"></div></aside></div>'
        f'<p class="legend-line"><span style="--tone:var(--ego)">ego</span>{kinds}'
        '<span style="--tone:var(--parked)">parked</span><span class="dots" style="--tone:var(--route)">route</span>'
        '<span class="dots" style="--tone:var(--plan)" id="decided"></span></p>'
        '<section><h2>Over time</h2><div id="plots"></div></section>'
        "<noscript><p>The drives need JavaScript.</p></noscript>"
        "<footer><kbd>space</kbd> plays, <kbd>&larr;</kbd> <kbd>&rarr;</kbd> go by a step (<kbd>shift</kbd>: by ten), "
        "<kbd>&uarr;</kbd> <kbd>&darr;</kbd> by an episode, <kbd>f</kbd> changes the view; the wheel zooms, a drag "
        "moves the map, a click on a chart goes there.</footer>"
        f'<script type="application/json" id="drives">{payload}</script>\n'
        f'<script>\n(() => {{\n"use strict";\n{script}}})();\n</script>'
    )


def _shares(shares: Sequence[Share]) -> str:
    if not shares:
        return ""
    rows = "".join(
        f'<tr><td>{esc(one.name)}</td><td class="n"><b>{percent(one.successes / one.episodes)}</b></td>'
        f'<td class="n">{one.successes} of {one.episodes}</td><td class="wide-only"><span class="share">'
        f'<i style="width:{100 * one.successes / one.episodes:.1f}%"></i></span></td></tr>'
        for one in shares
    )
    return (
        '<section><h2>Success by scenario</h2><div class="scroll"><table><thead><tr><th>scenario</th><th>success</th>'
        f'<th>episodes</th><th class="wide-only"></th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )
