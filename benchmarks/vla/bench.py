"""Vision-language-action policies on the tabletop: cloned, fine-tuned, and evaluated as deployed.

A cell pretrains the vision encoder and the grounding of a small policy on the frames of 1,000 demonstrations of three
instruction families and on its own scenes, clones some of the demonstrations, fine-tunes the clone, and evaluates both
on 256 starts that nothing else used (split `test`): once with instructions that occurred in training, once with new
compositions of words. Five fine-tuning methods start from the same weak clone of 150 demonstrations, one of them with a
clone of all 1,000 as teacher; two from a clone that rarely succeeds; one from a clone of 300. Two are for flow
policies, from their own clones. The stages before fine-tuning are made once per seed and shared by the cells. Another
cell measures decoding speed.
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
"""Number of demonstrations: all, and those of a weak policy, whose errors are then the same in all scenes."""
VAL = 192
"""Number of parallel starts of each evaluation during training."""
NOISE = 0.05
"""Noise of the demonstrator's actions."""
DECODE = "decode"
RECIPE = 2
"""Revision of the cells; raise it when a preset of several methods or of the stages changes."""


class Stages(NamedTuple):
    """Training stages before fine-tuning, each from the one before; see `benchmarks.vla.stages.RECIPES`."""

    label: str
    """Kind of policy, for folder names."""
    look: str
    read: str
    clone: str
    bf16: bool
    """True if these stages use bfloat16 where the processor has it; it costs no success (docs/notes/vla-study.md).
    Fine-tuning does not: with it, reinforcement learning gains less."""


class Clone(NamedTuple):
    """Cloning settings."""

    demos: int
    """Number of demonstrations."""
    updates: int
    """Gradient steps."""


class Method(NamedTuple):
    """One row of the table."""

    label: str
    stages: Stages
    """Stages before fine-tuning."""
    clone: Clone
    tune: str
    """Fine-tuning recipe; see `benchmarks.vla.stages.RECIPES`."""
    teacher: Clone | None = None
    """Clone that serves as teacher."""
    changes: tuple[str, ...] = ()
    """Policy settings changed for fine-tuning."""
    lr_end: float = 1.0
    """Final learning rate as a fraction of the initial one."""
    recipe: int = RECIPE
    """Revision; raise it when only this method's preset changes."""


TOKEN = Stages("token", "look", "read", "bc-token", bf16=False)
FLOW = Stages("flow", "look-flow", "read-flow", "bc-flow", bf16=True)
COLD = ("temperature=0.5",)
"""Lower sampling temperature, for fine-tuning presets whose sampling noise is correlated over time."""
WEAK = Clone(FEW, 600)
RARE = Clone(FEW, 400)
"""A clone that rarely succeeds."""
BETTER = Clone(300, 800)
FLOWN = Clone(DEMOS, 1000)
"""A flow clone as weak as `WEAK`, trained on all demonstrations."""
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
"""Reference method of each clone, which learns from binary success; methods from the same clone are compared by
steps."""
LEVEL = 0.9
"""Steps are reported up to this fraction of the final success of GRPO from the same clone."""


def cells(quick: bool) -> list[Cell]:
    """Cells of the table: every method on every seed, and decoding; `quick` is seed 0 only."""
    table = [_cell(name, seed) for seed in (SEEDS[:1] if quick else SEEDS) for name in METHODS]
    return [*table, Cell(DECODE, SIM, 0, ("python", "-m", "benchmarks.vla.decode", OUT), "result.json", 5)]


def _cell(method: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.vla.cell", method, str(seed), OUT)
    return Cell(
        method, SIM, seed, command, "result.json", revision=METHODS[method].recipe, goes_on=True, rule=EVALUATED
    )


# from cells to figures


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """For each method: success before and after, on seen and unseen instructions, and costs; and decoding speed."""
    figures: dict[str, Figure] = {}
    for cell in results:
        if cell["method"] == DECODE:
            figures |= {key: Figure.from_json(value) for key, value in cell["result"].items()}
    for name, method in METHODS.items():
        figures |= _method_figures(results, name, _level(results, method.clone))
    return figures


def _level(results: Sequence[CellResult], clone: Clone) -> float | None:
    """Success level that counts as reached for methods from a clone; None if the clone has no reference method."""
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
    """Learning curves as SVG by file name: success against env steps and against training time."""
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
    """Markdown tables: one row per method; then decoding speed."""
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
    """Steps to the level, and the number of seeds that reached it if not all did."""
    if steps is None:
        return "not reached" if raced else ""
    return count(steps) if steps.runs == seeds else f"{count(steps)} ({steps.runs} of {seeds} seeds)"


def speed_rows(figures: Sequence[Figure]) -> list[str]:
    """Rows of the decoding table."""
    lines = table_head(("tokens one after the other", "ours", "`transformers.generate`", "times"))
    for figure in figures:
        ratio = f"{number(figure.ratio)} ({number(figure.ratio_low)} to {number(figure.ratio_high)})"
        rates = f"{number(figure.value)} a second", number(figure.peer_value), ratio
        lines.append(table_row((figure.note, *rates)))
    return lines


def seeds(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per cell, with the intervals of its evaluations and its success during training."""
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
    """A fraction with its interval, in whole percent."""
    value, low, high = (_percent(share[name]) for name in ("value", "low", "high"))
    return f"{value} ({low} to {high}) %"


def _percent(share: float) -> int:
    """Percentage, with halves rounded up."""
    return math.floor(100 * share + 0.5)


PARTS = {"seeds": seeds}
"""Other tables of the results; see `benchmarks.readme`."""
