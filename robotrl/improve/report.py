"""Text lines, JSON values and the page of an improvement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robotrl.fn.evidence.sequential import intervals
from robotrl.fn.stats import wilson
from robotrl.improve.films import FilmedStart
from robotrl.improve.holdings import Holdings, StartElement
from robotrl.improve.refusals import LEAST_AUC, LEAST_RANK
from robotrl.improve.state import ImproveState, RoundRecord
from robotrl.improve.target import Target
from robotrl.report.compare.curves import ArmCurve, ArmPoint
from robotrl.report.improve.page import (
    GatePart,
    HoldingsPart,
    ImprovePage,
    RolloutPair,
    RoundRow,
    StartRow,
    ThirdCell,
    render_improvement,
)
from robotrl.report.text import number, percent

POINTS = 60
"""Points of a curve, about."""
SHOWN = 6
"""Rows of the table of starts, and elements that are named."""
NAMED = 5
"""Starts that are named."""


def verdict_words(state: ImproveState) -> str:
    """The result in one sentence."""
    if state.improved:
        return f"The new policy is better: {state.bundle or state.policy}."
    return "No change: the policy stays as it is."


def why_words(state: ImproveState) -> str:
    """Reason of the result in one sentence: the first fault of the logs, or what came of the last round."""
    if state.faults:
        return str(state.faults[0]["text"])
    accepted = [record for record in state.rounds if record.accepted]
    return (accepted[-1] if accepted else state.last).why


def lines(state: ImproveState, held: Holdings | None) -> list[str]:
    """Result as text for the terminal."""
    out = [f"logs: {_holding_words(held)}"] if held is not None else []
    out += [f"left out: {count} {_episodes(count)}, {why}" for why, count in state.left_out.items()]
    if state.checked.get("same"):
        count, other = state.checked["same"], state.checked["other"]
        out.append(f"outcomes: the sim tells those of {count} {_episodes(count)} again, {other} not")
    out += [f"note: {note}" for note in state.notes]
    for record in state.rounds:
        out.append(f"round {record.number}: {record.episodes} episodes, {record.successes} successes{_critic(record)}")
        if record.gate is not None:
            out += [f"  {name}: {text}" for name, text in record.gate["sides"].items()]
        out.append(f"  {'accepted' if record.accepted else 'no change'}: {record.why}")
    if state.faults:
        out += [f"fault, {fault['kind']}: {fault['text']}" for fault in state.faults]
    return [*out, f"result: {verdict_words(state)[:-1]}"]


def to_json(state: ImproveState, held: Holdings | None) -> dict[str, Any]:
    """Result as JSON values."""
    return {
        "outcome": "improved" if state.improved else "no change",
        "why": why_words(state),
        "policy": state.policy,
        **{name: value for name, value in state._asdict().items() if name not in ("stage", "policy", "rounds")},
        "rounds": [{**record._asdict(), "accepted": record.accepted} for record in state.rounds],
        "holdings": None if held is None else _plain(held),
    }


def page(
    state: ImproveState,
    target: Target,
    held: Holdings | None,
    films: Sequence[FilmedStart] = (),
    command: str = "",
) -> str:
    """HTML page: one file that needs no server, no network and no other file."""
    settings = state.settings
    logs = ", ".join(Path(path).name for path in settings["logs"]) or "episodes of its own sim"
    why = _capital(why_words(state))
    shown = ("method", "rounds", "collect_episodes", "split", "detect", "seed", "sim", "options", "settings")
    return render_improvement(
        ImprovePage(
            verdict=verdict_words(state),
            lede=f"{target.given} on {target.sim}, from {logs}, by the method {settings['method']}. {why}.",
            notes=[fault["text"] for fault in state.faults] or list(state.notes),
            faulty=bool(state.faults),
            holdings=None if held is None else holdings_part(held, state),
            critic=critic_sentences(state),
            rounds=[_round_row(record) for record in state.rounds],
            gates=[gate_part(record) for record in state.rounds if record.gate is not None],
            rollouts=[
                RolloutPair(f"start {film.start}: only the candidate succeeds", film.before, film.candidate)
                for film in films
            ],
            settings={name: str(settings[name]) for name in shown if settings[name] not in (None, {}, [])},
            command=command,
        )
    )


def holdings_part(held: Holdings, state: ImproveState) -> HoldingsPart:
    """Holdings for the page."""
    rate = held.success
    facts = {
        "episodes": f"{held.episodes:,}, {held.frames:,} steps",
        "success": f"{percent(rate.value)} (95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %)",
        "corrected by a person": f"{held.corrected:,} episodes, {percent(held.person_share)} of the steps",
        "different starts": f"{held.starts:,}" if held.starts else "without numbers",
        **{f"left out: {why}": f"{count:,}" for why, count in state.left_out.items()},
    }
    if state.checked:
        facts["outcomes told again by the sim"] = f"{state.checked['same']:,} of {sum(state.checked.values()):,}"
    known = held.departures_s[~np.isnan(held.departures_s)]
    return HoldingsPart(
        facts=facts,
        success_s=held.success_s,
        failure_s=held.failure_s,
        starts=[_start_row(element) for element in held.elements[:SHOWN]],
        departures_s=known,
        departures=departure_words(held),
        visited=visited_words(held),
    )


def departure_words(held: Holdings) -> str:
    """Sentence on the failures that left the way of the successes."""
    count, known = len(held.departures_s), held.departures_s[~np.isnan(held.departures_s)]
    if not count:
        return "there is no failure"
    if not len(known):
        return f"none of {count} failures went far from all successes"
    middle = float(np.median(known))
    return (
        f"{len(known)} of {count} failures left the way of the successes, half of them within {middle:.2g} s;"
        f" {count - len(known)} never did"
    )


def visited_words(held: Holdings) -> str:
    """Sentence on the coverage of the observations."""
    if not held.visited:
        return "no observation has finite bounds to compare with"
    shares = [element.share for element in held.visited]
    least = ", ".join(f"{element.name} {percent(element.share)}" for element in held.visited[:3])
    return (
        f"the episodes visited {percent(float(np.median(shares)))} of an element's bounds in the median of"
        f" {len(shares)} elements; least of {least}"
    )


def critic_sentences(state: ImproveState) -> list[str]:
    """Sentences on the critics of all rounds; one on the method if it has none."""
    ranked = [record for record in state.rounds if record.critic is not None]
    if not ranked:
        fitted = any(record.candidate is not None for record in state.rounds)
        return [f"the method {state.settings['method']} has no critic"] if fitted else []
    return [
        f"round {record.number}: on {record.critic['episodes']} held-out episodes the rank correlation of its values"
        f" with the outcomes is {_figure(record.critic['rank'])} (needed {LEAST_RANK:g}); they tell successes from"
        f" failures with an AUC of {_figure(record.critic['auc'])} (needed {LEAST_AUC:g}, chance is 0.5)"
        f"{_belief(record.critic['gain'])}"
        for record in ranked
        if record.critic is not None
    ]


def gate_part(record: RoundRecord) -> GatePart:
    """The gate of a round for the page."""
    gate = record.gate
    assert gate is not None
    verdict = gate["verdict"]
    title = f"Gate of round {record.number}: {gate['outcome']}"
    if verdict is None or verdict["score"] != "success":
        return GatePart(title, record.why, gate["sides"], None, ())
    before, after = (np.array(side["success"][0], np.float64) for side in verdict["sides"][:2])
    apart = after - before
    ends = 100 * intervals(apart, verdict["detect"], verdict["alpha"])
    mean = 100 * np.cumsum(apart) / np.arange(1, len(apart) + 1)
    step = math.ceil(len(apart) / POINTS)
    at = sorted({*range(step - 1, len(apart), step), len(apart) - 1})
    curve = ArmCurve(
        "candidate less before",
        [ArmPoint(i + 1, float(mean[i]), float(ends[i, 0]), float(ends[i, 1]), 1, True) for i in at],
    )
    return GatePart(title, record.why, gate["sides"], curve, _agreement(verdict["starts"], before, after))


def won_starts(record: RoundRecord) -> list[int]:
    """Starts on which only the candidate succeeded, in their order."""
    verdict = None if record.gate is None else record.gate["verdict"]
    if verdict is None:
        return []
    before, after = (side["success"][0] for side in verdict["sides"][:2])
    return [start for start, a, b in zip(verdict["starts"], before, after, strict=True) if b > a]


def _agreement(starts: Sequence[int], before: np.ndarray, after: np.ndarray) -> list[tuple[str, int, str]]:
    rows = (
        ("only the candidate succeeds", after > before),
        ("only the policy of before succeeds", before > after),
        ("both succeed", (before > 0) & (after > 0)),
        ("both fail", (before == 0) & (after == 0)),
    )
    out: list[tuple[str, int, str]] = []
    for about, where in rows:
        named = [str(start) for start, here in zip(starts, where.tolist(), strict=True) if here]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        out.append((about, len(named), ", ".join(named[:NAMED]) + more))
    return out


def _start_row(element: StartElement) -> StartRow:
    cells = [
        ThirdCell(
            f"{number(third.low)} to {number(third.high)} {element.unit}",
            third.success.value,
            third.success.low,
            third.success.high,
        )
        for third in element.thirds
    ]
    return StartRow(element.name, cells, element.is_clear)


def _round_row(record: RoundRecord) -> RoundRow:
    rate = wilson(record.successes, record.episodes).value if record.episodes else 0.0
    critic = "none" if record.critic is None else _critic_words(record.critic)
    gate = record.gate["outcome"] if record.gate is not None else "not reached"
    refused = "" if record.refusal is None else f": {record.refusal['kind']}"
    return RoundRow(
        str(record.number),
        f"{record.episodes:,}, {percent(rate)} successes",
        critic,
        gate + refused,
        "the candidate" if record.accepted else "as before",
        record.accepted,
    )


def _critic(record: RoundRecord) -> str:
    if record.critic is None:
        return ""
    return f"; critic on {record.critic['episodes']} held-out episodes: {_critic_words(record.critic)}"


def _critic_words(critic: dict[str, Any]) -> str:
    return f"AUC {_figure(critic['auc'])}, rank {_figure(critic['rank'])}"


def _belief(gain: float | None) -> str:
    return "" if gain is None else f". It believes its choices to be worth {gain:+.3f} more than the mean sample"


def _figure(value: float | None) -> str:
    """A figure, or that there is none, for outcomes that are all alike."""
    return "unknown" if value is None else f"{value:.2f}"


def _holding_words(held: Holdings) -> str:
    rate = held.success
    text = (
        f"{held.episodes:,} episodes, {held.frames:,} steps; success {percent(rate.value)} (95 % interval"
        f" {100 * rate.low:.1f} to {100 * rate.high:.1f} %)"
    )
    return f"{text}, {held.corrected} corrected by a person" if held.corrected else text


def _plain(held: Holdings) -> dict[str, Any]:
    times = {"success_s": held.success_s.tolist(), "failure_s": held.failure_s.tolist()}
    departures = [None if math.isnan(value) else value for value in held.departures_s.tolist()]
    elements = [
        {
            "name": element.name,
            "unit": element.unit,
            "thirds": [{**third._asdict(), "success": third.success._asdict()} for third in element.thirds],
        }
        for element in held.elements
    ]
    return {
        **held._asdict(),
        "success": held.success._asdict(),
        **times,
        "departures_s": departures,
        "elements": elements,
        "visited": {element.name: element.share for element in held.visited},
    }


def _episodes(count: int) -> str:
    return "episode" if count == 1 else "episodes"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
