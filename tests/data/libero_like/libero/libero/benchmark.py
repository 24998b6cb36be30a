"""Suites of tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Task(NamedTuple):
    """A task of a suite."""

    name: str
    language: str


class Suite:
    """Two tasks with four initial states each, of two numbers: where the bowl is."""

    tasks = (
        Task("first", "pick up the black bowl on the stove"),
        Task("second", "pick up the black bowl on the plate"),
    )

    def get_task(self, i: int) -> Task:
        """A task."""
        return self.tasks[i]

    def get_task_init_states(self, i: int) -> np.ndarray:
        """(n, state) float64."""
        return np.arange(8.0).reshape(4, 2) + 10 * i

    def get_task_bddl_file_path(self, i: int) -> str:
        """Where the task is described."""
        return f"/bddl_files/{self.tasks[i].name}.bddl"


def get_benchmark(name: str) -> type[Suite]:
    """The class of a suite."""
    return {"libero_spatial": Suite}[name.lower()]
