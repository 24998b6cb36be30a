"""Vision-language-action policies on the tabletop: cloned, fine-tuned, and judged as deployed.

A cell lets a small policy look and read in the frames of 1,000 demonstrations of three families of instructions and in
scenes of its own, clones some of the demonstrations, fine-tunes the clone, and judges both on 256 starts that nothing
else saw (split `test`), once with compositions of words that training said, once with those that it never said. Five
ways to fine-tune start from the same weak clone of 150 demonstrations, of which a clone of all 1,000 teaches one; two
from a clone that seldom succeeds; one from a clone of 300. Two are for policies that flow, from clones of their own.
What comes before fine-tuning is made once for each seed, and kept beside the cells. Another cell measures how fast
tokens are said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.kit.cells import EVALUATED, OUT, Cell, CellResult
from benchmarks.kit.columns import column, count, percent, seconds, spread, steps_to
from benchmarks.kit.curves import by_cost, svg
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.runner import number

DESCRIPTION = "what fine-tuning adds to small vision-language-action policies, three seeds; tokens said per second"
PEERS: dict[str, str] = {}
SIM = "mujoco/tabletop"
SEEDS = (0, 1, 2)
DEMOS, FEW = 1000, 150
"""Demonstrations: all, and what a weak policy clones; what it gets wrong, it then gets wrong in all scenes alike."""
VAL = 192
"""Starts of each evaluation on the way, all at once."""
NOISE = 0.05
"""Of the demonstrator's actions."""
DECODE = "decode"
RECIPE = 2
"""Raised where a preset of several methods or of what comes before them changes."""


class Stages(NamedTuple):
    """What is trained before fine-tuning, one from the other: ends of presets' names."""

    label: str
    """Of the kind of policy, in names of folders."""
    look: str
    read: str
    clone: str
    bf16: bool
    """Whether all this learns in bfloat16 where the processor has units for it: no success lost (docs/vla-study.md).
    Fine-tuning does not: by reward it then gains less."""


class Clone(NamedTuple):
    """How a policy is cloned."""

    demos: int
    """Demonstrations."""
    updates: int
    """Gradient steps."""


class Method(NamedTuple):
    """One row of the table."""

    label: str
    stages: Stages
    """What comes before."""
    clone: Clone
    tune: str
    """What it is fine-tuned with: the end of a preset's name."""
    teacher: Clone | None = None
    """The clone that teaches."""
    changes: tuple[str, ...] = ()
    """Settings of the clone that fine-tuning changes."""
    lr_end: float = 1.0
    """The part of its learning rate that fine-tuning ends with."""
    recipe: int = RECIPE
    """Raised where its preset changes alone."""


TOKEN = Stages("token", "look", "read", "bc-token", bf16=False)
FLOW = Stages("flow", "look-flow", "read-flow", "bc-flow", bf16=True)
COLD = ("temperature=0.5",)
"""For draws that last, which lead further."""
WEAK = Clone(FEW, 600)
RARE = Clone(FEW, 400)
"""Seldom succeeds."""
BETTER = Clone(300, 800)
FLOWN = Clone(DEMOS, 1000)
"""As weak as `WEAK`, of all demonstrations."""
FLOWN_BETTER = Clone(DEMOS, 1250)
METHODS = {
    "grpo": Method("token VLA, GRPO", TOKEN, WEAK, "grpo", changes=COLD),
    "grpo-return": Method("token VLA, GRPO on the sim's reward", TOKEN, WEAK, "grpo-return", changes=COLD),
    "grpo-return-better": Method(
        "token VLA, GRPO on the sim's reward, better clone, rate falling",
        TOKEN,
        BETTER,
        "grpo-return",
        changes=COLD,
        lr_end=0.1,
    ),
    "srpo": Method("token VLA, SRPO by its own sight", TOKEN, WEAK, "srpo", changes=COLD),
    "srpo-places": Method("token VLA, SRPO by where things are", TOKEN, WEAK, "srpo-places", changes=COLD),
    "grpo-rare": Method("token VLA that seldom succeeds, GRPO", TOKEN, RARE, "grpo", changes=COLD),
    "srpo-rare": Method(
        "token VLA that seldom succeeds, SRPO by where things are", TOKEN, RARE, "srpo-places", changes=COLD
    ),
    "opd": Method("token VLA, taught by a better clone", TOKEN, WEAK, "opd", Clone(DEMOS, 1200)),
    "flow-grpo": Method(
        "flow VLA, Flow-GRPO on the sim's reward, rate falling",
        FLOW,
        FLOWN_BETTER,
        "flow-grpo",
        lr_end=0.3,
        recipe=3,
    ),
    "reinflow": Method("flow VLA, ReinFlow", FLOW, FLOWN, "reinflow"),
}
BINARY = {WEAK: "grpo", RARE: "grpo-rare"}
"""What learns from success alone from a clone; the steps of all that start from the same clone are compared."""
LEVEL = 0.9
"""Steps are told up to this share of the success that GRPO from the same clone ends with."""


def cells(quick: bool) -> list[Cell]:
    """The table: every method on every seed, and the decoding; `quick` is seed 0."""
    table = [_cell(name, seed) for seed in (SEEDS[:1] if quick else SEEDS) for name in METHODS]
    return [*table, Cell(DECODE, SIM, 0, ("python", "-m", "benchmarks.vla.decode", OUT), "result.json", 5)]


def _cell(method: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.vla.cell", method, str(seed), OUT)
    return Cell(
        method, SIM, seed, command, "result.json", revision=METHODS[method].recipe, goes_on=True, rule=EVALUATED
    )


# from cells to figures


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """For each method: success before and after, on instructions that were said in training and on others, and what it
    took; and how fast tokens are said."""
    figures: dict[str, Figure] = {}
    for cell in results:
        if cell["method"] == DECODE:
            figures |= {key: Figure.from_json(value) for key, value in cell["result"].items()}
    for name, method in METHODS.items():
        figures |= _method_figures(results, name, _level(results, method.clone))
    return figures


def _level(results: Sequence[CellResult], clone: Clone) -> float | None:
    """The success that counts as reached by what starts from a clone; None where nothing is raced from it."""
    found = column(results, BINARY[clone], SIM, "success", "value") if clone in BINARY else {}
    return LEVEL * sum(found.values()) / len(found) if found else None


def _method_figures(results: Sequence[CellResult], name: str, level: float | None) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for which in ("", "held_out_"):
        after = column(results, name, SIM, f"{which}success", "value")
        before = column(results, name, SIM, f"{which}base", "value")
        if after:
            figures[f"{name}_{which}success"] = spread(after, "success", "")
            figures[f"{name}_{which}base"] = spread(before, "success", "the clone")
            gain = {seed: after[seed] - before[seed] for seed in after}
            figures[f"{name}_{which}gain"] = spread(gain, "success", "difference, by seed")
    for key, unit in (
        ("env_steps", "env steps"),
        ("train_s", "s"),
        ("clone_s", "s"),
        ("ratio_error", "largest difference of the first ratio from 1"),
        ("peak_memory_mib", "MiB"),
        ("teacher", "success"),
    ):
        if values := column(results, name, SIM, *((key, "value") if key == "teacher" else (key,))):
            figures[f"{name}_{key}"] = spread(values, unit, "")
    if level is not None:
        found = {
            int(cell["seed"]): steps_to(cell["result"]["curve"], level, "env_steps")
            for cell in results
            if cell["method"] == name
        }
        reached = {seed: steps for seed, steps in found.items() if steps is not None}
        if reached:
            note = f"to {100 * level:.0f} % success, {len(reached)} of {len(found)} seeds reached it"
            figures[f"{name}_env_steps_to_level"] = spread(reached, "env steps", note)
    return figures


def pictures(document: Mapping[str, Any]) -> dict[str, bytes]:
    """Success against env steps and against training time: file name to SVG."""
    results = list(document["cells"].values())
    rows = []
    for title, rare in ((SIM, False), (f"{SIM}, clones that seldom succeed", True)):
        curves = {
            method.label: [cell["result"]["curve"] for cell in results if cell["method"] == name]
            for name, method in METHODS.items()
            if (method.clone == RARE) == rare
        }
        curves = {label: found for label, found in curves.items() if found}
        if curves:
            rows.append(by_cost(title, curves, "seconds of fine-tuning", VAL))
    return {"vla.svg": svg(rows)} if rows else {}


def table(document: Mapping[str, Any]) -> str:
    """Markdown: a row a method; then how fast tokens are said."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    head = (
        "method",
        "clone",
        "fine-tuned",
        "held-out words: clone",
        "fine-tuned",
        "env steps",
        "time",
        f"to {100 * LEVEL:.0f} % of GRPO",
        "seeds",
    )
    lines = table_head(head)
    for name, method in METHODS.items():
        success = figures.get(f"{name}_success")
        if success is None:
            continue
        reached = figures.get(f"{name}_env_steps_to_level")
        row = (
            method.label,
            percent(figures.get(f"{name}_base")),
            f"**{percent(success)}**",
            percent(figures.get(f"{name}_held_out_base")),
            f"**{percent(figures.get(f'{name}_held_out_success'))}**",
            count(figures.get(f"{name}_env_steps")),
            seconds(figures.get(f"{name}_train_s")),
            _reached(reached, success.runs, method.clone in BINARY),
            str(success.runs),
        )
        lines.append(table_row(row))
    speeds = [figure for key, figure in figures.items() if key.startswith(f"{DECODE}_")]
    return "\n".join([*lines, *(["", *speed_rows(speeds)] if speeds else [])])


def _reached(steps: Figure | None, seeds: int, raced: bool) -> str:
    """Steps to the level, and how many seeds got there where not all of them did."""
    if steps is None:
        return "not reached" if raced else ""
    return count(steps) if steps.runs == seeds else f"{count(steps)} ({steps.runs} of {seeds} seeds)"


def speed_rows(figures: Sequence[Figure]) -> list[str]:
    """Lines of the table of decoding."""
    lines = table_head(("tokens one after the other", "ours", "`transformers.generate`", "times"))
    for figure in figures:
        ratio = f"{number(figure.ratio)} ({number(figure.ratio_low)} to {number(figure.ratio_high)})"
        rates = f"{number(figure.value)} a second", number(figure.peer_value), ratio
        lines.append(table_row((figure.note, *rates)))
    return lines


def seeds(document: Mapping[str, Any]) -> str:
    """Markdown: a row a cell, with the intervals of its judgements and its success on the way."""
    head = ("method", "seed", "clone", "fine-tuned", "held-out words", "env steps", "time", f"on {VAL} `val` starts")
    lines = table_head(head)
    found = sorted(document["cells"].values(), key=lambda cell: int(cell["seed"]))
    for name, method in METHODS.items():
        for cell in (cell for cell in found if cell["method"] == name):
            result = cell["result"]
            row = (
                method.label,
                str(cell["seed"]),
                _whole(result["base"]),
                f"**{_whole(result['success'])}**",
                f"{_percent(result['held_out_base']['value'])} to {_whole(result['held_out_success'])}",
                count(Figure(result["env_steps"], "env steps")),
                f"{result['train_s'] / 60:.0f} min",
                ", ".join(str(_percent(point["success"])) for point in result["curve"]) + " %",
            )
            lines.append(table_row(row))
    return "\n".join(lines)


def _whole(share: Mapping[str, float]) -> str:
    """A share with its interval, in whole percent."""
    value, low, high = (_percent(share[name]) for name in ("value", "low", "high"))
    return f"{value} ({low} to {high}) %"


def _percent(share: float) -> int:
    """Halves are rounded up."""
    return math.floor(100 * share + 0.5)


PARTS = {"seeds": seeds}
"""Other tables of the results; see `readme`."""
