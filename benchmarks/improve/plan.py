"""Cells of the bench beside those of one round of PA-RL: methods, tasks, sizes and targets."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from benchmarks.finetune.bench import DEFAULTS
from benchmarks.kit.cells import OUT, Cell

SEEDS = (0, 1, 2)
EPISODES = 400
"""Logged episodes of a round."""
DEMOS = "{demos}"
"""Placeholder in settings for the directory of the demonstrations."""
LABELS = "recap"
"""Name of the labels that a fit of RECAP leaves beside its data."""
_BESIDE = {"algo.demos": DEMOS}
_PA_RL = {**_BESIDE, "algo.rewards": "success"}
_RECAP = {**_BESIDE, "algo.labels": LABELS}
_SUCCESSES = {"algo.updates": 8_000}
"""As many updates of the policy as the others make."""

# rounds through `robotrl improve`


class Rounds(NamedTuple):
    """Rounds of one method of `robotrl improve`."""

    label: str
    method: str
    """A row of `robotrl.registry.METHODS`."""
    rounds: int
    episodes: int
    """Episodes that the policy of a round drives."""
    tasks: tuple[str, ...]
    settings: Mapping[str, Any] = MappingProxyType({})
    """Config fields of the fit by path."""
    condition: bool = False
    """True if the condition of the last candidate is turned off, too."""


_TWO = ("peg-insert", "pick-place")
ROUNDS = {
    "pa-rl-3": Rounds("PA-RL", "pa-rl", 3, EPISODES, _TWO, _PA_RL),
    "successes-3": Rounds("clone of the successes", "successes", 3, EPISODES, _TWO, _SUCCESSES),
    "recap-3": Rounds("RECAP", "recap", 3, EPISODES, _TWO[:1], _RECAP, condition=True),
    "rl100-3": Rounds("RL-100, offline stage", "rl100", 3, EPISODES, _TWO[:1], _PA_RL),
    "pa-rl-200": Rounds("PA-RL, short rounds", "pa-rl", 2, 200, (*_TWO, "push"), _PA_RL),
}

# one round of PA-RL by the class of the policy


class PolicyClass(NamedTuple):
    """A class of policies."""

    label: str
    updates: int | None = None
    """Gradient steps of its clone; None for those of the table of fine-tuning."""


CLASSES = {
    "gaussian": PolicyClass("Gaussian", 800),
    "diffusion": PolicyClass("diffusion"),
    "shortcut": PolicyClass("shortcut"),
}
CLASS_TASK = "peg-insert"

# the filter of planted mistakes

FILTER, FILTER_TASK = "filter", "peg-insert"
FILTER_ARMS = {
    "all": "clone of all frames",
    "filtered": "without those that the filter drops",
    "random": "without as many random ones",
}

# planted updates before the gate

PLANTED = "planted"
PLANTED_TASKS, PLANTED_SEEDS = _TWO, (0, 1)
BAD = {
    "rate": "learning rate times 100",
    "outcomes": "outcomes shuffled",
    "sign": "successes and failures exchanged",
    "observations": "observations of other steps",
    "actions": "actions of other steps",
}
"""Planted bad updates, each by both methods."""
BAD_METHODS = ("pa-rl", "successes")
SHAM = {"own samples": 3, "other noise": 2}
"""Sham rounds of a cell: the policy clones its own samples, unchosen; or its weights move by a hundredth."""

# all methods in log-only mode

Way = Literal["improve", "offline", "online"]


class LogOnlyMethod(NamedTuple):
    """A method in log-only mode."""

    label: str
    way: Way
    """Learns through `robotrl improve`, from a dataset of the clone's episodes, or while it drives."""
    name: str
    """A row of `robotrl.registry.METHODS`, or arguments of `robotrl train`."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Config fields of the training by path."""
    begins: bool = True
    """True if it begins from the clone."""
    demos: bool = True
    """True if it learns from the demonstrations, too."""


_OFFLINE = {"algo.updates": 8_000, "algo.env_steps": 0}
LOG_ONLY_TASK = "peg-insert"
LOG_ONLY = {
    "pa-rl": LogOnlyMethod("PA-RL", "improve", "pa-rl", _PA_RL),
    "recap": LogOnlyMethod("RECAP", "improve", "recap", _BESIDE),
    "rl100": LogOnlyMethod("RL-100, offline stage", "improve", "rl100", _PA_RL),
    "successes": LogOnlyMethod("clone of the successes", "improve", "successes", _SUCCESSES, demos=False),
    "iql": LogOnlyMethod("IQL", "offline", f"{DEFAULTS} iql", _OFFLINE, begins=False),
    "td3-bc": LogOnlyMethod("TD3+BC", "offline", f"{DEFAULTS} td3-bc", {"algo.updates": 8_000}, begins=False),
    "fql": LogOnlyMethod("FQL", "offline", f"{DEFAULTS} fql", _OFFLINE),
    "qc": LogOnlyMethod("Q-chunking", "offline", f"{DEFAULTS} qc", _OFFLINE),
    "residual": LogOnlyMethod("DICE-RL", "offline", f"{DEFAULTS} residual", {**_OFFLINE, "algo.actor_rows": "all"}),
    "fql-online": LogOnlyMethod("FQL", "online", "peg-insert-fql-online"),
    "qc-online": LogOnlyMethod("Q-chunking", "online", f"{DEFAULTS} qc"),
    "residual-online": LogOnlyMethod("DICE-RL", "online", f"{DEFAULTS} residual"),
    "dsrl-na-online": LogOnlyMethod("DSRL, noise aliasing", "online", "peg-insert-dsrl-na", demos=False),
    "rlpd-online": LogOnlyMethod("RLPD", "online", "peg-insert-rlpd", begins=False),
}


def further_cells() -> list[Cell]:
    """All cells of this module, kind by kind, and seed by seed within a kind."""
    out = [
        _cell(name, task, seed, "rounds", goes_on=True)
        for name, plan in ROUNDS.items()
        for seed in SEEDS
        for task in plan.tasks
    ]
    out += [_cell(class_method(kind), CLASS_TASK, seed, "classes") for seed in SEEDS for kind in CLASSES]
    out += [_cell(FILTER, FILTER_TASK, seed, "retries", goes_on=True) for seed in SEEDS]
    out += [_cell(PLANTED, task, seed, "planted", goes_on=True) for seed in PLANTED_SEEDS for task in PLANTED_TASKS]
    out += [
        _cell(log_only_method(name), LOG_ONLY_TASK, seed, "log_only", goes_on=True)
        for seed in SEEDS
        for name in LOG_ONLY
    ]
    return out


def class_method(kind: str) -> str:
    """Name of the cells of a class of policies."""
    return f"pa-rl-{kind}"


def log_only_method(name: str) -> str:
    """Name of the cells of a method in log-only mode."""
    return f"log-only-{name}"


def _cell(method: str, task: str, seed: int, module: str, goes_on: bool = False) -> Cell:
    command = ("python", "-m", f"benchmarks.improve.{module}", method, task, str(seed), OUT)
    return Cell(method, f"mujoco/{task}", seed, command, "result.json", goes_on=goes_on)
