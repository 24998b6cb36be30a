"""The modules of docs/sims/recipes.md, under this Python, and under those of other packages where there are some."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import robotrl
from robotrl.testing.sims import random_actions

PAGE = Path(__file__).parents[3] / "docs" / "sims" / "recipes.md"
MODULES = dict(re.findall(r"<!-- (\w+)\.py -->\n```py\n(.*?)```", PAGE.read_text(), re.DOTALL))


class Recipe(NamedTuple):
    """An environment of another package."""

    package: str
    module: str
    kwargs: dict[str, Any]
    workers: int = 1

    @property
    def variable(self) -> str:
        return f"ROBOTRL_{self.package.upper()}_PYTHON"


OTHERS = (
    Recipe("metadrive", "metadrive_cars", {"num_scenarios": 4, "horizon": 30}, workers=2),
    Recipe(
        "metaworld",
        "gym_rows",
        {
            "id": "Meta-World/MT1",
            "module": "metaworld",
            "kwargs": {"env_name": "reach-v3", "seed": 1},
            "limit_steps": 30,
        },
    ),
    Recipe(
        "robotics",
        "gym_rows",
        {"id": "FetchReach-v4", "module": "gymnasium_robotics", "success": "is_success", "limit_steps": 30},
    ),
)


@pytest.fixture(autouse=True)
def modules_beside_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, code in MODULES.items():
        Path(f"{name}.py").write_text(code)


def played(name: str, python: str, kwargs: dict[str, Any], workers: int = 1) -> list[torch.Tensor]:
    """Rewards and observations of 40 steps of two envs, from given starts."""
    sim = robotrl.make_sim(name, 2, python=python, workers=workers, kwargs=kwargs)
    try:
        ids = [int(sim.state_ids("val")[i]) for i in range(6)]
        sim.queue_states(ids)
        out = [value.clone() for value in sim.reset().values()]
        ended = 0
        for action in random_actions(sim, 40):
            step = sim.step(action)
            out += [step.reward.clone(), *(value.clone() for value in step.obs.values())]
            ended += len(step.final_ids)
            assert step.info["success"].dtype == torch.bool
        assert ended
        assert all(bool(value.isfinite().all()) for value in out)
        return out
    finally:
        sim.close()


@pytest.mark.parametrize("environment", ["Pendulum-v1", "CartPole-v1"])
def test_rows_of_gymnasium_repeat_their_starts(environment: str) -> None:
    kwargs = {"id": environment, "limit_steps": 15}
    first, again = (played("remote/gym_rows:make", sys.executable, kwargs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("recipe", OTHERS, ids=lambda recipe: recipe.package)
def test_environments_of_other_packages(recipe: Recipe) -> None:
    python = os.environ.get(recipe.variable)
    if not python:
        pytest.skip(f"{recipe.variable} names no Python that has the package")
    first, again = (played(f"remote/{recipe.module}:make", python, recipe.kwargs, recipe.workers) for _ in range(2))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first, again, strict=True))


def test_highway_env_beside_robotrl() -> None:
    pytest.importorskip("highway_env")
    sim = robotrl.make_sim("gym/highway_env:highway-fast-v0", 2, limit_steps=5, camera=False)
    assert sim.action_spec.choices == (5,)
    sim.reset(seed=0)
    ended = 0
    for action in random_actions(sim, 12):
        step = sim.step(action)
        ended += len(step.final_ids)
        assert bool(step.obs["state"].isfinite().all())
    assert ended
    sim.close()
