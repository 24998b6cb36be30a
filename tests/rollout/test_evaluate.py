"""Collecting and evaluating, against a brute-force reading of the sim's own tape."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.rollout.chunk_cursor import ChunkCursor
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.evaluate import EvalResult, Turn, evaluate, run_episodes
from robotrl.rollout.storage import Rollout
from robotrl.spec import ActOut, HasFinalObs, HasState, HasStateIds, VecSim
from tests.kits.walk_sim import GOAL, BareWalk, Walk


class Decider:
    """Random chunks; each decision gets a number of its own."""

    def __init__(self, horizon: int, seed: int) -> None:
        self.horizon, self.count = horizon, 0
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, obs: dict[str, Tensor]) -> Decision:
        n = len(obs["walk"])
        # quarters are exact in binary, so that sums can be compared with ==
        chunk = torch.randint(-4, 5, (n, self.horizon, 1), generator=self.generator) / 4
        number = torch.arange(self.count, self.count + n)
        self.count += n
        return Decision(chunk, {"number": number, "chunk": chunk})


class Made(NamedTuple):
    """One decision, as the tape tells it."""

    obs: list[float]
    reward: float
    length: int
    terminated: bool
    truncated: bool
    next_obs: list[float]
    actions: list[float]


def from_tape(sim: BareWalk, env: int, horizon: int, gamma: float) -> list[Made]:
    """The complete decisions of an env: each takes `horizon` steps, or fewer where its episode ends."""
    made: list[Made] = []
    steps: list[Any] = []
    for record in sim.tape:
        steps.append(record)
        ended = bool(record.terminated[env] or record.truncated[env])
        if len(steps) == horizon or ended:
            made.append(
                Made(
                    steps[0].obs[env].tolist(),
                    sum(gamma**i * float(s.reward[env]) for i, s in enumerate(steps)),
                    len(steps),
                    bool(record.terminated[env]),
                    bool(record.truncated[env]),
                    record.next_obs[env].tolist(),
                    [float(s.action[env, 0]) for s in steps],
                )
            )
            steps = []
    return made


def from_rollouts(rollouts: list[Rollout], env: int) -> tuple[list[Made], list[int]]:
    made, numbers = [], []
    for r in rollouts:
        for m in torch.nonzero(r.valid[:, env]).squeeze(1).tolist():
            length = int(r.length[m, env])
            made.append(
                Made(
                    r.obs["walk"][m, env].tolist(),
                    float(r.reward[m, env]),
                    length,
                    bool(r.terminated[m, env]),
                    bool(r.truncated[m, env]),
                    r.next_obs["walk"][m, env].tolist(),
                    r.record["chunk"][m, env, :length, 0].tolist(),
                )
            )
            numbers.append(int(r.record["number"][m, env]))
    return made, numbers


def test_the_walk_is_a_sim():
    assert isinstance(Walk(2), VecSim)
    for capability in (HasFinalObs, HasState, HasStateIds):
        assert isinstance(Walk(2), capability)
        assert not isinstance(BareWalk(2), capability)


@settings(max_examples=60, deadline=None)
@given(
    horizon=st.integers(1, 5),
    num_envs=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 13), min_size=1, max_size=4),
    gamma=st.sampled_from([1.0, 0.5]),
    limit=st.integers(1, 9),
    stagger=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_rollouts_hold_exactly_the_decisions_that_were_made(horizon, num_envs, lengths, gamma, limit, stagger, seed):
    sim = Walk(num_envs, limit=limit)
    collector = Collector(sim, horizon, gamma)
    collector.reset(seed, {"stagger": stagger})
    decider = Decider(horizon, seed)
    rollouts = [collector.collect(decider, steps) for steps in lengths]
    for env in range(num_envs):
        found, numbers = from_rollouts(rollouts, env)
        assert found == from_tape(sim, env, horizon, gamma)
        assert numbers == sorted(set(numbers))
    # env steps: once each, chunk or no chunk
    assert [r.env_steps for r in rollouts] == [steps * num_envs for steps in lengths]
    assert collector.env_steps == sum(lengths) * num_envs == len(sim.tape) * num_envs
    ended = [(record.terminated | record.truncated).sum() for record in sim.tape]
    assert sum(len(r.episodes) for r in rollouts) == sum(ended)
    wins = [(record.next_obs[:, 0] >= GOAL).sum() for record in sim.tape]
    assert sum(r.episodes.sum() for r in rollouts) == sum(wins)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 100))
def test_no_reward_is_lost(horizon, lengths, seed):
    """Rewards of all rollouts and of the decisions still under way are those that the sim gave."""
    sim = Walk(3)
    collector = Collector(sim, horizon, 1.0)
    collector.reset(seed)
    decider = Decider(horizon, seed)
    gathered = sum(float((r.reward * r.valid).sum()) for r in (collector.collect(decider, n) for n in lengths))
    pending = collector.state()["pending"]
    left = float(pending["reward"].sum()) if pending else 0.0
    assert gathered + left == sum(float(record.reward.sum()) for record in sim.tape)


def test_a_chunk_is_dropped_where_its_episode_ends():
    sim = Walk(1, limit=3)
    collector = Collector(sim, 5, 1.0)
    collector.reset(0)
    still = collector.collect(lambda obs: Decision(torch.zeros(len(obs["walk"]), 5, 1), {}), 9)
    assert still.length[still.valid].tolist() == [3, 3, 3]
    assert still.truncated[still.valid].all()
    assert still.obs["walk"][still.valid][:, 1].tolist() == [0, 0, 0]
    assert still.next_obs["walk"][still.valid][:, 1].tolist() == [3, 3, 3]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 100))
def test_collecting_goes_on_identically_from_a_saved_state(horizon, first, second, seed):
    def start() -> tuple[Walk, Collector, Decider]:
        sim = Walk(3)
        collector, decider = Collector(sim, horizon, 0.9), Decider(horizon, seed)
        collector.reset(seed, {"stagger": True})
        return sim, collector, decider

    _, collector, decider = start()
    collector.collect(decider, first)
    saved, generator, count = copy.deepcopy(collector.state()), decider.generator.get_state(), decider.count
    expected = collector.collect(decider, second)

    _, fresh, decider = start()
    fresh.load(saved)
    decider.generator.set_state(generator)
    decider.count = count
    assert_same(fresh.collect(decider, second), expected)
    assert fresh.env_steps == collector.env_steps


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def test_a_sim_without_final_obs_is_valued_before_its_last_step():
    with pytest.warns(UserWarning, match="BareWalk lacks HasFinalObs"):
        collector = Collector(BareWalk(2, limit=3), 2, 1.0)
    collector.reset(0)
    found = collector.collect(lambda obs: Decision(torch.zeros(len(obs["walk"]), 2, 1), {}), 6)
    assert found.next_obs["walk"][found.truncated][:, 1].tolist() == [2, 2, 2, 2]


def test_a_sim_without_state_starts_afresh_and_says_so():
    with pytest.warns(UserWarning):
        collector = Collector(BareWalk(2), 3, 1.0)
    collector.reset(0)
    collector.collect(Decider(3, 0), 4)
    saved = copy.deepcopy(collector.state())
    with pytest.warns(UserWarning):
        fresh = Collector(BareWalk(2), 3, 1.0)
    fresh.reset(0)
    with pytest.warns(UserWarning, match="not exactly"):
        fresh.load(saved)
    assert fresh.env_steps == 8
    found = fresh.collect(Decider(3, 0), 1)
    assert (found.obs["walk"][0, :, 1] == 0).all()  # decisions of new episodes, none under way
    assert not fresh.state()["pending"]["length"].gt(1).any()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("reward", "env 1, rollout step 2: reward is nan"),
        ("obs", "env 1, rollout step 2: observation 'walk' is not finite"),
        ("final_obs", "env 1, rollout step 2: final observation 'walk' is not finite"),
    ],
)
@pytest.mark.parametrize("way", ["collect", "evaluate"])
def test_nan_from_the_sim_is_named(way, field, message):
    sim = Walk(2, limit=3)
    sim.poison[2, 1] = field
    with pytest.raises(NumericsError, match=message):
        if way == "evaluate":
            evaluate(Constant(0.0), sim, episodes=4)
        collector = Collector(sim, 2, 1.0)
        collector.reset(0)
        collector.collect(lambda obs: Decision(torch.zeros(len(obs["walk"]), 2, 1), {}), 6)


def test_large_finite_numbers_are_no_fault():
    """A sum that overflows is not yet a NaN."""
    sim = Walk(2)
    collector = Collector(sim, 1, 1.0)
    collector.reset(0)
    sim._obs[:, 0] = 3e38
    assert collector.collect(Decider(1, 0), 1).valid.all()


# evaluation


class Constant:
    """A policy that moves by a constant, or by noise."""

    deploy_mode = "sample"
    observation_spec = Walk(1).observation_spec
    action_spec = Walk(1).action_spec

    def __init__(self, action: float, noise: float = 0.0, horizon: int = 2) -> None:
        self.action, self.noise, self.horizon = action, noise, horizon
        self.asked: list[str] = []

    def act(self, obs, state=None, generator=None, mode="sample"):
        self.asked.append(mode)
        shape = (len(obs["walk"]), self.horizon, 1)
        return ActOut(self.action + self.noise * torch.randn(shape, generator=generator), state)


def expected_length(start: int, action: float, limit: int) -> int:
    x = (start % 5 - 2) / 2
    return next((t for t in range(1, limit) if abs(x + t * action) >= GOAL), limit)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.integers(0, 1199), min_size=1, max_size=15, unique=True),
    st.integers(1, 5),
    st.sampled_from([0.5, 1.0, -0.5, 0.25]),
)
def test_each_start_is_run_exactly_once_whatever_the_number_of_envs(num_envs, ids, horizon, action):
    sim = Walk(num_envs)
    found = evaluate(Constant(action, horizon=horizon), sim, ids=ids)
    assert found.ids.tolist() == ids
    lengths = [expected_length(i, action, 6) for i in ids]
    assert found.length.tolist() == lengths
    assert found.success.tolist() == [(i % 5 - 2) / 2 + n * action >= GOAL for i, n in zip(ids, lengths, strict=True)]
    returns = [sum((i % 5 - 2) / 2 + t * action for t in range(1, n + 1)) for i, n in zip(ids, lengths, strict=True)]
    assert found.returns.tolist() == returns
    assert found.rate.value == found.success.mean()
    assert found.rate.episodes == len(ids)
    started = [int(i) for record in sim.tape for i, t in zip(record.state_id, record.obs[:, 1], strict=True) if t == 0]
    for i in ids:
        # training starts that fill idle envs may come upon the same number; held-out ones never do
        assert started.count(i) == 1 or i in range(1000)


def test_evaluation_is_the_same_again_whatever_the_sim_did_before():
    """Also with noise, and with idle envs whose training starts decide how many rows each draw of noise has."""
    policy = Constant(0.2, noise=0.5)

    def run(sim: Walk, seed: int = 3) -> EvalResult:
        return evaluate(policy, sim, episodes=30, seed=seed)

    fresh, used = Walk(40, limit=9), Walk(40, seed=9, limit=9)
    first = run(fresh)
    collector = Collector(used, 2, 1.0)
    collector.reset(5)
    collector.collect(Decider(2, 0), 17)
    for again in (run(fresh), run(used)):
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(run(fresh, seed=4).returns, first.returns)


def test_splits_and_modes():
    policy, sim = Constant(0.5), Walk(3)
    assert evaluate(policy, sim, episodes=5).ids.tolist() == [1100, 1101, 1102, 1103, 1104]
    assert set(policy.asked) == {"sample"}
    policy.asked.clear()
    assert evaluate(policy, sim, episodes=2, split="val", mode="mean").ids.tolist() == [1000, 1001]
    assert set(policy.asked) == {"mean"}


def test_episodes_are_recorded_whole():
    class Mover:
        def act(self, obs: dict[str, Tensor], turn: Turn) -> Tensor:
            return torch.full((len(turn.start), 1), 0.5)

    seen: list[int] = []
    found = run_episodes(Mover(), Walk(2), [7, 3, 1100], record=True, on_step=seen.append)
    assert [e.state_id for e in found] == [7, 3, 1100]
    for episode in found:
        x = (episode.state_id % 5 - 2) / 2
        assert episode.obs["walk"].shape == (episode.length + 1, 2)
        assert episode.obs["walk"][:, 0].tolist() == [x + 0.5 * t for t in range(episode.length + 1)]
        assert episode.obs["walk"][:, 1].tolist() == list(range(episode.length + 1))
        assert episode.actions.tolist() == [[0.5]] * episode.length
        assert episode.rewards.tolist() == episode.obs["walk"][1:, 0].tolist()
        assert episode.ret == episode.rewards.sum()
        assert episode.success
        assert episode.terminated
    assert seen == list(range(len(seen)))


def test_a_policy_decides_anew_at_each_start():
    """The rest of a chunk never leaks into the next episode: the first action of each is that of its own start."""

    class Position(Constant):
        def act(self, obs, state=None, generator=None, mode="sample"):
            return ActOut(obs["walk"][:, None, :1].expand(-1, self.horizon, 1) / 4, state)

    sim = Walk(2, limit=3)
    evaluate(Position(0.0, horizon=5), sim, ids=[1003, 1004, 1008, 1009, 1013])
    listed = [(r, e) for r in sim.tape for e in range(2) if r.state_id[e] >= 1000]
    firsts = [(float(r.obs[e, 0]), float(r.action[e, 0])) for r, e in listed if r.obs[e, 1] == 0]
    assert len(firsts) == 5
    assert all(action == x / 4 for x, action in firsts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": [4, 4]}, "ids has 2 entries, 1 of them distinct"),
        ({"ids": []}, "ids has 0 entries"),
        ({"episodes": 0}, "episodes is 0: expected 1 to 100, the size of split 'test'"),
        ({"episodes": 101}, "episodes is 101: expected 1 to 100"),
    ],
)
def test_bad_requests_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(Constant(0.5), Walk(2), **arguments)


def test_a_sim_without_numbered_starts_is_refused():
    with pytest.raises(CapabilityError, match="BareWalk lacks HasStateIds"):
        evaluate(Constant(0.5), BareWalk(2))


def test_the_cursor():
    cursor = ChunkCursor(3, 2, 1, torch.device("cpu"))
    assert cursor.due().tolist() == [0, 1, 2]
    cursor.load(torch.tensor([0, 2]), torch.tensor([[[1.0], [2.0]], [[5.0], [6.0]]]))
    assert cursor.due().tolist() == [1]
    cursor.load(torch.tensor([1]), torch.tensor([[[3.0], [4.0]]]))
    assert cursor.advance().tolist() == [[1], [3], [5]]
    cursor.drop(torch.tensor([1]))
    assert cursor.due().tolist() == [1]
    cursor.load(torch.tensor([1]), torch.tensor([[[7.0], [8.0]]]))
    assert cursor.advance().tolist() == [[2], [7], [6]]
    assert cursor.due().tolist() == [0, 2]
