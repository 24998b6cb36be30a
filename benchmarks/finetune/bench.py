"""Comparison of fine-tuning algorithms: the same demonstrations, the same budget of env steps, several seeds.

A cell clones a base policy, fine-tunes it with one method, and evaluates both on 256 starts that neither training nor
the choice of the best checkpoint used (split `test`). Two methods test limits: steering a base policy that hardly ever
succeeds, and a critic without demonstrations.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.kit.cells import EVALUATED, OUT, Cell, CellResult
from benchmarks.kit.columns import column, count, percent, seconds, spread, steps_to
from benchmarks.kit.curves import Panel, by_cost, svg
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row

DESCRIPTION = (
    "success of each fine-tuning method on three tasks and three seeds, from clones of the same demonstrations"
)
PEERS: dict[str, str] = {}
SEEDS = (0, 1, 2)
VAL = 128
"""Number of held-out starts of each evaluation during training."""
LEVEL = 0.9
"""Times and steps are reported up to this fraction of the best policy-gradient success on the task."""


class Task(NamedTuple):
    """Sizes and settings of one task."""

    sim: str
    demos: int
    noise: float
    """Noise of the demonstrator's actions; see the sim's page."""
    episode_noise: float
    """Scale of the demonstrator's errors drawn once per episode."""
    env_steps: int
    """Budget of fine-tuning."""
    updates: Mapping[str, int]
    """Gradient steps of the clones by kind of policy, chosen so that all kinds succeed about equally often."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Sim options of demonstrations and training."""


def _alike(updates: int) -> dict[str, int]:
    return dict.fromkeys(("flow", "shortcut", "diffusion"), updates)


TASKS = {
    "peg-insert": Task(
        "mujoco/peg-insert", 40, 0.25, 1.0, 460_800, {"flow": 800, "shortcut": 1_200, "diffusion": 1_000}
    ),
    "pick-place": Task("mujoco/pick-place", 40, 0.15, 0.5, 768_000, _alike(1_500)),
    # with the sparse reward only, policy gradients do not improve on the clone; see docs/results/finetune.md
    "push": Task("mujoco/push", 300, 0.1, 0.0, 1_152_000, _alike(6_000), {"reward": "shaped"}),
}


class Method(NamedTuple):
    """One row of the table."""

    label: str
    base: str | None
    """Kind of the base policy ("flow"); None trains from scratch."""
    tune: str
    """Arguments of `robotrl train` that fine-tune it, on peg-insert."""
    family: str
    """Family of the method: "policy gradient", "steering" or "off-policy"."""
    denoising_steps: int | None = None
    """Denoising steps of the base policy, if not the preset's."""
    edge: bool = False
    """True if the method is in the table only to show the limits of an approach."""
    clip_coef: float | None = None
    """Clip range of the ratio, if not the preset's. ReinFlow's ratio is a mean over the chain; a chain of one step has
    two fifths of the terms of one with four steps, so the same range would be two fifths of the nats."""
    budget: float = 1.0
    """Fraction of the task's env steps; smaller for methods with many updates per step, whose cells would take
    hours."""
    demos: bool = False
    """True if it also learns from the demonstrations that its base policy was cloned from."""


SHARE = 0.3
"""Budget fraction of methods that reuse each step many times."""

DEFAULTS = "--sim mujoco/peg-insert --algo"
CRITIC_ALONE = (
    f"{DEFAULTS} sac --sim.num-envs 8 --policy.horizon 4 --policy.hidden 128 128 --algo.num-steps 4 --algo.warmup 1000"
    " --algo.utd-ratio 2 --algo.batch 128 --algo.initial-alpha 0.01 --algo.num-critics 4 --algo.critic-hidden 128 128"
    " --algo.layer-norm"
)
"""SAC with the critics, batches and updates of RLPD's recipe."""
METHODS = {
    "reinflow": Method("ReinFlow, flow, 4 steps", "flow", "peg-insert-reinflow", "policy gradient"),
    "reinflow_shortcut": Method("ReinFlow, shortcut, 4 steps", "shortcut", "peg-insert-reinflow", "policy gradient"),
    "reinflow_one_step": Method(
        "ReinFlow, shortcut, 1 step", "shortcut", "peg-insert-reinflow", "policy gradient", 1, clip_coef=0.03
    ),
    "dppo": Method("DPPO, diffusion", "diffusion", f"{DEFAULTS} dppo", "policy gradient"),
    "flow_sde": Method("Flow-SDE, flow", "flow", f"{DEFAULTS} flow-sde", "policy gradient"),
    "flow_noise": Method("Flow-Noise, flow", "flow", f"{DEFAULTS} flow-noise", "policy gradient"),
    "dsrl": Method("DSRL, flow", "flow", "peg-insert-dsrl", "steering", budget=SHARE),
    "dsrl_na": Method("DSRL, noise aliasing, flow", "flow", "peg-insert-dsrl-na", "steering", budget=SHARE),
    "fql": Method(
        "FQL, flow, same demonstrations", "flow", "peg-insert-fql-online", "off-policy", budget=SHARE, demos=True
    ),
    "rlpd": Method("RLPD, same demonstrations", None, "peg-insert-rlpd", "off-policy", budget=SHARE),
    "dsrl_na_weak_base": Method(
        "DSRL, noise aliasing, base below 5 %", "flow", "peg-insert-dsrl-na", "steering", edge=True, budget=SHARE
    ),
    "sac_no_demos": Method(
        "the critic of RLPD without demonstrations", None, CRITIC_ALONE, "off-policy", edge=True, budget=SHARE
    ),
}
EDGE_TASK = "peg-insert"
"""Task on which these methods are shown."""

PAGES = {
    "reinflow": ("reinflow", "reinflow_shortcut", "reinflow_one_step"),
    "dppo": ("dppo",),
    "flow-sde": ("flow_sde",),
    "flow-noise": ("flow_noise",),
    "dsrl": ("dsrl", "dsrl_na", "dsrl_na_weak_base"),
    "rlpd": ("rlpd", "fql", "sac_no_demos"),
}
"""Page of `docs/algorithms` to the methods whose curves it shows."""


def cells(quick: bool) -> list[Cell]:
    """Cells of the table: every method on every task and seed; `quick` is seed 0 of the first task."""
    tasks = list(TASKS)[:1] if quick else list(TASKS)
    return [
        _cell(name, task, seed)
        for seed in (SEEDS[:1] if quick else SEEDS)
        for task in tasks
        for name, method in METHODS.items()
        if task == EDGE_TASK or not method.edge
    ]


def _cell(method: str, task: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.finetune.cell", method, task, str(seed), OUT)
    return Cell(method, TASKS[task].sim, seed, command, "result.json", rule=EVALUATED)


# from cells to figures


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """For each task and method: success, gain, costs, and the costs up to the reference level."""
    figures: dict[str, Figure] = {}
    for task, setting in TASKS.items():
        best = max(
            (
                statistics.fmean(found.values())
                for name, method in METHODS.items()
                if method.family == "policy gradient"
                and (found := column(results, name, setting.sim, "success", "value"))
            ),
            default=None,
        )
        for name in METHODS:
            figures |= _method_figures(results, name, task, best)
    return figures


def _method_figures(results: Sequence[CellResult], name: str, task: str, best: float | None) -> dict[str, Figure]:
    sim, method = TASKS[task].sim, METHODS[name]
    success = column(results, name, sim, "success", "value")
    if not success:
        return {}
    base = column(results, name, sim, "base", "value")
    figures = {f"{task}_{name}_success": spread(success, "success", method.label)}
    if base:
        gain = {seed: success[seed] - base[seed] for seed in success if seed in base}
        figures[f"{task}_{name}_base"] = spread(base, "success", "the policy that it started from")
        figures[f"{task}_{name}_gain"] = spread(gain, "success", "difference, by seed")
    for key, unit in (
        ("env_steps", "env steps"),
        ("train_s", "s"),
        ("sim_share", "share of the time"),
        ("network_evaluations", "evaluations"),
        ("peak_memory_mib", "MiB"),
    ):
        if values := column(results, name, sim, key):
            figures[f"{task}_{name}_{key}"] = spread(values, unit, "")
    if best is not None:
        for axis, unit in (("env_steps", "env steps"), ("train_s", "s")):
            found = {
                int(cell["seed"]): steps_to(cell["result"]["curve"], LEVEL * best, axis)
                for cell in results
                if cell["method"] == name and cell["task"] == sim
            }
            reached = {seed: value for seed, value in found.items() if value is not None}
            if reached:
                note = f"to {100 * LEVEL * best:.0f} % success, {len(reached)} of {len(found)} seeds reached it"
                figures[f"{task}_{name}_{axis}_to_level"] = spread(reached, unit, note)
    return figures


def pictures(document: Mapping[str, Any]) -> dict[str, bytes]:
    """Learning curves as SVG by file name.

    Success against env steps and against training time, a row of two panels per task; and for the page of each method
    against env steps, a panel per task.
    """
    results = list(document["cells"].values())
    rows = [row for task in TASKS if (row := _panels(results, task))]
    drawn = {"finetune.svg": svg(rows)} if rows else {}
    for page, names in PAGES.items():
        found = [_apart(row[0], names) for row in rows]
        found = [panel for panel in found if panel.lines]
        if found:
            drawn[f"finetune-{page}.svg"] = svg([found])
    return drawn


def _panels(results: Sequence[CellResult], task: str) -> list[Panel]:
    sim = TASKS[task].sim
    curves = {
        method.label: [cell["result"]["curve"] for cell in results if (cell["method"], cell["task"]) == (name, sim)]
        for name, method in METHODS.items()
    }
    curves = {label: found for label, found in curves.items() if found}
    if not curves:
        return []
    bases = [
        base
        for name in METHODS
        if not METHODS[name].edge
        for base in column(results, name, sim, "base", "value").values()
    ]
    base = statistics.fmean(bases) if bases else None
    return by_cost(sim, curves, "seconds of training, without compiling", VAL, base)


def _apart(panel: Panel, names: Collection[str]) -> Panel:
    """Curves of the methods `names` of a panel, and the others as background."""
    labels = {METHODS[name].label for name in names}
    return panel._replace(
        lines={label: curves for label, curves in panel.lines.items() if label in labels},
        beside=[curves for label, curves in panel.lines.items() if label not in labels],
    )


def table(document: Mapping[str, Any]) -> str:
    """Markdown: one table per task, one row per method."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    parts: list[str] = []
    for task, setting in TASKS.items():
        rows = [row for name in METHODS if (row := _row(figures, task, name))]
        if rows:
            head = (
                "method",
                "base",
                "success",
                "env steps",
                f"to {100 * LEVEL:.0f} % of the best",
                "time",
                "network evaluations",
                "simulator",
                "memory",
                "seeds",
            )
            parts += [
                f"`{setting.sim}`",
                "",
                *table_head(head),
                *rows,
                "",
            ]
    return "\n".join(parts).rstrip()


def _row(figures: Mapping[str, Figure], task: str, name: str) -> str | None:
    def find(key: str) -> Figure | None:
        return figures.get(f"{task}_{name}_{key}")

    success, memory = find("success"), find("peak_memory_mib")
    if success is None:
        return None
    cells = (
        METHODS[name].label,
        percent(find("base")),
        f"**{percent(success)}**",
        count(find("env_steps")),
        count(find("env_steps_to_level")) or "not reached",
        seconds(find("train_s")),
        count(find("network_evaluations")),
        percent(find("sim_share"), spread=False),
        "" if memory is None or memory.value is None else f"{memory.value:.0f} MiB",
        str(success.runs),
    )
    return table_row(cells)
