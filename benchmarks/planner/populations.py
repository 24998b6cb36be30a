"""Planners among populations of traffic and with faults: rows, columns, figures and tables.

A cell is one planner and seed. It is trained with moderate traffic, or with a mixture, then drives the same starts of
the split `test`, whose road layouts are used neither in training nor in selection: once in each population, and once
with each fault in moderate traffic. Cells of the study of clones drive starts of the split `val`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.planner.figures import over_seeds, text_of
from benchmarks.planner.settings import REVISION, SEEDS, SIM, TRAINED

POPULATIONS = (TRAINED, "timid", "aggressive", "erratic", "cloned", "rift", "self-play")
COST_TARGET, LOSS_TARGET = 5.0, 5.0
"""Points that a population costs the rule-based driver at least, and the best planner at most."""
NO_FAULT = "none"
FAULTS: dict[str, dict[str, Any]] = {
    NO_FAULT: {},
    "observations 0.2 s old": {"perturb": {"obs_delay_steps": 2}},
    "observations lost for 0.5 s": {"perturb": {"drop_rate": 0.01, "drop_steps": 5}},
    "actions 0.2 s late": {"perturb": {"action_delay_steps": 2}},
    "pose wrong by 0.5 m, 1 degree": {"pose_noise_m": 0.5, "heading_noise_deg": 1.0},
    "speed wrong by 0.3 m/s": {"speed_noise_mps": 0.3},
}
"""Sim options of each fault. All planners act anew in each control step of 0.1 s here, so that delays are the same for
all. The kinds and the chance of a burst are Bench2Drive-Robust's, the other strengths ours."""


class Planner(NamedTuple):
    """One row of the table."""

    label: str
    preset: str | None
    """Preset for training; None for the rule-based driver, which is not trained."""
    base: str | None = None
    """Clone that it starts from, by its name in this table."""
    traffic: tuple[str, ...] = (TRAINED,)
    """Populations that it is trained with."""


PLANNERS = {
    "driver": Planner("rule-based: IDM on the route", None),
    "ppo": Planner("PPO, Beta policy, CaRL's reward, vectors", "drive-ppo"),
    "ppo-mixture": Planner(
        "the same, trained with three populations", "drive-ppo", traffic=(TRAINED, "timid", "aggressive")
    ),
    "flow": Planner("flow planner, cloned from the rule-based driver", "drive-bc-flow"),
    "diffusion": Planner("diffusion planner, cloned", "drive-bc-diffusion"),
    "reinflow": Planner("flow planner, ReinFlow", "drive-reinflow", "flow"),
    "flow-grpo": Planner("flow planner, Flow-GRPO", "drive-flow-grpo", "flow"),
    "dsrl": Planner("flow planner, DSRL", "drive-dsrl", "flow"),
    "dppo": Planner("diffusion planner, DPPO", "drive-dppo", "diffusion"),
}
CLONES = ("flow", "diffusion")
"""Planners that are cloned from recorded drives."""


class Cloning(NamedTuple):
    """One row of the study of clones."""

    demos: int
    """Demonstrations, whole drives."""
    updates: int | None = None
    """Updates; None for those of the preset."""


DEMOS = 8_000
"""Demonstrations of the clones in the table."""
STUDY = {
    "clone-2000": Cloning(2_000),
    "clone-4000": Cloning(4_000),
    "clone-8000": Cloning(DEMOS),
    "clone-16000": Cloning(16_000),
    "clone-8000-half": Cloning(DEMOS, 4_000),
    "clone-8000-double": Cloning(DEMOS, 16_000),
}
"""Flow planners cloned from more and fewer demonstrations and with more and fewer updates, of one seed each."""
SCORE = "driving score, CARLA leaderboard 2.0, 0 to 100"


def cells(quick: bool) -> list[Cell]:
    """Cells of planners and of the study; `quick` is the rule-based driver alone."""
    planners = [
        _cell(name, seed)
        for seed in SEEDS
        for name, planner in PLANNERS.items()
        # without training there is no seed
        if (seed == SEEDS[0] if planner.preset is None else not quick)
    ]
    return planners if quick else planners + [_cell(name, SEEDS[0]) for name in STUDY]


def _cell(name: str, seed: int) -> Cell:
    command = ("python", "-m", "benchmarks.planner.cell", name, str(seed), OUT)
    return Cell(name, SIM, seed, command, "result.json", REVISION)


def figures(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Score of each planner in each population, its loss from moderate traffic, its score with faults, and the share of
    the gap between its clone and 100 that it closes."""
    found: dict[str, Figure] = {}
    for name in dict.fromkeys(cell["method"] for cell in results):
        rows = {cell["seed"]: cell["result"] for cell in results if cell["method"] == name}
        if name in STUDY:
            found[f"{name}_val"] = over_seeds([float(row["driving"]) for row in rows.values()], f"{SCORE}, split val")
        elif name in PLANNERS:
            found |= _scores(name, list(rows.values()))
            base = PLANNERS[name].base
            clones = {cell["seed"]: cell["result"] for cell in results if cell["method"] == base}
            if gaps := [_gap(rows[seed], clones[seed]) for seed in rows if seed in clones]:
                note = f"share of the gap between the clone of its seed and 100 that is closed, {SCORE}"
                found[f"{name}_gap"] = over_seeds(gaps, note, "share")
    return found


def _gap(tuned: Mapping[str, Any], clone: Mapping[str, Any]) -> float:
    before, after = (float(one["populations"][TRAINED]["driving"]) for one in (clone, tuned))
    return (after - before) / (100.0 - before)


def _scores(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for population in POPULATIONS:
        # older cells have fewer populations
        driven = [row["populations"] for row in rows if population in row["populations"]]
        if not driven:
            continue
        scores = [float(one[population]["driving"]) for one in driven]
        found[f"{name}_{population}"] = over_seeds(scores, SCORE)
        if population != TRAINED:
            lost = [float(one[TRAINED]["driving"]) - score for one, score in zip(driven, scores, strict=True)]
            found[f"{name}_{population}_lost"] = over_seeds(lost, "points lost from moderate traffic")
    for fault in FAULTS:
        driven = [row["faults"] for row in rows if fault in row.get("faults", {})]
        if not driven:
            continue
        scores = [float(one[fault]["driving"]) for one in driven]
        found[f"{name}_fault_{fault}"] = over_seeds(scores, SCORE)
        if fault != NO_FAULT:
            kept = [score / float(one[NO_FAULT]["driving"]) for one, score in zip(driven, scores, strict=True)]
            found[f"{name}_fault_{fault}_kept"] = over_seeds(kept, "share of the score without faults", "share")
    return found


def lines(found: Mapping[str, Figure]) -> list[str]:
    """Tables: a column for each population, a column for each fault, the study of clones."""
    # older documents have fewer populations
    driven = [one for one in POPULATIONS if any(f"{name}_{one}" in found for name in PLANNERS)]
    rows = [(name, planner) for name, planner in PLANNERS.items() if f"{name}_{TRAINED}" in found]
    out: list[str] = []
    if rows:
        gaps = any(f"{name}_gap" in found for name, _ in rows)
        out = table_head(("planner", *driven, *(["of the gap, %"] if gaps else []), "seeds"))
        for name, planner in rows:
            columns = [text_of(found.get(f"{name}_{population}")) for population in driven]
            gap = [text_of(found.get(f"{name}_gap"), 100.0)] if gaps else []
            out.append(table_row((planner.label, *columns, *gap, str(found[f"{name}_{TRAINED}"].runs))))
    faulty = [(name, planner) for name, planner in rows if f"{name}_fault_{NO_FAULT}" in found]
    if faulty:
        out += ["", *table_head(("score with faults, and % of that without", *FAULTS, "seeds"))]
        for name, planner in faulty:
            columns = [_with_share(found, f"{name}_fault_{fault}") for fault in FAULTS]
            out.append(table_row((planner.label, *columns, str(found[f"{name}_fault_{NO_FAULT}"].runs))))
    studied = [name for name in STUDY if f"{name}_val" in found]
    if studied:
        out += ["", *table_head(("flow planner, cloned, split `val`", "updates", "driving score", "seeds"))]
        for name in studied:
            updates = STUDY[name].updates
            score = found[f"{name}_val"]
            label = f"{STUDY[name].demos:,} demonstrations"
            shown = "the preset's" if updates is None else f"{updates:,}"
            out.append(table_row((label, shown, text_of(score), str(score.runs))))
    return out


def _with_share(found: Mapping[str, Figure], key: str) -> str:
    score, kept = found.get(key), found.get(f"{key}_kept")
    return text_of(score) if kept is None else f"{text_of(score)}, {text_of(kept, 100.0, 0)} %"
