"""Old and lost observations and late actions, worked by hand on a sim that counts its steps; then on real sims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import Turn, run_episodes
from robotrl.sims.perturbation import AGE, perturbed
from robotrl.spec import COMMITTED, COMMITTED_MASK, Spec, Step
from robotrl.spec.actuation import Actuation
from robotrl.spec.sim_options import PerturbCfg
from robotrl.testing.sims import CHECKS, SimCase, play, random_actions, same

FAULTS = {
    "obs_delay_steps": 2, "action_delay_steps": 2, "draw_delay": True, "committed_steps": 3, "drop_rate": 0.2,
    "drop_steps": 2,
}  # fmt: skip


class Counting:
    """Observes 100 e + t in step t of episode e, and the same for a critic; episodes end after five steps.

    Buffers are written again in each step, as those of the compiled sims are.
    """

    control_dt_s, device, buffers_are_reused = 0.1, torch.device("cpu"), True
    has_final_obs = True
    privileged = ("truth",)

    def __init__(self, num_envs: int = 2, length: int = 5) -> None:
        self.num_envs, self._length = num_envs, length
        one = Spec((1,), ("count",), ("1",), (-1e9,), (1e9,))
        self.observation_spec = {"count": one, "truth": one}
        self.action_spec = Spec((1,), ("a",), ("1",), (0.5,), (9.0,))
        self.executed: list[list[float]] = []
        self._obs = torch.zeros(num_envs, 1)
        self._episode, self._step = torch.zeros(num_envs, 1), torch.zeros(num_envs, 1)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        self._episode += 1
        self._step.zero_()
        return self._observe()

    def _observe(self) -> dict[str, Tensor]:
        torch.add(100 * self._episode, self._step, out=self._obs)
        return {"count": self._obs, "truth": self._obs}

    def step(self, actions: Tensor) -> Step:
        self.executed.append(actions[:, 0].tolist())
        self._step += 1
        over = self._step[:, 0] == self._length
        final = {key: x[over].clone() for key, x in self._observe().items()}
        self._episode[over] += 1
        self._step[over] = 0
        nothing = torch.zeros(self.num_envs, dtype=torch.bool)
        ids = torch.nonzero(over).squeeze(1)
        return Step(self._observe(), torch.zeros(self.num_envs), nothing, over, final, ids, {})

    def close(self) -> None:
        pass


def walk(cfg: PerturbCfg, steps: int, seed: int = 0) -> tuple[Counting, list[float], list[Step]]:
    sim = Counting()
    wrapped = perturbed(sim, cfg, seed)
    shown = [float(wrapped.reset()["count"][0, 0])]
    out = []
    for t in range(steps):
        step = wrapped.step(torch.full((2, 1), float(t + 1)))
        out.append(step._replace(obs={k: v.clone() for k, v in step.obs.items()}))
        shown.append(float(step.obs["count"][0, 0]))
    return sim, shown, out


def test_observations_are_as_old_as_said_and_no_older_than_their_episode() -> None:
    _, shown, steps = walk(PerturbCfg(obs_delay_steps=2), 8)
    assert shown == [100, 100, 100, 101, 102, 200, 200, 200, 201]
    assert [int(step.info[AGE][0]) for step in steps] == [1, 2, 2, 2, 2, 1, 2, 2]
    # the last observation of an episode is the one that the policy would have been given: two steps old
    assert float(steps[4].final_obs["count"][0, 0]) == 103
    # a critic's observation is the truth, at the end, too
    assert [float(step.obs["truth"][0, 0]) for step in steps] == [101, 102, 103, 104, 200, 201, 202, 203]
    assert float(steps[4].final_obs["truth"][0, 0]) == 105


def test_actions_arrive_late_and_none_of_the_last_episode_arrives_in_the_next() -> None:
    sim, _, _ = walk(PerturbCfg(action_delay_steps=2), 8)
    # zero is out of the bounds 0.5 to 9: the nearest action stands for it
    assert [row[0] for row in sim.executed] == [0.5, 0.5, 1, 2, 3, 0.5, 0.5, 6]


@pytest.mark.parametrize(
    ("delay", "position", "executed"),
    [
        # from the rest, 0.5, halfway to each action; an episode of five steps begins there again
        (0, False, [0.75, 1.5, 2.5, 3.5, 4.5, 3.25, 6.5, 7.5]),
        (2, False, [0.5, 0.5, 0.75, 1.5, 2.5, 0.5, 0.5, 3.25]),
        # a robot of positions stands somewhere, and goes to the first action at once
        (0, True, [1.0, 1.5, 2.5, 3.5, 4.5, 6.0, 6.5, 7.5]),
    ],
)
def test_actions_are_approached_in_a_straight_line(delay: int, position: bool, executed: list[float]) -> None:
    class Told(Counting):
        actuation = Actuation("position" if position else "velocity")

    sim = Told()
    wrapped = perturbed(sim, PerturbCfg(action_delay_steps=delay, interpolate_actions=True), 0)
    wrapped.reset()
    for t in range(8):
        wrapped.step(torch.full((2, 1), float(t + 1)))
    assert [row[0] for row in sim.executed] == executed
    # the way is a part of the state
    state = wrapped.own_state()
    wrapped.step(torch.full((2, 1), 9.0))
    wrapped.load_own(state)
    wrapped.step(torch.full((2, 1), 9.0))
    assert sim.executed[-1] == sim.executed[-2]


def test_choices_and_trajectories_are_not_interpolated() -> None:
    class Choosing(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.action_spec = replace(self.action_spec, low=(0.0,), high=(2.0,), choices=(3,))

    class Planning(Counting):
        trajectory_dt_s = 0.5

    for sim, kind in ((Choosing(), "choices"), (Planning(), "trajectories")):
        with pytest.raises(CapabilityError, match=f"perturb.interpolate_actions is set .* are {kind}"):
            perturbed(sim, PerturbCfg(interpolate_actions=True), 0)


def test_committed_actions_are_those_on_their_way_the_next_one_first() -> None:
    wrapped = perturbed(Counting(length=4), PerturbCfg(action_delay_steps=2, committed_steps=3), 0)
    assert wrapped.observation_spec[COMMITTED].names == ("a_in_1", "a_in_2", "a_in_3")
    obs = wrapped.reset()
    # the actions that stand in until the first one arrives; there is no third
    assert obs[COMMITTED].tolist() == [[0.5, 0.5, 0.0]] * 2
    assert obs[COMMITTED_MASK].tolist() == [[1.0, 1.0, 0.0]] * 2
    seen = []
    for t in range(4):
        step = wrapped.step(torch.full((2, 1), float(t + 1)))
        seen.append(step.obs[COMMITTED][0].tolist())
    assert seen == [[0.5, 1.0, 0.0], [1.0, 2.0, 0.0], [2.0, 3.0, 0.0], [0.5, 0.5, 0.0]]
    # what was on its way as the episode ended, which a value is bootstrapped from
    assert step.final_obs[COMMITTED].tolist() == [[3.0, 4.0, 0.0]] * 2


def test_committed_actions_of_a_policy_without_delay_are_none() -> None:
    wrapped = perturbed(Counting(), PerturbCfg(committed_steps=2), 0)
    obs = wrapped.step(torch.full((2, 1), 3.0)).obs
    assert not obs[COMMITTED].any() and not obs[COMMITTED_MASK].any()
    assert wrapped.sim.executed == [[3.0, 3.0]]


def test_each_episode_draws_its_delay_and_its_actions_arrive_as_late() -> None:
    sim = Counting(num_envs=64, length=6)
    wrapped = perturbed(sim, PerturbCfg(action_delay_steps=3, draw_delay=True, committed_steps=3), 1)
    obs = wrapped.reset()
    first = obs[COMMITTED_MASK].sum(dim=1)
    for t in range(6):
        step = wrapped.step(torch.full((64, 1), float(t + 1)))
    for env, delay in enumerate(first.int().tolist()):
        assert [row[env] for row in sim.executed] == [0.5] * delay + [float(t + 1) for t in range(6 - delay)]
    second = step.obs[COMMITTED_MASK].sum(dim=1)
    assert (first != second).any() and set(first.tolist()) == {0.0, 1.0, 2.0, 3.0}
    again = perturbed(Counting(num_envs=64), PerturbCfg(action_delay_steps=3, draw_delay=True, committed_steps=3), 1)
    assert torch.equal(again.reset()[COMMITTED_MASK].sum(dim=1), first)


def test_bad_delays_are_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"action_delay_steps is 4 and perturb\.committed_steps is 2: expected at most"
    ):
        perturbed(Counting(), PerturbCfg(action_delay_steps=4, committed_steps=2), 0)
    with pytest.raises(ConfigError, match=r"draw_delay is set and perturb\.action_delay_steps is 0"):
        perturbed(Counting(), PerturbCfg(draw_delay=True), 0)
    with pytest.raises(CapabilityError, match=r"committed_steps is 2 and the actions of .* are choices"):
        make_sim("gym/CartPole-v1", num_envs=2, perturb={"committed_steps": 2})


def test_losses_come_in_bursts_that_repeat_the_last_observation() -> None:
    _, shown, steps = walk(PerturbCfg(drop_rate=1.0, drop_steps=3), 8)
    # a burst begins in each step: the first observation of an episode is all that arrives
    assert shown == [100] * 5 + [200] * 4
    assert [int(step.info[AGE][0]) for step in steps] == [1, 2, 3, 4, 5, 1, 2, 3]
    ages = np.array([step.info[AGE].numpy() for step in walk(PerturbCfg(drop_rate=0.2, drop_steps=2), 400)[2]])
    lost = ages > 0
    assert 0.2 < lost.mean() < 0.42  # 2 r / (1 + r) of the steps, less at the ends of episodes: 1/3 at most
    runs = np.diff(np.flatnonzero(np.diff(np.r_[0, lost[:, 0], 0])))[::2]
    assert (runs >= 2).mean() > 0.6  # whole bursts, but where an episode ends


def test_nothing_to_do_gives_the_sim_itself() -> None:
    sim = Counting()
    assert perturbed(sim, PerturbCfg(drop_steps=5), 0) is sim


def test_restored_state_goes_on_bit_for_bit_and_another_delay_is_refused() -> None:
    sim = make_sim("mujoco/reach", num_envs=4, seed=3, limit_s=0.5, perturb=FAULTS)
    sim.reset()
    actions = random_actions(sim, 30)
    play(sim, actions[:12])
    state = sim.get_state()
    ahead = play(sim, actions[12:])
    twin = make_sim("mujoco/reach", num_envs=4, seed=3, limit_s=0.5, perturb=FAULTS)
    twin.reset()
    twin.set_state(state)
    assert same(ahead, play(twin, actions[12:]))
    other = make_sim("mujoco/reach", num_envs=4, perturb={**FAULTS, "obs_delay_steps": 3})
    with pytest.raises(
        DataError, match=r"perturb/past/2/state has shape no place: expected \(4, 22\).*obs_delay_steps 3"
    ):
        other.set_state(state)


class Proportional:
    """Acts on the observation alone, so that other losses lead to other episodes."""

    def act(self, obs: dict[str, Tensor], turn: Turn) -> Tensor:
        return torch.tanh(obs["state"][:, -4:] * 5)


def test_a_starts_losses_do_not_depend_on_the_number_of_envs() -> None:
    def returns(n: int, faults: dict[str, Any] | None) -> list[float]:
        sim = make_sim("mujoco/push", num_envs=n, seed=0, reward="shaped", limit_s=1.0, perturb=faults or {})
        return [episode.ret for episode in run_episodes(Proportional(), sim, list(sim.state_ids("val"))[:6])]

    found = returns(2, FAULTS)
    assert found == returns(5, FAULTS)
    assert found != returns(2, None)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["mujoco/push", "bev/drive"])
def test_a_perturbed_sim_passes_the_checks_of_every_sim(name: str, check: Any) -> None:
    limit = {"limit_s": 1.0 if name == "mujoco/push" else 2.0}
    check(
        SimCase(
            lambda n, seed: make_sim(name, num_envs=n, seed=seed, perturb=FAULTS),
            lambda n, seed: make_sim(name, num_envs=n, seed=seed, perturb=FAULTS, **limit),
        )
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"obs_delay_steps": -1}, r"perturb.obs_delay_steps is -1"),
        ({"drop_rate": 1.5}, r"perturb.drop_rate is 1.5: expected a number from 0 to 1"),
        ({"drop_steps": 0}, r"perturb.drop_steps is 0"),
        ({"action_delay_steps": 10_000}, r"perturb.action_delay_steps is 10,?000"),
        ({"delay": 1}, r"'delay'"),
    ],
)
def test_values_out_of_range_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sim("mujoco/reach", num_envs=1, perturb=values)
