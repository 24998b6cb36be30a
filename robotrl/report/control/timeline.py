"""Timeline of a control log as inline SVG: one row per episode, colored by what became of the policy's action."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robotrl.deploy.analysis.ticks import ControlTicks, LoggedEpisode
from robotrl.deploy.control.safety import Mode
from robotrl.report.histogram import short, ticks
from robotrl.report.text import esc

MOST_ROWS = 40
"""A longer log's page shows the episodes with interventions first."""
STATES = ("mode-active", "mode-changed", "mode-hold", "mode-damp")
"""CSS classes of the states of a tick."""
STATE_NAMES = ("sent as it was", "changed: clamped, blended in or rate limited", "held", "damped")
_ROW, _BAR, _TOP, _AXIS = 24, 14, 8, 40


class StateSpan(NamedTuple):
    """Consecutive ticks of one state."""

    state: int
    first: int
    """First tick, in control periods from the start of the episode."""
    end: int
    """Tick after the last one."""


def tick_states(mode: np.ndarray, reason: np.ndarray) -> np.ndarray:
    """(N,) state of each tick, an index into `STATES`."""
    changed = (mode == Mode.ACTIVE) & (reason != 0)
    return np.where(mode == Mode.DAMP, 3, np.where(mode == Mode.HOLD, 2, changed.astype(np.int64)))


def state_spans(states: np.ndarray, tick: np.ndarray) -> list[StateSpan]:
    """Runs of equal states of one episode; a missed control period ends a run, and stays empty.

    Args:
        states: (n,) states of its ticks.
        tick: (n,) numbers of its ticks.
    """
    cuts = np.flatnonzero((np.diff(states) != 0) | (np.diff(tick) != 1)) + 1
    starts = [0, *cuts.tolist()]
    ends = [*cuts.tolist(), len(states)]
    return [StateSpan(int(states[a]), int(tick[a]), int(tick[b - 1]) + 1) for a, b in zip(starts, ends, strict=True)]


def shown_episodes(log: ControlTicks) -> list[LoggedEpisode]:
    """Episodes of the timeline, in order: all, or of a long log those with most bad ticks."""
    if len(log.episodes) <= MOST_ROWS:
        return list(log.episodes)
    bad = {e.number: int((log.mode[log.episode == e.number] != Mode.ACTIVE).sum()) for e in log.episodes}
    chosen = sorted(log.episodes, key=lambda e: -bad[e.number])[:MOST_ROWS]
    return sorted(chosen, key=lambda e: e.number)


def timeline(log: ControlTicks, width: int, css: str) -> str:
    """Timeline of the episodes of `shown_episodes`.

    Args:
        log: the log.
        width: in CSS pixels; the chart scales, but its text is legible at this width.
        css: extra CSS class of the chart.
    """
    episodes = shown_episodes(log)
    left, right = (64, width - 74) if width < 560 else (92, width - 84)
    seconds = (max(int(log.tick.max()), 1) + 1) * log.period_s
    height = _TOP + _ROW * len(episodes) + _AXIS
    floor = _TOP + _ROW * len(episodes)

    def x(at_s: float) -> float:
        return left + (right - left) * at_s / seconds

    body: list[str] = []
    for value in ticks(0.0, seconds, 4 if width < 560 else 8):
        body.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_TOP}" y2="{floor}"/>')
        body.append(
            f'<text class="tick" x="{x(value):.1f}" y="{floor + 16}" text-anchor="middle">{esc(short(value))}</text>'
        )
    states = tick_states(log.mode, log.reason)
    for row, episode in enumerate(episodes):
        top = _TOP + row * _ROW
        here = log.episode == episode.number
        label = f"{'' if width < 560 else 'episode '}{episode.number}"
        body.append(f'<text class="rowname" x="{left - 10}" y="{top + 12}" text-anchor="end">{label}</text>')
        for span in state_spans(states[here], log.tick[here]):
            x0, x1 = x(span.first * log.period_s), x(span.end * log.period_s)
            # a single tick must still be visible
            wide = max(x1 - x0, 2.0 if span.state else 0.5)
            about = f"{STATE_NAMES[span.state]}: ticks {episode.number}:{span.first} to {span.end - 1}"
            body.append(
                f'<rect class="{STATES[span.state]}" x="{x0:.2f}" y="{top + 1}" width="{wide:.2f}" height="{_BAR}">'
                f"<title>{esc(about)}</title></rect>"
            )
        text, kind = _end(episode)
        body.append(f'<text class="rowend {kind}" x="{right + 10}" y="{top + 12}">{text}</text>')
    body.append(
        f'<text class="axis" x="{(left + right) / 2:.0f}" y="{height - 6}" text-anchor="middle">'
        "time in the episode, s</text>"
    )
    return (
        f'<svg class="chart {css}" viewBox="0 0 {width} {height}" role="img" aria-label="Timeline of the episodes">'
        + "".join(body)
        + "</svg>"
    )


def _end(episode: LoggedEpisode) -> tuple[str, str]:
    if episode.success is None:
        return "no end", "fail"
    return ("success", "ok") if episode.success else ("failed", "fail")
