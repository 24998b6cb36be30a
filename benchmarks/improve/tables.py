"""Figures and tables of the cells of `benchmarks.improve.plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.improve.plan import (
    CLASS_TASK,
    CLASSES,
    FILTER,
    FILTER_ARMS,
    FILTER_TASK,
    LOG_ONLY,
    LOG_ONLY_TASK,
    PLANTED,
    ROUNDS,
    class_method,
    log_only_method,
)
from benchmarks.kit.cells import CellResult
from benchmarks.kit.columns import column, percent, spread
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row

CONDITION = {
    "on": "condition on",
    "off": "condition off (negative)",
    "dropped": "condition dropped",
    "positives": "clone of the positives",
}
"""Policies of the last candidate of RECAP, with their column titles."""
MINUTE_S = 60.0
Figures = dict[str, Figure]
Found = Mapping[str, Figure]


def further_figures(results: Sequence[CellResult]) -> Figures:
    """Figures of all kinds of cells beside one round of PA-RL."""
    return {
        **_rounds(results),
        **_classes(results),
        **_filter(results),
        **_planted(results),
        **_log_only(results),
    }


# rounds


def _rounds(results: Sequence[CellResult]) -> Figures:
    out: Figures = {}
    for name, plan in ROUNDS.items():
        for task in plan.tasks:
            rows = {
                int(c["seed"]): c["result"] for c in results if (c["method"], c["task"]) == (name, f"mujoco/{task}")
            }
            if not rows:
                continue
            key = f"{name}_{task}"
            out[f"{key}_base"] = spread({seed: row["base"]["value"] for seed, row in rows.items()}, "success", "")
            for place in range(plan.rounds):
                values = {seed: row["rounds"][place]["policy"]["value"] for seed, row in rows.items()}
                out[f"{key}_round_{place + 1}"] = spread(values, "success", "the policy that stays")
            gains = {seed: _by_round(row, _gain) for seed, row in rows.items()}
            out[f"{key}_least_gain"] = spread(
                {seed: min(found) for seed, found in gains.items()}, "success", "smallest gain of a round, by seed"
            )
            out[f"{key}_most_fall"] = spread(
                {seed: max(0.0, *_by_round(row, _fall)) for seed, row in rows.items()},
                "success",
                "largest fall of a candidate below the policy of its round, by seed",
            )
            out[f"{key}_accepted"] = Figure(
                float(sum(one["accepted"] for row in rows.values() for one in row["rounds"])),
                "rounds",
                runs=plan.rounds * len(rows),
                note="rounds whose candidate was accepted",
            )
            longest = {seed: max(_by_round(row, lambda one: float(one["seconds"]))) for seed, row in rows.items()}
            out[f"{key}_longest_s"] = spread(longest, "s", "longest round, by seed")
            out |= _condition(rows, key)
    return out | _over_successes(results)


def _by_round(result: Mapping[str, Any], value: Callable[[Mapping[str, Any]], float]) -> list[float]:
    return [value(one) for one in result["rounds"]]


def _gain(one: Mapping[str, Any]) -> float:
    return one["policy"]["value"] - one["before"]["value"]


def _fall(one: Mapping[str, Any]) -> float:
    """Success of the policy of the round less that of its candidate; 0 without one."""
    return 0.0 if one["candidate"] is None else one["before"]["value"] - one["candidate"]["value"]


def _condition(rows: Mapping[int, Mapping[str, Any]], key: str) -> Figures:
    found = {seed: row["condition"] for seed, row in rows.items() if row.get("condition")}
    if not found:
        return {}
    out = {
        f"{key}_{arm}": spread({seed: one[arm]["value"] for seed, one in found.items()}, "success", title)
        for arm, title in CONDITION.items()
    }
    for other in ("off", "positives"):
        apart = {seed: one["on"]["value"] - one[other]["value"] for seed, one in found.items()}
        out[f"{key}_over_{other}"] = spread(apart, "success", f"condition on less {CONDITION[other]}, by seed")
    return out


def _over_successes(results: Sequence[CellResult]) -> Figures:
    out: Figures = {}
    for task in ROUNDS["pa-rl-3"].tasks:
        found, other = (
            column(results, name, f"mujoco/{task}", "success", "value") for name in ("pa-rl-3", "successes-3")
        )
        apart = {seed: value - other[seed] for seed, value in found.items() if seed in other}
        if apart:
            note = "PA-RL less clone of the successes, three rounds each, by seed"
            out[f"pa-rl-3_{task}_over_successes"] = spread(apart, "success", note)
    return out


def rounds_table(document: Mapping[str, Any]) -> str:
    """Markdown table: a row for each method and task that went through rounds."""
    found = _found(document)
    most = max(plan.rounds for plan in ROUNDS.values())
    after = [f"after round {number}" for number in range(1, most + 1)]
    head = ("rounds", "task", "episodes a round", "clone", *after, "smallest gain of a round", "largest fall")
    out = table_head((*head, "accepted", "longest round", "seeds"))
    for name, plan in ROUNDS.items():
        for task in plan.tasks:
            key = f"{name}_{task}"
            if f"{key}_base" not in found:
                continue
            accepted, longest = found[f"{key}_accepted"], found[f"{key}_longest_s"]
            numbers = (f"{key}_base", *(f"{key}_round_{number}" for number in range(1, most + 1)))
            out.append(
                table_row(
                    (
                        *(plan.label, f"`mujoco/{task}`", str(plan.episodes)),
                        *(percent(found.get(number)) for number in numbers),
                        *(percent(found[f"{key}_{number}"]) for number in ("least_gain", "most_fall")),
                        f"{accepted.value or 0:.0f} of {accepted.runs}",
                        f"{(longest.value or 0) / MINUTE_S:.1f} min",
                        str(longest.runs),
                    )
                )
            )
    return _text(out)


def condition_table(document: Mapping[str, Any]) -> str:
    """Markdown table: the last candidate of RECAP by its condition, and the clone of the positives."""
    found = _found(document)
    out = table_head((*CONDITION.values(), "on less off", "on less the clone of the positives", "seeds"))
    for name, plan in ROUNDS.items():
        for key in (f"{name}_{task}" for task in plan.tasks):
            if f"{key}_on" in found:
                values = [percent(found[f"{key}_{arm}"]) for arm in (*CONDITION, "over_off", "over_positives")]
                out.append(table_row((*values, str(found[f"{key}_on"].runs))))
    return _text(out)


# classes of policies

CLASS_ARMS = {"base": "the clone", "successes": "clone of its successes", "best_of": "best of 16", "pa_rl": "PA-RL"}


def _classes(results: Sequence[CellResult]) -> Figures:
    out: Figures = {}
    for kind in CLASSES:
        method, sim = class_method(kind), f"mujoco/{CLASS_TASK}"
        arms = {arm: column(results, method, sim, arm, "value") for arm in CLASS_ARMS}
        if not arms["pa_rl"]:
            continue
        out |= {f"{method}_{arm}": spread(values, "success", CLASS_ARMS[arm]) for arm, values in arms.items()}
        gain = {seed: value - arms["base"][seed] for seed, value in arms["pa_rl"].items()}
        out[f"{method}_gain"] = spread(gain, "success", "PA-RL less the clone, by seed")
    return out


def classes_table(document: Mapping[str, Any]) -> str:
    """Markdown table: a row for each class of policies."""
    found = _found(document)
    out = table_head(("policy", *CLASS_ARMS.values(), "gain", "seeds"))
    for kind, one in CLASSES.items():
        method = class_method(kind)
        if f"{method}_gain" in found:
            values = [percent(found[f"{method}_{arm}"]) for arm in (*CLASS_ARMS, "gain")]
            out.append(table_row((one.label, *values, str(found[f"{method}_gain"].runs))))
    return _text(out)


# filter

_FILTER_SHARES = {
    "auc": ("AUC", "planted frames by the loss of progress after them"),
    "dropped": ("share", "frames that the filter drops"),
    "found": ("share", "planted frames that the filter drops"),
    "time_rank": ("rank correlation", "progress with time in held-out episodes without a planted mistake"),
}


def _filter(results: Sequence[CellResult]) -> Figures:
    sim = f"mujoco/{FILTER_TASK}"
    arms = {arm: column(results, FILTER, sim, arm, "value") for arm in FILTER_ARMS}
    if not arms["all"]:
        return {}
    out = {f"filter_{arm}": spread(values, "success", FILTER_ARMS[arm]) for arm, values in arms.items()}
    for arm in ("filtered", "random"):
        gain = {seed: value - arms["all"][seed] for seed, value in arms[arm].items()}
        out[f"filter_{arm}_gain"] = spread(gain, "success", f"{FILTER_ARMS[arm]}, less the clone of all, by seed")
    for name, (unit, note) in _FILTER_SHARES.items():
        if values := column(results, FILTER, sim, name):
            out[f"filter_{name}"] = spread(values, unit, note)
    return out


def filter_table(document: Mapping[str, Any]) -> str:
    """Markdown table: what the filter finds, and the clones with and without it."""
    found = _found(document)
    if "filter_all" not in found:
        return ""
    head = ("planted frames found, AUC", "rank of progress with time", "frames dropped", "planted ones dropped")
    out = table_head((*head, *FILTER_ARMS.values(), "filter gains", "random gains", "seeds"))
    values = [_number(found.get(f"filter_{name}")) for name in ("auc", "time_rank")]
    values += [percent(found.get(f"filter_{name}")) for name in ("dropped", "found")]
    values += [percent(found[f"filter_{arm}"]) for arm in (*FILTER_ARMS, "filtered_gain", "random_gain")]
    return "\n".join((*out, table_row((*values, str(found["filter_all"].runs)))))


# planted updates


def _planted(results: Sequence[CellResult]) -> Figures:
    tries = [one for cell in results if cell["method"] == PLANTED for one in cell["result"]["tries"]]
    out: Figures = {}
    for kind in dict.fromkeys(("bad", "sham", *(f"{one['side']}, {one['kind']}" for one in tries))):
        found = [one for one in tries if kind in (one["side"], f"{one['side']}, {one['kind']}")]
        if not found:
            continue
        for name, note in (("accepted", "accepted"), ("at_gate", "that reached the gate")):
            count = float(sum(one[name] for one in found))
            out[f"planted_{kind}_{name}"] = Figure(count, "updates", runs=len(found), note=f"planted updates {note}")
        gains = [one["gain"] for one in found if one["gain"] is not None]
        if gains:
            out[f"planted_{kind}_gain"] = Figure(
                sum(gains) / len(gains),
                "success",
                runs=len(gains),
                low=min(gains),
                high=max(gains),
                note="mean over candidates of their success less that of the policy of before, lowest and highest",
            )
    return out


def planted_table(document: Mapping[str, Any]) -> str:
    """Markdown table: a row for all planted bad updates, all sham rounds, and each kind of both."""
    found = _found(document)
    out = table_head(("planted", "accepted", "reached the gate", "candidate less the policy of before"))
    for key in found:
        kind = key.removeprefix("planted_").removesuffix("_accepted")
        if key != f"planted_{kind}_accepted":
            continue
        accepted, reached = found[key], found[f"planted_{kind}_at_gate"]
        counts = [f"{one.value or 0:.0f} of {one.runs}" for one in (accepted, reached)]
        title = f"**{kind}**" if "," not in kind else kind
        out.append(table_row((title, *counts, percent(found.get(f"planted_{kind}_gain")))))
    return _text(out)


# log-only mode


def _log_only(results: Sequence[CellResult]) -> Figures:
    out: Figures = {}
    for name in LOG_ONLY:
        method, sim = log_only_method(name), f"mujoco/{LOG_ONLY_TASK}"
        success, base = (column(results, method, sim, arm, "value") for arm in ("success", "base"))
        if not success:
            continue
        out[f"{method}_success"] = spread(success, "success", "")
        out[f"{method}_gain"] = spread({seed: x - base[seed] for seed, x in success.items()}, "success", "by seed")
        if seconds := column(results, method, sim, "learn_s"):
            out[f"{method}_learn_s"] = spread(seconds, "s", "")
    return out


WAYS = {
    "improve": "`robotrl improve`",
    "offline": "the clone's episodes",
    "online": "its own episodes",
}


def log_only_table(document: Mapping[str, Any]) -> str:
    """Markdown table: a row for each method in log-only mode, the best one first."""
    found = _found(document)
    there = [name for name in LOG_ONLY if f"{log_only_method(name)}_success" in found]
    there.sort(key=lambda name: -(found[f"{log_only_method(name)}_success"].value or 0.0))
    out = table_head(("method", "learns from", "success", "over the clone", "time", "seeds"))
    for name in there:
        method, one = log_only_method(name), LOG_ONLY[name]
        success, seconds = found[f"{method}_success"], found.get(f"{method}_learn_s")
        took = "" if seconds is None or seconds.value is None else f"{seconds.value / MINUTE_S:.1f} min"
        gain = percent(found[f"{method}_gain"])
        out.append(table_row((one.label, WAYS[one.way], percent(success), gain, took, str(success.runs))))
    return _text(out)


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "rounds": rounds_table,
    "condition": condition_table,
    "classes": classes_table,
    "filter": filter_table,
    "planted": planted_table,
    "log-only": log_only_table,
}
"""Tables by the name of their part of the page."""


def _found(document: Mapping[str, Any]) -> Found:
    return {key: Figure.from_json(value) for key, value in document["figures"].items()}


def _text(lines: Sequence[str]) -> str:
    """Lines of a table; empty if it has no row."""
    return "\n".join(lines) if len(lines) > 2 else ""


def _number(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else f"{figure.value:.2f}"
