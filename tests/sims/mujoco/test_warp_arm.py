"""The arm's tasks on MuJoCo Warp, on the processor at tiny size: the same as on the native engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import robotrl
from robotrl.errors import ConfigError
from robotrl.spec import HasCamera, HasDistance, HasExpert, HasState
from robotrl.spec.sims import why_lacking
from robotrl.testing.sims import SimCase
from tests.kits.refusals import raises_naming
from tests.kits.warp_sims import QUICK_CHECKS, compare_steps, pair, warp

pytest.importorskip("mujoco_warp")

TASKS = ("reach", "push", "peg-insert", "pick-place", "tabletop")
IN_CONTACT = {"push": 30, "peg-insert": 15, "pick-place": 15}
"""Step at which the scripted expert touches something with the tool in all envs."""
TOLERANCE = 1e-3
"""Of coordinates (m, rad) and velocities (m/s, rad/s) after 5 control steps: float32 against float64."""


class Played(NamedTuple):
    """Actions and states of a scripted expert on the native engine."""

    ids: list[int]
    qpos: list[NDArray[np.float64]]
    """Before each step."""
    qvel: list[NDArray[np.float64]]
    actions: Tensor
    """(T, N, A)."""


def play_expert(name: str, num_envs: int, steps: int, **options: Any) -> Played:
    """Let the expert act until an episode succeeds, or for some steps."""
    sim = robotrl.make_sim(f"mujoco/{name}", num_envs=num_envs, seed=0, threads=1, **options)
    ids = list(sim.state_ids("val")[:num_envs])
    sim.reset(options={"state_ids": ids})
    expert, started = sim.make_expert(seed=0), torch.ones(num_envs, dtype=torch.bool)
    qpos, qvel, actions = [], [], []
    for _ in range(steps):
        qpos.append(sim.core.physics.bind("qpos").copy())
        qvel.append(sim.core.physics.bind("qvel").copy())
        actions.append(expert.act(started).clone())
        started = torch.zeros(num_envs, dtype=torch.bool)
        if sim.step(actions[-1]).terminated.any():
            break
    return Played(ids, qpos, qvel, torch.stack(actions))


def put(on_warp: Any, native: Any, played: Played, step: int, stagger: bool = False) -> None:
    """Put both sims into the state before a step."""
    coordinates = {"qpos": played.qpos[step], "qvel": played.qvel[step]}
    for sim in (on_warp, native):
        sim.reset(options={"state_ids": played.ids, "stagger": stagger, **coordinates})


@pytest.mark.parametrize("check", QUICK_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Any) -> None:
    def case(limit_s: float) -> Any:
        return lambda num_envs, seed: warp("mujoco/pick-place", num_envs, seed, limit_s=limit_s)

    check(SimCase(case(7.0), case(0.5)))


@pytest.mark.parametrize("name", ["reach", "peg-insert"])
def test_warp_agrees_with_native_in_the_air(name: str) -> None:
    assert farthest(name, 0) < 1e-4


@pytest.mark.parametrize("name", IN_CONTACT)
def test_warp_agrees_with_native_in_contact(name: str) -> None:
    assert farthest(name, IN_CONTACT[name]) < TOLERANCE


def farthest(name: str, step: int) -> float:
    """Largest difference of a coordinate or velocity of both engines 5 control steps after the same state."""
    played = play_expert(name, 2, step + 5)
    on_warp, native = pair(f"mujoco/{name}", 2)
    put(on_warp, native, played, step)
    for action in played.actions[step:]:
        on_warp.step(action)
        native.step(action)
    assert step == 0 or int(on_warp.physics.bind("nacon")[0]) >= 2
    found = ((on_warp.physics.bind(name).numpy() - native.core.physics.bind(name)).ravel() for name in ("qpos", "qvel"))
    return float(np.abs(np.concatenate([*found])).max())


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_the_same_on_both_engines(name: str) -> None:
    """Rewards, flags, starts, distances and randomized parameters, across a success and the time limit."""
    played = play_expert(name, 4, 120)
    # the last env is sent back, so that it reaches the time limit
    for rows in (played.qpos, played.qvel):
        rows[-2][3] = rows[0][3]
    params = robotrl.make_sim(f"mujoco/{name}", num_envs=1, threads=1).params
    options = {"reward": "shaped", "limit_s": 0.5, "randomization": dict.fromkeys(params, (0.95, 1.05))}
    on_warp, native = pair(f"mujoco/{name}", 4, **options)
    put(on_warp, native, played, len(played.actions) - 2, stagger=True)
    for param, values in native.get_params().items():
        assert on_warp.get_params()[param].tolist() == values.tolist() and len(set(values)) == 4
    torch.testing.assert_close(on_warp.distance(), native.distance().float(), atol=1e-6, rtol=1e-5)
    rest = torch.zeros_like(played.actions[:2])
    ended = compare_steps(on_warp, native, torch.cat([played.actions[-2:], rest]), reward=2e-2, obs=2e-2)
    assert ended["terminated"] and ended["truncated"]
    torch.testing.assert_close(on_warp.distance(), native.distance().float(), atol=1e-3, rtol=1e-3)


def test_failure_is_the_same_on_both_engines() -> None:
    """A block that has left the allowed area."""
    on_warp, native = pair("mujoco/push", 2)
    native.reset(seed=0)
    qpos = native.core.physics.bind("qpos").copy()
    qpos[1, 7] = 0.5
    for sim in (on_warp, native):
        sim.reset(seed=0, options={"qpos": qpos})
    ended = compare_steps(on_warp, native, torch.zeros(1, 2, 4), reward=1e-6, obs=1e-3)
    assert ended == {"terminated": 1, "truncated": 0}


def test_the_tabletop_says_what_it_says_on_the_native_engine() -> None:
    on_warp, native = pair("mujoco/tabletop", 3)
    for sim in (on_warp, native):
        sim.reset(seed=0)
    assert on_warp.instructions() == native.instructions()
    assert on_warp.observation_spec == native.observation_spec
    facts = [
        (sim.privileged, sim.grounding_keys, sim.vocabulary, sim.scenarios, sim.scenario_of(5), sim.symmetries.keys())
        for sim in (on_warp, native)
    ]
    assert facts[0] == facts[1]


def test_it_declares_what_it_can_do() -> None:
    sim = warp("mujoco/push")
    assert isinstance(sim, HasDistance)
    for capability in (HasExpert, HasState, HasCamera):
        assert not isinstance(sim, capability)
        assert "engine 'native'" in why_lacking(sim, capability.__name__)
    with raises_naming(ConfigError, "image", "native"):
        warp("mujoco/push", image=("flat_top",))
