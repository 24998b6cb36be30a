"""One round of PA-RL by a class of policies: `python -m benchmarks.improve.classes NAME TASK SEED OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.finetune.bench import TASKS, Method, Task
from benchmarks.improve.cell import run_cell
from benchmarks.improve.plan import CLASSES, class_method
from robotrl.errors import unknown
from robotrl.utils.files import dump_json, replace_file


def main(name: str, task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: name or task are unknown.
    """
    kinds = {class_method(kind): kind for kind in CLASSES}
    if name not in kinds:
        raise unknown("class of policies", name, kinds)
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    kind = kinds[name]
    result = run_cell(with_updates(TASKS[task], kind), seed, out, base=base_of(kind))
    replace_file(out / "result.json", dump_json(result))


def base_of(kind: str) -> Method:
    """Method of the table of fine-tuning that clones a policy of this class, and no more."""
    return Method(CLASSES[kind].label, kind, "", "off-policy")


def with_updates(task: Task, kind: str) -> Task:
    """The task with the gradient steps of the clone of a class of policies."""
    updates = CLASSES[kind].updates
    return task if updates is None else task._replace(updates={**task.updates, kind: updates})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).resolve())
