"""Finite numbers that cannot be: told, and kept out of running statistics; healthy ones change nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.learners.learner import Setup
from robotrl.learners.normalizers import ObsNormalizer, RewardNormalizer, RunningMoments
from robotrl.replay.buffer import Replay
from robotrl.replay.outliers import BELIEVED, ENOUGH, OutlierMonitor, Range
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.storage import Rollout
from robotrl.spec import Spec
from tests.kits.walk_sim import Walk

INF = float("inf")
WIDTH = 4
SPECS = {"state": Spec((WIDTH,), tuple("abcd"), ("1",) * WIDTH, (-INF,) * WIDTH, (INF,) * WIDTH)}
SCALES = torch.tensor([1e-3, 0.3, 5.0, 200.0])
"""Of the four columns: a precise sensor, radians, newtons, pixels."""


def batches(seed: int, count: int = 60, rows: int = 32) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, WIDTH, generator=draw) * SCALES + 2 * SCALES for _ in range(count)]


def fed(every: list[torch.Tensor]) -> ObsNormalizer:
    one = ObsNormalizer(SPECS)
    for rows in every:
        one.update({"state": rows})
    return one


def test_healthy_observations_are_measured_as_ever() -> None:
    one, moments = fed(batches(0)), RunningMoments(WIDTH)
    for rows in batches(0):
        moments.update(rows)
    for name, x in moments.state().items():
        assert torch.equal(one.state()["state"][name], x), name


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9),
    at=st.integers(0, 59),
    column=st.integers(0, WIDTH - 1),
    exponent=st.floats(6, 38),
    sign=st.sampled_from([-1.0, 1.0]),
)
def test_one_absurd_value_does_not_blind_a_column(
    seed: int, at: int, column: int, exponent: float, sign: float
) -> None:
    every = batches(seed)
    sound = fed(every).state()["state"]
    every[at][seed, column] = sign * 10.0**exponent
    spoiled = fed(every).state()["state"]
    ratio = (spoiled["var"] / sound["var"]).sqrt()
    assert (ratio < 1.5).all() and (ratio > 0.67).all()
    assert ((spoiled["mean"] - sound["mean"]).abs() < 0.2 * sound["var"].sqrt()).all()


@settings(max_examples=30, deadline=None)
@given(column=st.integers(0, WIDTH - 1), times=st.floats(1000, 1e9), seed=st.integers(0, 9))
def test_once_enough_was_seen_a_value_is_far_out_by_the_column_s_own_measure(
    column: int, times: float, seed: int
) -> None:
    every = batches(seed)
    sound = fed(every).state()["state"]
    at = ENOUGH // 32 + 5
    every[at][0, column] = float(SCALES[column] * times)
    spoiled = fed(every).state()["state"]
    assert ((spoiled["var"] / sound["var"]).sqrt() < 1.1).all()


def test_what_comes_again_and_again_is_believed() -> None:
    """A contact force of which there was none for long."""
    quiet = [torch.zeros(32, 1) for _ in range(100)]
    seen = Range(1)
    for rows in quiet:
        assert seen.take(rows) is None
    loud = torch.zeros(32, 1)
    loud[0] = 500.0
    for _ in range(BELIEVED - 1):
        mask = seen.take(loud)
        assert mask is not None and mask.sum() == 1
    assert seen.take(loud) is None and seen.high == 500
    many = Range(1)
    for rows in quiet:
        many.take(rows)
    assert many.take(torch.full((32, 1), 500.0)) is None


def test_what_no_number_of_times_makes_likely_is_never_believed() -> None:
    seen = Range(1)
    for rows in (torch.randn(32, 1), *[torch.full((32, 1), 1e30)] * 50):
        out = seen.usual(rows)
        assert out.abs().max() < 10


def test_what_lies_within_the_bounds_of_a_spec_is_never_far_out() -> None:
    seen = Range(1, [0.0], [1e6])
    seen.take(torch.rand(32, 1))
    assert seen.take(torch.tensor([[1e6], [0.5]])) is None
    assert seen.take(torch.tensor([[1e9], [0.5]])) is not None


def test_a_range_goes_on_where_it_was() -> None:
    one, other = Range(WIDTH), Range(WIDTH)
    every = batches(3)
    for rows in every[:30]:
        one.take(rows)
    other.load(kit.snapshot(one.state()))
    every[35][0, 0] = 1e9
    for rows in every[30:]:
        for seen in (one, other):
            seen.take(rows)
    assert kit.same(one.state(), other.state())


def test_a_checkpoint_from_before_goes_on_as_before() -> None:
    one, moments = fed(batches(0)[:30]), RunningMoments(WIDTH)
    old = {"state": {name: x for name, x in one.state()["state"].items() if name != "range"}}
    again = ObsNormalizer(SPECS)
    again.load(old)
    moments.load(old["state"])
    for rows in batches(0)[30:]:
        again.update({"state": rows})
        moments.update(rows)
    assert torch.equal(again.state()["state"]["var"], moments.var)


def rollout(reward: torch.Tensor) -> Rollout:
    none, flags = torch.zeros(0), torch.zeros(reward.shape, dtype=torch.bool)
    length = torch.ones(reward.shape, dtype=torch.int64)
    return Rollout({}, {}, reward, length, flags, flags, ~flags, {}, reward.numel(), none, none)


def test_one_absurd_reward_does_not_silence_the_others() -> None:
    one, other = RewardNormalizer(4, 0.9), RewardNormalizer(4, 0.9)
    draw = torch.Generator().manual_seed(0)
    for i in range(40):
        reward = torch.rand(16, 4, generator=draw)
        one.normalize(rollout(reward))
        if i == 7:
            reward[3, 2] = -1e25
            before = reward.clone()
            out = other.normalize(rollout(reward))
            assert out.reward[3, 2] == -10 and torch.equal(reward, before)
        else:
            other.normalize(rollout(reward))
    assert other.scale == pytest.approx(one.scale, rel=0.05)


class Spoiled(Walk):
    """A walk of which one number is absurd at one step.

    Args:
        num_envs: N.
        at: the step, from 0.
        env: whose.
        field: "obs" or "reward".
        value: what it is.
    """

    def __init__(self, num_envs: int, at: int, env: int, field: str, value: float) -> None:
        super().__init__(num_envs)
        self._at, self._env, self._field, self._value, self._count = at, env, field, value, 0

    def step(self, actions: torch.Tensor) -> Any:
        step = super().step(actions)
        self._count += 1
        if self._count == self._at + 1:
            if self._field == "obs":
                obs = {key: x.clone() for key, x in step.obs.items()}
                obs["walk"][self._env, 1] = self._value
                return step._replace(obs=obs)
            reward = step.reward.clone()
            reward[self._env] = self._value
            return step._replace(reward=reward)
        return step


@pytest.mark.parametrize("horizon", [1, 2])
@pytest.mark.parametrize(("field", "said"), [("obs", "observation 'walk', element '.+', is"), ("reward", "reward is")])
@pytest.mark.parametrize("into", [False, True])
def test_the_collector_says_where_an_absurd_number_was(horizon: int, field: str, said: str, into: bool) -> None:
    sim = Spoiled(4, 13, 2, field, 1e12)
    collector = Collector(sim, horizon, 0.9)
    collector.reset(0)

    def decide(obs: Any) -> Decision:
        return Decision(torch.zeros(len(obs["walk"]), horizon, 1), {})

    replay = Replay.create(None, sim.observation_spec, sim.action_spec, streams=4, capacity=400)

    def collect(steps: int) -> None:
        if into:
            collector.collect_into(replay, decide, steps)
        else:
            collector.collect(decide, steps)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collect(10)
    with pytest.warns(UserWarning, match=rf"env 2, rollout step 3: {said} 1e\+12, until then .*once") as told:
        collect(10)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collect(10)


def test_a_watch_names_what_is_far_from_the_rest_of_the_first_steps() -> None:
    watch = OutlierMonitor(SPECS)
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 4, WIDTH)).astype(np.float32))
    values[5, 1, 3] = -1e20
    with pytest.warns(UserWarning, match=r"env 1, rollout step 5: .*element 'd', is -1e\+20, far from all others"):
        watch.look({"state": values}, torch.zeros(8, 4))


@pytest.mark.parametrize("cfg", [off.SAC, kit.PPO], ids=["sac", "ppo"])
def test_a_learner_goes_on_seeing_after_one_absurd_observation(cfg: Any) -> None:
    """The scale of its policy's normalisation is that of a run without it, but for what it does otherwise."""
    policy = kit.GAUSSIAN if cfg is kit.PPO else off.POLICY
    scales = []
    for value in (1.0, 1e30):
        sim = Spoiled(4, 20, 1, "obs", value)
        steps = 16 * 4
        learner = replace(cfg, env_steps=4 * steps, num_steps=16).build(
            Setup(lambda sim=sim: sim, policy, None, None, 0)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):
                learner.iterate()
        affine = learner.policy.transforms.inputs[0]
        scales.append(torch.tensor(affine.scale))
        learner.close()
    assert ((scales[0] / scales[1]) < 3).all() and ((scales[1] / scales[0]) < 3).all()
