"""Samplers: chances, shares, weights, and demonstrations as steps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.data_helpers as data_helpers
import tests.kits.learner_kit as learner_kit
import tests.kits.replay_kit as kit
from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import ConfigError
from robotrl.replay.buffer import SOURCES, Mixed, Prioritized, Replay, Uniform, by_return, episode_returns
from robotrl.replay.priority import SumTree


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(streams: int = 2, capacity: int = 40, steps: int = 33, seed: int = 1) -> Replay:
    replay = kit.make(None, streams, capacity)
    kit.walk(replay, steps, seed=seed)
    return replay


SMALL = filled(1, 4, 3)


@pytest.mark.parametrize("decisions", [False, True])
@pytest.mark.parametrize("make", [Uniform, Prioritized])
def test_every_complete_start_has_the_same_chance(make, decisions):
    """Chi-square over the starts, at 5 standard deviations; a prioritised sampler that knows nothing is uniform."""
    replay = filled()
    index = replay.indices(3, decisions)
    got = make(replay, decisions=decisions).sample(20_000, 3, 0.9, generator())
    values, counts = torch.unique(got.starts, return_counts=True)
    assert torch.equal(values, index.sort().values)
    expected = 20_000 / len(index)
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(index) - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_few_complete_starts_among_many_are_found():
    """One step in 400 can be sampled: rejection gives up and looks through all of them."""
    replay = kit.make(None, 1, 400)
    for t in range(400):
        replay.add(kit.record([kit.Row(t, decision=t == 7)]))
    got = Uniform(replay, decisions=True).sample(64, 1, 0.9, generator())
    assert got.starts.tolist() == [7] * 64


@pytest.mark.parametrize("make", [Uniform, Prioritized])
def test_nothing_to_sample_is_said(make):
    replay = kit.make(None, 1, 10)
    with pytest.raises(ConfigError, match=r"the replay is empty|holds no step"):
        make(replay).sample(4, 1, 0.9, generator())
    replay.add(kit.record([kit.Row(0)]))
    with pytest.raises(ConfigError, match="the replay holds no step whose chunk of 2 steps is complete"):
        make(replay).sample(4, 2, 0.9, generator())
    with pytest.raises(ConfigError, match="replay batch is 0"):
        make(replay).sample(0, 2, 0.9, generator())
    with pytest.raises(ConfigError, match="replay horizon is 0"):
        Uniform(replay).sample(4, 0, 0.9, generator())


def test_sampling_follows_from_content_and_generator():
    a, b = filled(), kit.make(None, 2, 40)
    b.load(learner_kit.snapshot(a.state()))
    for make in (Uniform, Prioritized):
        one, other = (make(replay).sample(32, 2, 0.9, generator(3)) for replay in (a, b))
        assert torch.equal(one.starts, other.starts)
        assert not torch.equal(one.starts, make(a).sample(32, 2, 0.9, generator(4)).starts)


@pytest.mark.parametrize(
    ("shares", "batch", "counts"),
    [
        ((0.5, 0.5), 256, [128, 128]),
        ((0.5, 0.5), 7, [4, 3]),
        ((1 / 3, 2 / 3), 9, [3, 6]),
        ((0.2, 0.3, 0.5), 6, [1, 2, 3]),
    ],
)  # fmt: skip
def test_shares_are_exact_in_every_minibatch(shares, batch, counts):
    """By the largest remainder: 0.2, 0.3 and 0.5 of 6 are 1.2, 1.8 and 3."""
    replays = [filled(seed=seed) for seed in range(len(shares))]
    mixed = Mixed([(Uniform(replay), share) for replay, share in zip(replays, shares, strict=True)])
    assert mixed.counts(batch) == counts
    got = mixed.sample(batch, 2, 0.9, generator(), updates=3)
    origin = (got.obs["state"][:, 0] // 1000).long().reshape(3, batch)
    expected = torch.repeat_interleave(torch.arange(len(shares)), torch.tensor(counts))
    assert torch.equal(origin, expected.expand(3, batch))
    assert got.extras["noise"].shape == (3 * batch, 2, 1)
    for b in (0, batch, 3 * batch - 1):
        replay = replays[int(got.obs["state"][b, 0] // 1000)]
        assert torch.equal(replay.view(got.starts[b : b + 1], 2, 0.9).reward, got.reward[b : b + 1])


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5), st.integers(100, 4000))
@settings(max_examples=100, deadline=None)
def test_shares_become_whole_rows(weights, batch):
    total, sampler = sum(weights), Uniform(SMALL)
    counts = Mixed([(sampler, weight / total) for weight in weights]).counts(max(batch, 600))
    assert sum(counts) == max(batch, 600)
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - max(batch, 600) * weight / total) < 1


@pytest.mark.parametrize("shares", [(0.5, 0.6), (1.0, 0.0), (1.5, -0.5), ()])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ConfigError, match=r"replay shares is .*: expected numbers above 0 of sum 1"):
        Mixed([(Uniform(filled()), share) for share in shares])
    with pytest.raises(ConfigError, match="replay batch is 1: expected enough rows"):
        Mixed([(Uniform(filled()), 0.5)] * 2).sample(1, 1, 0.9, generator())


@given(st.integers(1, 700), st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 100)), max_size=60), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_the_tree_finds_what_a_running_sum_finds(size, changes, part):
    tree, plain = SumTree(size), np.zeros(size)
    for at in range(0, len(changes), 7):
        some = {index % size: value for index, value in changes[at : at + 7]}
        for index, value in some.items():
            plain[index] = value
        tree.assign(np.array(list(some), np.int64), np.array(list(some.values())))
    assert np.array_equal(tree.leaves(np.arange(size)), plain)
    assert np.isclose(tree.total, plain.sum(), rtol=1e-12)
    if plain.sum() > 0:
        sums = np.cumsum(plain)
        mass = part * sums[-1]
        found = int(tree.find(np.array([mass]))[0])
        assert plain[found] > 0
        before = sums[found] - plain[found]
        slack = 1e-9 * sums[-1]
        assert before - slack <= mass <= sums[found] + slack


def test_priorities_give_chances_and_weights():
    """Priorities 1 and 3 at alpha 1: chances 1/4 and 3/4; weights at beta 1 go as 1 / chance, the largest being 1."""
    replay = kit.make(None, 1, 10)
    for t in range(3):
        replay.add(kit.record([kit.Row(t)]))
    sampler = Prioritized(replay, alpha=1.0, beta=1.0, floor=0.0)
    first = sampler.sample(8, 1, 0.9, generator())
    assert first.weight.tolist() == [1] * 8
    sampler.update_priorities(torch.tensor([0, 1]), torch.tensor([1.0, 3.0]))
    got = sampler.sample(400, 1, 0.9, generator())
    # one from each of 400 equal parts: exact but for the part in which the border lies
    assert abs(int((got.starts == 0).sum()) - 100) <= 1
    assert torch.allclose(got.weight, torch.where(got.starts == 0, 1.0, 1 / 3))
    # step 2 was there, incomplete, when 1 was the largest priority; step 3 is new, with 3: chances 1, 3, 1, 3 of 8
    for t in (3, 4):
        replay.add(kit.record([kit.Row(t)]))
    got = sampler.sample(800, 1, 0.9, generator())
    counts = torch.bincount(got.starts, minlength=4)
    assert (counts - torch.tensor([100, 300, 100, 300])).abs().max() <= 1
    sampler.beta = 0.5
    got = sampler.sample(700, 1, 0.9, generator())
    assert torch.allclose(got.weight, torch.where(got.starts % 2 == 0, 1.0, 3**-0.5))


@given(
    st.lists(st.tuples(st.sampled_from(["add", "some", "cut", "update", "sample"]), st.integers(0, 99)), max_size=60)
)
@settings(max_examples=40, deadline=None)
def test_priorities_follow_the_ring(events):
    """Whatever happened, the tree holds each complete start's priority and nothing else, as one built afresh does."""
    replay = kit.make(None, 2, 12)
    sampler = Prioritized(replay, alpha=1.0, floor=0.0)
    known: dict[int, float] = {}
    largest, number = 1.0, 0
    for what, k in events:
        if what in ("add", "some"):
            number += 2
            rows = [kit.Row(number + n, k % 5 == n, k % 7 == n, final=1) for n in range(2)]
            replay.add(kit.record(rows if what == "add" else rows[:1]), None if what == "add" else [k % 2])
        elif what == "cut":
            replay.cut([k % 2])
        elif len(replay.indices(2)):
            got = sampler.sample(4, 2, 0.9, generator(k))
            for index in replay.indices(1).tolist():
                known.setdefault(index, largest)
            low, high = replay.ring.window()
            for n in range(2):
                for t in range(low[n], high[n]):
                    known.setdefault(2 * t + n, largest)
            if what == "update":
                value = 1.0 + k / 8
                sampler.update_priorities(got.starts, torch.full((4,), value))
                largest = max(largest, value)
                known.update(dict.fromkeys(got.starts.tolist(), value))
    index = replay.indices(2)
    if not len(index):
        return
    sampler.sample(1, 2, 0.9, generator())
    expected = np.zeros(replay.ring.rows)
    for i in index.tolist():
        expected[i % len(expected)] = known.get(i, largest)
    assert np.array_equal(sampler._tree.leaves(np.arange(len(expected))), expected)
    again = Prioritized(replay, alpha=1.0, floor=0.0)
    again.load(learner_kit.snapshot(sampler.state()))
    a, b = (one.sample(16, 2, 0.9, generator(5)) for one in (sampler, again))
    assert torch.equal(a.starts, b.starts)
    assert torch.equal(a.weight, b.weight)


def test_priorities_that_are_none_are_refused_and_steps_that_are_gone_passed_over():
    replay = filled()
    sampler = Prioritized(replay)
    got = sampler.sample(4, 1, 0.9, generator())
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"replay priorities is .*: expected 4 finite numbers, 0 or more"):
            sampler.update_priorities(got.starts, torch.tensor([1.0, 1.0, bad, 1.0]))
    kit.walk(replay, 40, seed=2)
    sampler.update_priorities(got.starts, torch.full((4,), 1e9))
    assert sampler._largest == 1.0
    for field in ("alpha", "beta"):
        with pytest.raises(ConfigError, match=f"replay {field} is 1.5: expected a number from 0 to 1"):
            Prioritized(replay, **{field: 1.5})


def test_returns_of_episodes_become_priorities():
    """Episodes of stream 0: steps 0, 1 (rewards 0 and 1/8), then 2 (2/8) under way."""
    replay = kit.make(None, 1, 10)
    for row in (kit.Row(0), kit.Row(1, True, final=9), kit.Row(2)):
        replay.add(kit.record([row]))
    index, returns = episode_returns(replay)
    assert index.tolist() == [0, 1, 2]
    assert returns.tolist() == [1 / 8, 1 / 8, 2 / 8]
    assert torch.allclose(by_return(returns), torch.tensor([0.1, 0.1, 1.0]))
    assert by_return(torch.ones(3)).tolist() == [1, 1, 1]


def test_demonstrations_become_steps(tmp_path):
    """Episodes of 3, 1, 6 and 4 frames; the odd ones were cut off, and end at their last observation."""
    data = read_dataset(data_helpers.write_dataset(tmp_path / "data"))
    specs, action = data_helpers.OBSERVATION_SPEC, data_helpers.ACTION_SPEC
    replay = Replay.create(None, specs, action, streams=1, capacity=20, control_dt_s=0.05)
    with pytest.warns(UserWarning, match="2 of 4 episodes were cut off"):
        assert replay.add_demos(data) == 14
    assert replay.indices(3, decisions=True).tolist() == list(range(14))
    got = replay.view(replay.indices(3), 3, 0.5)
    frames = data.frames("action")
    assert np.array_equal(got.chunk[4], frames[4:7])
    assert torch.equal(got.source, torch.full((14,), SOURCES.index("demo"), dtype=torch.uint8))
    assert got.steps.tolist() == [3, 2, 1, 1, 3, 3, 3, 3, 2, 1, 3, 3, 2, 1]
    ends = [True, True, True, False, False, False, False, True, True, True, False, False, False, False]
    assert got.terminated.tolist() == ends
    assert got.truncated.tolist() == [False] * 3 + [True] + [False] * 7 + [True] * 3
    assert np.array_equal(got.next_obs["state"][3], data.frames("observation.state")[3])
    assert np.array_equal(got.next_obs["state"][4], data.frames("observation.state")[7])
    reward = data.frames("next.reward")
    assert got.reward[1].item() == np.float32(float(reward[1]) + 0.5 * float(reward[2]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"control_dt_s": 0.1}, "is recorded at 20 Hz: expected 10 Hz"),
        ({"action_spec": kit.ACTION}, r"action of dataset .* has shape \(2,\): expected \(1,\) \(it lacks 'push'"),
        ({"observation_spec": kit.SPECS}, "'eye' is unknown: .* its columns are .*force"),
        ({"capacity": 13}, "14 steps for one stream: the replay keeps 13 of each"),
    ],
)
def test_demonstrations_that_do_not_fit_are_refused_with_both_values(tmp_path, change, message):
    settings = {
        "observation_spec": data_helpers.OBSERVATION_SPEC,
        "action_spec": data_helpers.ACTION_SPEC,
        "streams": 1,
        "capacity": 20,
        **change,
    }
    replay = Replay.create(None, **settings)
    data = read_dataset(data_helpers.write_dataset(tmp_path / "data"))
    with warnings.catch_warnings(), pytest.raises(ConfigError, match=message):
        warnings.simplefilter("ignore")  # of the episodes that were cut off
        replay.add_demos(data)
