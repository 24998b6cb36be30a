"""The adapter of Isaac Gym's `VecTask`: a single flag, and resets in the next step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import robotrl
from robotrl.errors import ConfigError
from robotrl.sims.isaac.faults import IsaacFault
from robotrl.sims.isaac.wrap import sim_of
from robotrl.spec import HasFinalObs
from robotrl.testing.sims import CHECKS, SimCase, copied, play
from tests.kits.isaac_standins import CountingTask
from tests.kits.refusals import raises_naming

ZERO = torch.zeros(2, 1)
SOURCE = "isaac/tests.kits.isaac_standins:vec_task"


def make(num_envs: int = 4, seed: int = 0, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    return robotrl.make_sim(SOURCE, num_envs=num_envs, seed=seed, kwargs=kwargs, **(options or {}))


def test_an_end_is_reported_with_the_observation_that_follows_it():
    """Env 1 fails in the task's step 2, env 0 times out in its step 3: the counters reach limit - 1.

    Task: env 0 shows (1,0) (1,1) (1,2) (1,3) (2,0), env 1 (1,0) (1,1) (1,2) (2,0) (2,1).
    """
    sim: Any = sim_of(CountingTask({2: [1]}, limit=4))
    assert isinstance(sim, HasFinalObs)
    assert sim.control_dt_s is None
    assert sim.reset()["obs"].tolist() == [[1, 0], [1, 0]]
    steps = [copied(sim.step(ZERO)) for _ in range(5)]
    assert [s.obs["obs"].tolist() for s in steps] == [
        [[1, 1], [1, 1]],
        [[1, 2], [1, 2]],
        [[1, 3], [2, 0]],
        [[2, 0], [2, 1]],
        [[2, 1], [2, 2]],
    ]
    # env 1's flag comes with (1,2) and is reported with (2,0); the reward of that step belongs to no action
    assert [s.final_ids.tolist() for s in steps] == [[], [], [1], [0], []]
    assert [s.final_obs["obs"].tolist() for s in steps] == [[], [], [[1, 2]], [[1, 3]], []]
    assert [s.reward.tolist() for s in steps] == [[1, 1], [2, 2], [3, 0], [0, 1], [1, 2]]
    assert [s.terminated.tolist() for s in steps][2:4] == [[False, True], [False, False]]
    assert [s.truncated.tolist() for s in steps][2:4] == [[False, False], [True, False]]
    assert [s.info["success"].tolist() for s in steps][2:4] == [[False, False], [True, False]]


def test_an_env_that_ends_in_its_reset_is_an_episode_without_a_step():
    sim: Any = sim_of(CountingTask({1: [0], 2: [0]}, limit=9))
    sim.reset()
    steps = [copied(sim.step(ZERO)) for _ in range(4)]
    assert [s.final_ids.tolist() for s in steps] == [[], [0], [0], []]
    assert [s.final_obs["obs"].tolist() for s in steps][1:3] == [[[1, 1]], [[2, 0]]]
    assert [s.obs["obs"][0].tolist() for s in steps] == [[1, 1], [2, 0], [3, 0], [3, 1]]


def test_a_reset_drops_ends_that_were_not_reported():
    sim: Any = sim_of(CountingTask({1: [0]}, limit=9))
    sim.reset()
    sim.step(ZERO)
    assert sim.reset()["obs"].tolist() == [[2, 0], [2, 0]]
    assert sim.step(ZERO).final_ids.tolist() == []


def test_a_fork_that_resets_in_the_same_step():
    def fork(n: int, seed: int, **kwargs: Any) -> Any:
        return make(n, seed, {"resets": "same-step"}, resets="same-step", **kwargs)

    for check in CHECKS:
        check(SimCase(fork, lambda n, seed: fork(n, seed, limit=10)))
    sim = fork(4, 0, limit=5)
    assert not isinstance(sim, HasFinalObs)
    sim.reset()
    assert [s.truncated.all().item() for s in play(sim, torch.zeros(6, 4, 3))] == [False] * 4 + [True, False]
    assert sim.take_episode_log() == {"consecutive_successes": 0.5}


@pytest.mark.parametrize(("declared", "real"), [("same-step", "next-step"), ("next-step", "same-step")])
def test_a_wrong_time_of_resets_is_noticed_at_the_first_end(declared, real):
    sim = make(limit=4, options={"resets": declared}, resets=real)
    sim.reset()
    with pytest.raises(IsaacFault, match=f"expected resets '{real}'"):
        play(sim, torch.zeros(5, 4, 3))


def test_without_time_outs_every_end_is_a_failure():
    sim = make(limit=4, time_outs=False)
    with pytest.warns(UserWarning, match="no 'time_outs'"):
        sim.reset()
    step = play(sim, torch.zeros(4, 4, 3))[-1]
    assert step.terminated.all() and not step.truncated.any()


def test_states_are_for_critics():
    assert make().privileged == ("states",)
    assert make(states=False).observation_spec.keys() == {"obs"}
    with raises_naming(ConfigError, "policy_groups", "policy", "obs"):
        make(options={"policy_groups": "policy"})


def test_the_control_period_is_the_users():
    assert make(options={"control_dt_s": 0.02}).control_dt_s == 0.02
