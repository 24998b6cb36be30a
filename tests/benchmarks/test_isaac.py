"""The bench of Isaac's adapters: its environments end episodes as real ones do, and a figure is the difference."""

from __future__ import annotations

import pytest
import torch

from benchmarks.isaac.bench import NUM_ENVS, SURFACES, overhead, run
from benchmarks.isaac.standins import ACTION, LIMIT
from benchmarks.kit.figures import Paired
from robotrl.sims.isaac.wrap import sim_of
from robotrl.spec import HasFinalObs


@pytest.mark.parametrize("name", SURFACES)
def test_every_env_ends_once_in_the_time_limit(name):
    sim = sim_of(SURFACES[name].make(20))
    sim.reset(seed=0)
    ended = torch.zeros(20, dtype=torch.long)
    for _ in range(LIMIT):
        step = sim.step(torch.full((20, ACTION), 0.1))
        ended[step.final_ids] += 1
        assert not step.terminated.any()
    assert ended.tolist() == [1] * 20
    assert isinstance(sim, HasFinalObs) == (name != "lab_2")
    # actions are joint targets on Isaac Lab's surface, which the adapter converts
    assert (sim.actuation is None) == (name == "vec_task")


def test_a_figure_is_the_median_of_the_differences():
    figure = overhead(Paired({"env": (10.0, 20.0, 30.0), "sim": (60.0, 50.0, 90.0)}), "a note")
    assert (figure.value, figure.low, figure.high, figure.runs) == (50.0, 30.0, 60.0, 3)
    assert "the environment alone takes 20 us" in figure.note


def test_a_quick_run_measures_everything():
    figures = run(quick=True)
    assert len(figures) == len(SURFACES) * len(NUM_ENVS)
    assert all(figure.value is not None for figure in figures.values())
