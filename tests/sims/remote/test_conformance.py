"""The checks that every sim must pass, on a served sim of robotrl with exact state, and on a toy of numpy alone."""

from __future__ import annotations

from typing import Any

import pytest

import robotrl
from robotrl.spec import HasParams, HasState
from robotrl.testing.sims import CHECKS, SimCase
from tests.kits.paths_kit import ROOT

KITS = str(ROOT / "tests" / "kits")


def served(num_envs: int, seed: int, limit_s: float = 60.0) -> Any:
    kwargs = {"limit_s": limit_s, "threads": 1}
    return robotrl.make_sim("remote/mujoco/reach", num_envs, seed, kwargs=kwargs)


def toy(num_envs: int, seed: int, limit_steps: int = 1000) -> Any:
    kwargs = {"limit_steps": limit_steps, "goal": 0.0}
    return robotrl.make_sim("remote/remote_toys:tuned", num_envs, seed, path=(KITS,), kwargs=kwargs, workers=2)


CASES = {
    "mujoco/reach": SimCase(served, lambda n, seed: served(n, seed, limit_s=0.5), most_envs=8),
    "remote_toys:tuned": SimCase(toy, lambda n, seed: toy(n, seed, limit_steps=15)),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_remote_sims_pass_the_checks_of_sims(name: str, check: Any) -> None:
    check(CASES[name])


def test_the_cases_can_do_what_the_checks_look_at() -> None:
    sim = toy(2, 0)
    assert isinstance(sim, HasState)
    assert isinstance(sim, HasParams)
    sim.close()
