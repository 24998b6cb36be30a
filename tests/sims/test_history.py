"""Observations of the last control steps, worked by hand on a sim that counts its steps; then on real sims."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError
from robotrl.fn.symmetry import signed
from robotrl.registry import make_sim
from robotrl.sims.history import remembered
from robotrl.spec import COMMITTED, HasSymmetries, history_steps
from robotrl.testing.sims import CHECKS, SimCase, play, random_actions, same
from tests.kits.refusals import raises_naming
from tests.sims.test_perturbation import Counting


def actions(step: float) -> Tensor:
    return torch.full((2, 1), step)


def test_a_vector_holds_the_last_steps_the_present_one_last() -> None:
    sim = remembered(Counting(length=4), 3)
    spec = sim.observation_spec["count"]
    assert spec.names == ("count_2_ago", "count_1_ago", "count") and spec.shape == (3,)
    assert history_steps(spec) == 3 and history_steps(sim.observation_spec["truth"]) == 1
    # the first observation of an episode stands for the steps before it
    assert sim.reset()["count"].tolist() == [[100, 100, 100]] * 2
    seen = [sim.step(actions(t)) for t in range(5)]
    shown = [step.obs["count"][0].tolist() for step in seen]
    assert shown == [[100, 100, 101], [100, 101, 102], [101, 102, 103], [200, 200, 200], [200, 200, 201]]
    assert seen[3].final_obs["count"].tolist() == [[102, 103, 104]] * 2
    # a critic's observation is the present one alone, at the end, too
    assert seen[2].obs["truth"].shape == (2, 1) and seen[3].final_obs["truth"].tolist() == [[104]] * 2


def test_what_was_handed_out_stays_as_it_is() -> None:
    sim = remembered(Counting(), 2)
    first = sim.reset()["count"]
    second = sim.step(actions(0)).obs["count"]
    sim.step(actions(1))
    sim.reset()
    assert first.tolist() == [[100, 100]] * 2 and second.tolist() == [[100, 101]] * 2


def test_a_policy_remembers_what_it_was_given_not_what_was_true() -> None:
    perturb = {"obs_delay_steps": 1, "action_delay_steps": 1, "committed_steps": 2}
    sim = make_sim("mujoco/reach", num_envs=2, seed=0, threads=1, perturb=perturb, history=2)
    late = make_sim("mujoco/reach", num_envs=2, seed=0, threads=1, perturb=perturb)
    width = late.observation_spec["state"].shape[0]
    before, found = late.reset(seed=0)["state"].clone(), sim.reset(seed=0)
    assert torch.equal(found["state"], torch.cat([before, before], dim=1))
    # what is decided is no measurement
    assert found[COMMITTED].shape == (2, 2 * sim.action_spec.shape[0])
    for action in random_actions(sim, 4):
        seen, present = sim.step(action).obs["state"], late.step(action).obs["state"].clone()
        assert torch.equal(seen, torch.cat([before, present], dim=1)) and seen.shape[1] == 2 * width
        before = present


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["mujoco/reach", "bev/drive"])
def test_a_wrapped_sim_is_a_sim(name: str, check: Any) -> None:
    limits = {"mujoco/reach": (60.0, 0.5), "bev/drive": (400.0, 1.0)}[name]
    more: dict[str, Any] = {"agents": 4} if name == "bev/drive" else {}

    def case(limit_s: float) -> Any:
        return lambda num_envs, seed: make_sim(
            name, num_envs=num_envs, seed=seed, threads=1, limit_s=limit_s, history=3, **more
        )

    check(SimCase(*map(case, limits)))


def test_a_restored_sim_remembers() -> None:
    sim = make_sim("mujoco/reach", num_envs=3, seed=0, threads=1, history=3)
    sim.reset(seed=1)
    moves = random_actions(sim, 6)
    play(sim, moves[:3])
    state = sim.get_state()
    first = play(sim, moves[3:])
    sim.set_state(state)
    assert same(first, play(sim, moves[3:]))
    other = make_sim("mujoco/reach", num_envs=3, seed=0, threads=1, history=2)
    other.reset(seed=1)
    with raises_naming(DataError, "history/state", "(3, 3, 22)", "(3, 2, 22)"):
        other.set_state(state)


def test_a_restarted_env_begins_anew_and_the_others_go_on() -> None:
    sim = make_sim("mujoco/reach", num_envs=2, seed=0, threads=1, history=2)
    sim.reset(seed=0)
    before = play(sim, random_actions(sim, 2))[-1].obs["state"]
    after = sim.restart(torch.tensor([1]))["state"]
    width = after.shape[1] // 2
    assert torch.equal(after[0], before[0]) and torch.equal(after[1, :width], after[1, width:])


def test_a_symmetry_is_that_of_each_step() -> None:
    plain = make_sim("mujoco/tabletop", num_envs=2, seed=0, threads=1)
    sim = make_sim("mujoco/tabletop", num_envs=2, seed=0, threads=1, history=2)
    assert isinstance(sim, HasSymmetries) and isinstance(plain, HasSymmetries)
    assert not isinstance(make_sim("mujoco/halfcheetah", num_envs=1, seed=0, history=2), HasSymmetries)
    for kind, found in plain.symmetries.items():
        for one, both in zip(found, sim.symmetries[kind], strict=True):
            state = plain.reset(seed=3)["state"]
            once = signed(state, one.numbers["state"])
            assert torch.equal(signed(state.repeat(1, 2), both.numbers["state"]), once.repeat(1, 2))


def test_impossible_histories_are_refused() -> None:
    with raises_naming(ConfigError, "history", "0"):
        make_sim("mujoco/reach", num_envs=1, seed=0, history=0)
    with raises_naming(ConfigError, "history", "101"):
        make_sim("mujoco/reach", num_envs=1, seed=0, history=101)
    blind = Counting()
    blind.observation_spec = {"truth": blind.observation_spec["truth"]}
    with raises_naming(ConfigError, "history", "2", "truth"):
        remembered(blind, 2)
