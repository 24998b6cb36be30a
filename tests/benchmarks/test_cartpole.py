"""The bench of a first run: its table, and the time left that it reads from the command's output."""

import pytest

from benchmarks.quickstart import cartpole
from benchmarks.quickstart.cartpole import Line, left_ratio


def result(**changes: float) -> dict[str, float]:
    found = {"return": 500.0, "wall_s": 30.0, "first_output_s": 1.0, "cpu_s": 25.0, "env_steps": 4e4, "left_ratio": 1.5}
    return {**found, **changes}


def test_a_cell_is_the_whole_command_on_a_seed():
    assert [cell.seed for cell in cartpole.cells(quick=False)] == [0, 1, 2, 3, 4]
    assert cartpole.cells(quick=True)[0].key == "first_run--gym-CartPole-v1--0"


def test_figures_are_means_with_the_worst_beside_them():
    figures = cartpole.aggregate([{"result": result()}, {"result": result(**{"return": 480.0})}])
    assert (figures["return"].value, figures["return"].low, figures["return"].runs) == (490.0, 480.0, 2)
    document = {"cells": {"a": {"seed": 1, "result": result()}, "b": {"seed": 0, "result": result(wall_s=31.25)}}}
    assert cartpole.table(document).splitlines()[2] == "| 0 | 500.0 | 31.2 s | 1.0 s | 25.0 s | 40,000 |"


def test_the_time_left_that_was_said_is_held_against_the_end():
    lines = [Line(0.5, "loading"), Line(10.0, "1/30, 0:05 passed, 1:00 left"), Line(20.0, "2/30, ends within 9:00")]
    assert left_ratio(lines, end_s=40.0) == pytest.approx(59.5 / 30)
    assert left_ratio(lines[:1], end_s=40.0) == 0.0
    assert left_ratio([Line(0.0, "1:00:00 left")], end_s=3600.0) == pytest.approx(1.0, rel=1e-3)
