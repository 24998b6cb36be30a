"""HTML page of the fine-tuning report: sections, charts and the viewer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

from robotrl.report.charts import interval_bar, latency_histograms, learning_curve
from robotrl.report.data import Animation, Level, ReportData
from robotrl.report.pack import pack
from robotrl.report.reward_truth import reward_truth_section
from robotrl.report.text import count, esc, micros, percent, seconds, small
from robotrl.utils.files import replace_file

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content security policy: the page loads nothing from anywhere."""


def write_report(out: Path, data: ReportData) -> Path:
    """Write the report as one HTML file that needs no server, no network and no other file.

    Args:
        out: the file to write, e.g. `DIR/report.html`; its folder must exist. Replaced in one step.
        data: content; sections without data are left out.

    Returns:
        `out`.
    """
    replace_file(out, render(data).encode())
    return out


def render(data: ReportData) -> str:
    """Render the page as text."""
    style = resources.files("robotrl.report").joinpath("style.css").read_text(encoding="utf-8")
    sections = [
        _head(data),
        _curve(data),
        reward_truth_section(data.reward_truth),
        _rollouts(data.animation) if data.animation and data.animation.before else "",
        _success(data.levels),
        _control(data),
        _export(data.summary),
        _cost(data),
        _reproduce(data),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{esc(data.title)}: robotrl report</title>\n<style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def verdict(data: ReportData) -> str:
    """Main result in one sentence, as HTML; it claims a gain only if the intervals do not overlap."""
    clone, tuned = data.level("clone"), data.level("tuned")
    if clone is None or tuned is None:
        known = tuned or clone
        return f"{esc(known.label.capitalize())}: {percent(known.value)} success." if known else "No success rate yet."
    before = f'<span class="from">{percent(clone.value)}</span>'
    after = f'<span class="to">{percent(tuned.value)}</span>'
    if None in (clone.low, clone.high, tuned.low, tuned.high):
        return f"Success went from {before} (clone) to {after} (fine-tuned)."
    if cast(float, tuned.low) > cast(float, clone.high):
        return f"Reinforcement learning took the clone from {before} to {after} success."
    if cast(float, tuned.high) < cast(float, clone.low):
        return f"Fine-tuning made the clone worse: {before} before, {after} after."
    return f"No clear gain: {before} before fine-tuning, {after} after, and the intervals overlap."


def _get(values: Mapping[str, Any], *path: str) -> Any:
    """A nested value; None if any part of the path is absent."""
    found: Any = values
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = cast("Mapping[str, Any]", found).get(name)
    return found


def _head(data: ReportData) -> str:
    tuned = data.level("tuned")
    lede = esc(data.task)
    if tuned is not None and tuned.episodes is not None:
        lede += f" Measured on {tuned.episodes:,} held-out starts that neither training nor stopping saw."
    if tuned is not None and data.tuned_env_steps is not None:
        lede += f" Fine-tuned is the checkpoint after {data.tuned_env_steps:,} env steps, chosen on other starts."
    tiles: list[tuple[str, str]] = []
    steps, wall, memory = (_get(data.summary, key) for key in ("env_steps", "wall_s", "peak_memory_mib"))
    if steps is not None:
        tiles.append((count(steps), f"env steps of fine-tuning ({steps:,})"))
    if wall is not None:
        caption = "from nothing to this page"
        tiles.append((seconds(wall), caption + (f", {memory / 1024:.2f} GiB at most" if memory is not None else "")))
    p99, misses = _get(data.summary, "control", "lateness_us", "p99"), _get(data.summary, "control", "deadline_misses")
    if p99 is not None:
        rate = _get(data.summary, "control", "rate_hz")
        caption = f"late at most in 99 % of ticks{f' at {rate:g} Hz' if rate is not None else ''}"
        if misses is not None:
            caption += f", {misses:,} missed deadline{'' if misses == 1 else 's'}"
        tiles.append((micros(p99), caption))
    parity = _get(data.summary, "export", "parity_max_rel")
    if parity is not None:
        tiles.append((small(parity), "largest difference between policy and bundle, in action ranges"))
    boxes = "".join(
        f'<div class="tile"><b>{esc(value)}</b><span>{esc(caption)}</span></div>' for value, caption in tiles
    )
    return (
        f'<header><h1>{esc(data.title)}</h1><p class="verdict">{verdict(data)}</p><p class="lede">{lede}</p>'
        + (f'<div class="tiles">{boxes}</div>' if boxes else "")
        + "</header>"
    )


def _curve(data: ReportData) -> str:
    if not data.curve:
        return ""
    wide, narrow = (
        learning_curve(data.curve, data.levels, width, css, data.tuned_env_steps)
        for width, css in ((960, "wide"), (360, "narrow"))
    )
    note = data.curve_note or "Success at each periodic evaluation during fine-tuning."
    caption = f"{esc(note)} Bands and whiskers are 95 % intervals."
    return f"<section><h2>Learning curve</h2><p>{caption}</p>{wide}{narrow}</section>"


def _rollouts(animation: Animation) -> str:
    def view(side: str, index: int) -> str:
        ok = (animation.before if side == "before" else animation.after)[index].success
        sign, word = ("✓", "success") if ok else ("✗", "failed")
        label = animation.before_label if side == "before" else animation.after_label
        return (
            f'<div class="view"><canvas data-side="{side}" data-index="{index}"></canvas>'
            f'<div class="told"><span class="who {side}">{esc(label)}</span>'
            f'<span class="mark {"ok" if ok else "fail"}">{sign}<span class="wide-only"> {word}</span></span>'
            "</div></div>"
        )

    pairs = "".join(
        f'<figure class="pair"><div class="views">{view("before", i)}{view("after", i)}</div>'
        f"<figcaption>held-out start {start}</figcaption></figure>"
        for i, start in enumerate(animation.starts)
    )
    won = [sum(rollout.success for rollout in side) for side in (animation.before, animation.after)]
    caption = (
        f"The same {len(animation.starts)} held-out starts, {animation.before_label} on the left ({won[0]} succeed), "
        f"{animation.after_label} on the right ({won[1]} succeed). {animation.note}{' ' if animation.note else ''}"
        "Drag a picture to turn the view."
    )
    speeds = "".join(
        f'<option value="{speed}"{" selected" if speed == "1" else ""}>{speed} &times;</option>'
        for speed in ("0.25", "0.5", "1", "2")
    )
    payload = json.dumps(pack(animation), separators=(",", ":")).replace("<", "\\u003c")
    script = resources.files("robotrl.report").joinpath("viewer.js").read_text(encoding="utf-8")
    return (
        f"<section><h2>Before and after</h2><p>{esc(caption)}</p>"
        '<div class="controls"><button id="play" type="button">Play</button>'
        '<input id="scrub" type="range" min="0" value="0" aria-label="time"><span id="clock">0.0 s</span>'
        f'<select id="speed" aria-label="speed">{speeds}</select></div>'
        f'<div class="pairs">{pairs}</div><noscript><p>The animation needs JavaScript.</p></noscript></section>'
        f'<script type="application/json" id="rollouts">{payload}</script>\n<script>\n{script}</script>'
    )


def _success(levels: Sequence[Level]) -> str:
    if not levels:
        return ""
    rows = ""
    for level in levels:
        interval = "" if level.low is None or level.high is None else f"{percent(level.low)} to {percent(level.high)}"
        episodes = "" if level.episodes is None else f"{level.episodes:,}"
        rows += (
            f'<tr><td><span class="key {level.role}"></span>{esc(level.label)}</td>'
            f'<td class="n"><b>{percent(level.value)}</b></td><td class="n">{interval}</td>'
            f'<td class="n wide-only">{episodes}</td><td class="wide-only">{interval_bar(level)}</td></tr>'
        )
    return (
        '<section><h2>Success</h2><div class="scroll"><table><thead><tr><th>policy</th><th>success</th>'
        '<th>95 % interval</th><th class="wide-only">episodes</th><th class="wide-only">0 to 100 %</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _control(data: ReportData) -> str:
    control: Any = _get(data.summary, "control")
    series = [
        (label, samples)
        for label, samples in (("lateness of the tick", data.lateness_us), ("inference", data.inference_us))
        if len(samples)
    ]
    if not control and not series:
        return ""
    rate = _get(data.summary, "control", "rate_hz")
    rows: list[tuple[str, str]] = []
    if rate is not None:
        rows.append(("rate", f"{rate:g} Hz (a tick every {micros(1e6 / rate)})"))
    if len(data.lateness_us):
        rows.append(("ticks", f"{len(data.lateness_us):,}"))
    for key, label in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max")):
        value = _get(data.summary, "control", "lateness_us", key)
        if value is not None:
            rows.append((f"lateness {label}", micros(value)))
    if len(data.inference_us):
        ordered = sorted(data.inference_us)
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            rows.append((f"inference {label}", micros(ordered[min(int(share * len(ordered)), len(ordered) - 1)])))
    misses = _get(data.summary, "control", "deadline_misses")
    if misses is not None:
        rows.append(("missed deadlines", f"{misses:,}"))
    success = _get(data.summary, "control", "success")
    value, episodes = (
        _get(data.summary, "control", "success", "value"),
        _get(data.summary, "control", "success", "episodes"),
    )
    if value is not None:
        rows.append(("success in real time", percent(value) + (f" of {episodes:,} episodes" if episodes else "")))
    elif isinstance(success, int | float):
        rows.append(("success in real time", percent(success)))
    table = "".join(f'<tr><td>{esc(name)}</td><td class="n">{esc(value)}</td></tr>' for name, value in rows)
    period = 1e6 / rate if rate else None
    charts = ""
    if series:
        charts = latency_histograms(series, period, 560, "wide") + latency_histograms(series, period, 360, "narrow")
    return (
        "<section><h2>Real-time control</h2><p>The exported bundle, run by onnxruntime without torch, against a "
        "simulated robot that is a process of its own. Lateness is how long after its deadline a tick began.</p>"
        f'<div class="split"><div>{charts}</div><table><tbody>{table}</tbody></table></div></section>'
    )


def _export(summary: Mapping[str, Any]) -> str:
    samples, absolute, relative = (
        _get(summary, "export", key) for key in ("samples", "parity_max_abs", "parity_max_rel")
    )
    if absolute is None and relative is None:
        return ""
    caption = f"Over {samples:,} recorded observations the" if samples is not None else "The"
    parts = [
        f"<b>{small(value)}</b> {unit}"
        for value, unit in ((absolute, "in action units"), (relative, "of the action range"))
        if value is not None
    ]
    return (
        f"<section><h2>Export</h2><p>{caption} bundle's actions differ from the policy's by at most "
        f"{' and '.join(parts)}.</p></section>"
    )


def _cost(data: ReportData) -> str:
    wall, memory = _get(data.summary, "wall_s"), _get(data.summary, "peak_memory_mib")
    if not data.stages and wall is None and memory is None:
        return ""
    caption = [f"<b>{seconds(wall)}</b> in all"] if wall is not None else []
    if memory is not None:
        caption.append(f"<b>{memory:,.0f} MiB</b> of memory at most, all processes together")
    evaluations = _evaluations(data.summary)
    bars = "".join(f'<i style="flex:{max(taken, 0.001):.3f}" title="{esc(name)}"></i>' for name, taken in data.stages)
    names = "".join(
        f'<li><span class="key"></span>{esc(name)} <b>{seconds(taken)}</b></li>' for name, taken in data.stages
    )
    stages = f'<div class="stages">{bars}</div><ul class="legend">{names}</ul>' if data.stages else ""
    return f"<section><h2>Time and memory</h2><p>{', '.join(caption)}</p>{stages}{evaluations}</section>"


def _evaluations(summary: Mapping[str, Any]) -> str:
    """Share of the fine-tuning's time that its evaluations took, as a bar, and the setting that bounds it."""
    taken, share, bound = (_get(summary, "rl", "evaluations", key) for key in ("seconds", "share", "max_share"))
    if taken is None or share is None:
        return ""
    most = ""
    if bound is not None:
        most = f" evaluation.max_share bounds their share of all env steps to {percent(bound)}."
        most = most if bound < 1 else " evaluation.max_share is 1, no bound."
    return (
        f"<p>Of the fine-tuning's time, evaluations took <b>{percent(share)}</b> ({seconds(taken)}).{most}</p>"
        f'<div class="share" role="img" aria-label="{percent(share)} evaluations"><i style="width:{100 * share:.2f}%">'
        "</i></div>"
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)))
    return rows


def _reproduce(data: ReportData) -> str:
    body = f"<pre>{esc(data.command)}</pre>" if data.command else ""
    if data.seed is not None:
        body += f"<p>Seed {data.seed}.</p>"
    for name, values in (
        ("Settings", data.settings),
        ("Versions", data.versions),
        ("Machine", data.machine),
        ("Summary, as in summary.json", data.summary),
    ):
        if values:
            rows = "".join(
                f'<tr><td>{esc(key)}</td><td class="n">{esc(value)}</td></tr>' for key, value in _flat(values)
            )
            body += f"<details><summary>{name}</summary><table><tbody>{rows}</tbody></table></details>"
    return f"<section><h2>Make it again</h2>{body}</section>" if body else ""
