"""Rewards in words on the driving sim: how well a small model tells danger, what scoring costs, what policies learn.

The model is trained on captions from the simulator's truth. It is judged on held-out scenarios, in wordings that it was
not trained on. The scoring service is timed beside the sim alone and beside a sim that waits for each score. Policies
are trained with PPO on rewards that differ in one term, and driven on unseen roads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.kit.cells import OUT, Cell, CellResult
from benchmarks.kit.figures import Figure
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.runner import number
from robotrl.fn.stats import bootstrap

DESCRIPTION = "rewards in words: AUC of a small model, speed of the scoring service, learning with them; guidance"
PEERS: dict[str, str] = {}
SIM, PUSH = "bev/drive", "mujoco/push"
SEEDS = (0, 1, 2)
REVISION = 3
SEEN = 5
"""Revision of what sees pictures of roads. Raise it when pictures, captions or the training of the model change: cells
and models are then made anew."""
LEARNED = 6
"""Revision of policies whose reward is not the sim's own; those that see pictures are of `SEEN`, too. Raise it, above
`SEEN`, when such rewards change: up to 5, an arrival ended the value of rewards that do not see success."""
TABLE_SEEN = 7
"""Revision of what sees pictures of the table: `mujoco/push` with captions of its last centimeters, and with scenes of
success among those that the model learns from."""
CLIP, SERVICE = "clip", "service"
STATE, CARL, ALIGNMENT = "state", "carl", "action-alignment"
ARMS = {
    STATE: "speed and lane terms alone",
    "contrast": "contrasting language goals give the desired speed (VLM-RL)",
    CARL: "CaRL's reward, written by hand",
}
"""Rewards of the driving policies, of three seeds each; all end episodes by the same rules."""
ENV_STEPS, LONG_TIMES = 2_000_000, 3
LONG = "-long"
LONG_ARMS = {f"{arm}{LONG}": label for arm, label in ARMS.items()}
"""The same with three times the env steps, of three seeds each: collisions become rare only then."""
BASELINES = {
    "goal-baseline": "the goal-baseline projection gives the desired speed (VLM-RM)",
    "lord": "distance from danger gives the desired speed (LORD)",
    "threshold": "speed and lane terms, and 1 or -1 by a threshold (VLM-SR)",
    "episode-similarity": "speed and lane terms, and one score an episode (RoboCLIP)",
    ALIGNMENT: "speed and lane terms, and the margin of the action (Found-RL)",
}
"""Further rewards, of one seed."""
PREFERENCES = {
    "preferences-push": "IQL on `mujoco/push`",
    "preferences-drive": "IQL on `bev/drive`",
    "preferences-online-push": "RLPD on `mujoco/push`",
    "preferences-online-drive": "PPO on `bev/drive`",
}
"""Learners whose reward is learned from 500 answers."""
LANGUAGE = "language-push"
"""Fine-tuning with the language reward alone."""
GUIDANCE = {
    "guidance-push": "RLPD on `mujoco/push`",
    "guidance-sac-push": "SAC on `mujoco/push`",
    "guidance-drive": "PPO on `bev/drive`",
}
"""Learners with a teacher."""
REWARDED = (STATE, f"{STATE}{LONG}", "contrast", f"contrast{LONG}", *BASELINES)
REVISIONS = {CLIP: SEEN, LANGUAGE: TABLE_SEEN} | dict.fromkeys(REWARDED, LEARNED)
"""Revisions of cells that are not of `REVISION`."""
DIRECTIONS = ("ahead", "behind", "left", "right")
SCORES = ("contrast", "contrast-mean", "goal-baseline", "lord", "threshold")
"""Methods whose score of a picture is judged."""
AUC_TARGET, SPEED_TARGET, SHARE_TARGET, MEMORY_TARGET_GIB = 0.95, 0.85, 0.05, 4.0


def cells(quick: bool) -> list[Cell]:
    """Cells of the table, the short ones first; `quick` is the service and one model."""
    every = (SERVICE, CLIP, *ARMS, LANGUAGE, *GUIDANCE, *PREFERENCES, *BASELINES, *LONG_ARMS)
    methods = (SERVICE, CLIP) if quick else every
    return [
        Cell(
            method,
            PUSH if method.endswith("-push") else SIM,
            seed,
            ("python", "-m", "benchmarks.rewards.cell", method, str(seed), OUT),
            "result.json",
            REVISIONS.get(method, REVISION),
        )
        for method in methods
        for seed in (SEEDS[:1] if quick or method in (SERVICE, *BASELINES) else SEEDS)
    ]


def aggregate(results: Sequence[CellResult]) -> dict[str, Figure]:
    """Figures of all cells: of the service as measured, of the others over the seeds, with intervals."""
    figures: dict[str, Figure] = {}
    for cell in results:
        if cell["method"] == SERVICE:
            figures |= {key: Figure.from_json(value) for key, value in cell["result"].items()}
    for method in (CLIP, *ARMS, LANGUAGE, *GUIDANCE, *PREFERENCES, *BASELINES, *LONG_ARMS):
        rows = [cell["result"] for cell in results if cell["method"] == method]
        for key in rows[0] if rows else ():
            found = [row[key] for row in rows if not isinstance(row.get(key), list | None)]
            if values := [float(value) for value in found]:
                span = bootstrap(np.array(values))
                unit = "AUC" if method == CLIP and key.startswith("auc") else ""
                figures[f"{method}_{key}"] = Figure(span.value, unit, runs=len(values), low=span.low, high=span.high)
    return figures


def table(document: Mapping[str, Any]) -> str:
    """Markdown tables: the model, the service, the policies."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    makers = (_service, _model, _policies, _language, _guidance, _preferences, _answers)
    parts = [make(figures) for make in makers]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _service(figures: Mapping[str, Figure]) -> list[str]:
    rows = [(key, figure) for key, figure in figures.items() if key.startswith(SERVICE)]
    if not rows:
        return []
    lines = table_head(("64 envs, sim on one core, scorer on the other", "", "of the sim alone", "asked"))
    for _, figure in rows:
        ratio = (
            "" if figure.ratio is None else f"{figure.ratio:.2f} ({figure.ratio_low:.2f} to {figure.ratio_high:.2f})"
        )
        asked, _, label = figure.note.partition("|")
        lines.append(table_row((label, f"{number(figure.value)} {figure.unit}".strip(), ratio, asked)))
    return lines


def _model(figures: Mapping[str, Figure]) -> list[str]:
    if f"{CLIP}_auc_contrast" not in figures:
        return []
    lines = table_head(("score of a picture", "AUC", *(f"danger {where}" for where in DIRECTIONS)))
    for score in SCORES:
        spans = [figures.get(f"{CLIP}_auc_{score}{where}") for where in ("", *(f"_{one}" for one in DIRECTIONS))]
        if spans[0] is not None:
            lines.append(table_row((f"`{score}`", *map(_span, spans))))
    return lines


def _policies(figures: Mapping[str, Figure]) -> list[str]:
    lines: list[str] = []
    for arm, label in (LONG_ARMS | ARMS | BASELINES).items():
        if f"{arm}_completion" in figures:
            keys = ("collisions", "at_fault", "completion", "driving", "train_s")
            spans = (figures.get(f"{arm}_{key}") for key in keys)
            runs = str(figures[f"{arm}_completion"].runs)
            steps = ENV_STEPS * (LONG_TIMES if arm in LONG_ARMS else 1)
            lines.append(table_row((label, f"{steps / 1e6:g}", *map(_span, spans), runs)))
    head = (
        *("reward", "env steps, millions", "collisions an episode", "of them at fault", "route completion"),
        *("driving score", "trained in, s", "seeds"),
    )
    return [*table_head(head), *lines] if lines else []


def _language(figures: Mapping[str, Figure]) -> list[str]:
    """Success of a clone, and after fine-tuning on either reward."""
    if f"{LANGUAGE}_base" not in figures:
        return []
    keys = ("base", "own_success", "language_success", "gain_share", "language_train_s")
    head = (
        "DSRL on `mujoco/push`, success",
        "sim's reward",
        "language alone",
        "share of its gain",
        "trained in, s",
        "seeds",
    )
    spans = [_span(figures.get(f"{LANGUAGE}_{key}")) for key in keys]
    return [*table_head(head), table_row((f"clone: {spans[0]}", *spans[1:], str(figures[f"{LANGUAGE}_base"].runs)))]


def _guidance(figures: Mapping[str, Figure]) -> list[str]:
    """Env steps of learners with and without a teacher to 95 % of the final mean of the one without."""
    lines: list[str] = []
    for method, label in GUIDANCE.items():
        if f"{method}_alone_final" in figures:
            keys = ("teacher", "alone_final", "guided_final", "alone_steps", "guided_steps", "steps_share")
            spans = (figures.get(f"{method}_{key}") for key in keys)
            lines.append(table_row((label, *map(_span, spans), str(figures[f"{method}_alone_final"].runs))))
    head = ("success", "teacher", "alone, final", "guided, final", "env steps alone", "guided", "share", "seeds")
    return [*table_head(head), *lines] if lines else []


def _preferences(figures: Mapping[str, Figure]) -> list[str]:
    """Success and true return of policies on the true reward and on those of answers."""
    lines: list[str] = []
    for method, label in PREFERENCES.items():
        for key, what in (("success", "success"), ("return", "true return")):
            if f"{method}_true_{key}" in figures:
                arms = (figures.get(f"{method}_{arm}_{key}") for arm in ("clone", "true", "return", "regret"))
                lines.append(table_row((label, what, *map(_span, arms), str(figures[f"{method}_true_{key}"].runs))))
    head = ("learner", "", "cloning", "true reward", "500 answers, by return", "by regret", "seeds")
    return [*table_head(head), *lines] if lines else []


def _answers(figures: Mapping[str, Figure]) -> list[str]:
    """Rank correlation with the truth by the number of answers."""
    lines: list[str] = []
    counts = (50, 100, 200, 500)
    for method in PREFERENCES:
        for truth in ("return", "regret"):
            for form in ("return", "regret"):
                spans = [figures.get(f"{method}_rank_{truth}_{form}_{count}") for count in counts]
                if spans[0] is not None:
                    name = method.removeprefix("preferences-")
                    lines.append(table_row((name, truth, form, *map(_span, spans))))
    head = ("rank correlation of segments", "answers go by", "learned", *(f"{count} answers" for count in counts))
    return [*table_head(head), *lines] if lines else []


def _span(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "-"
    alone = figure.runs == 1 or figure.low is None or figure.high is None
    digits = 0 if figure.value >= 1000 else 1 if figure.value >= 10 else 3
    text = f"{figure.value:,.{digits}f}"
    return text if alone else f"{text} ({figure.low:,.{digits}f} to {figure.high:,.{digits}f})"
